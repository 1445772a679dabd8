"""What is left to us where a loader says "auto": how many workers, and of which kind; as far as what else it asks for allows.

1. Of an iterable data set the number of workers says which samples make which batch: it is chosen once.
2. A loader that is asked for what cannot be had in the loop's own process (a deadline, say), or that gives its workers something to do
   first, loads nothing there.
"""

from __future__ import annotations

import os
from functools import partial
from typing import Any

from antifreeze.delivery.autopilot import Autopilot
from antifreeze.delivery.claims import shared_cores
from antifreeze.delivery.ledger import Decided, Ledger
from antifreeze.descriptors import open_now
from antifreeze.linux import resource
from antifreeze.options import OWN_DEFAULTS, Options, WorkerKind
from antifreeze.torch_private import is_datapipe, is_iterable_kind
from antifreeze.tuning.cores import rank_cores, ranks_here
from antifreeze.tuning.probe import probe
from antifreeze.tuning.setting import FEWER_PROCESSES, INLINE, MOST_PROCESSES, MOST_THREADS, Kind, Limits, Setting, kind_for
from antifreeze.worker.awaiting import awaits

FILES_FOR_EACH = 16
"""Open files of this process, for each worker process: it has seven, and the others are left to the user."""
_STREAMS_STAY = "of an iterable data set the number of workers says which samples make which batch, so it is the cores less one, and stays"


def choose_kind(loader: Any) -> tuple[WorkerKind, str]:
    """Of workers="auto", and why: the user says that threads may share the data set, and what its samples do says whether they should."""
    kind, why = Kind.PROCESS, "of what was asked for, threads cannot do everything"
    iterable = is_iterable_kind(loader) or is_datapipe(loader.dataset) or awaits(loader.dataset)
    if not (iterable or _asks_for_more(loader) or loader.worker_init_fn is not None or loader.multiprocessing_context is not None):
        probed = loader._as_found.note(loader.dataset, partial(probe, loader.dataset))
        why = "its first samples do not tell what it does"
        if probed is not None:
            kind, why = kind_for(probed.wall_s / probed.samples, probed.cpu_s / probed.samples, probed.draws)
    return WorkerKind.THREAD if kind is Kind.THREAD else WorkerKind.PROCESS, why


def new_autopilot(loader: Any, ranked: bool, why_kind: str) -> Autopilot:
    """Whoever decides how many workers there are, as it runs."""
    options: Options = loader._own_options
    kind = Kind.THREAD if options.workers is WorkerKind.THREAD else Kind.PROCESS
    inline = not (ranked or _asks_for_more(loader) or loader.worker_init_fn is not None)
    context, use_server = loader._start_context()
    places = places_for(kind, use_server or context.get_start_method() == "fork")
    limits = Limits(inline=inline, most=places, kinds=(kind,))
    free = max(1, shared_cores(None, rank_cores())[0] - 1)  # what others of this process that are at work leave, less the loop's
    first = INLINE if limits.inline else Setting(kind, min(limits.most, free))
    return Autopilot(loader._ledger, options, rank_cores, limits, first, why_kind)


def note_streams(ledger: Ledger, workers: int) -> None:
    """Once: what was chosen for an iterable data set."""
    if not ledger.decided:
        chosen = Setting(Kind.PROCESS, workers)
        ledger.decided.append(Decided(0, str(chosen), chosen.workers, _STREAMS_STAY))


def _asks_for_more(loader: Any) -> bool:
    """Than loading: what only a worker that can be ended gives."""
    options: Options = loader._own_options
    limits_s = (options.sample_timeout_s, options.stall_report_s)
    by_default = (OWN_DEFAULTS["sample_timeout_s"], OWN_DEFAULTS["stall_report_s"])
    return options.forgives or options.hedge or limits_s != by_default or bool(loader.timeout > 0)


def places_for(kind: Kind, are_forked: bool) -> int:
    """For workers. Where they are processes, they have less than half of the files that may still be opened: others have theirs already,
    other loaders among them."""
    if kind is Kind.THREAD:
        return MOST_THREADS
    most = max(FEWER_PROCESSES, MOST_PROCESSES // ranks_here(os.environ)) if are_forked else FEWER_PROCESSES
    files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return most if files < 0 else max(1, min(most, (files - open_now()) // FILES_FOR_EACH))
