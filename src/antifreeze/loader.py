"""`antifreeze.DataLoader`: torch's DataLoader by arguments and behaviour, on our own iterator."""

from __future__ import annotations

import os
import warnings
import weakref
from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import partial
from typing import Any, TypeVar

import torch
from torch.utils.data import Dataset, IterableDataset, Sampler

from antifreeze import choices
from antifreeze.delivery.asking import sampler_within
from antifreeze.delivery.autopilot import Autopilot
from antifreeze.delivery.choosing import choose_kind, new_autopilot, note_streams
from antifreeze.delivery.iterator import LoaderIterator
from antifreeze.delivery.ledger import Ledger
from antifreeze.delivery.likeness import attributes, likeness
from antifreeze.delivery.next_epoch import NextEpoch
from antifreeze.delivery.parking import Parking, end_pool
from antifreeze.delivery.position import Cursor, check_fits, fresh_state
from antifreeze.delivery.ranks import Ranks, made_at, watch_ranks
from antifreeze.delivery.story_file import write_story
from antifreeze.delivery.stream_ranks import StreamRanks, watch_stream_ranks
from antifreeze.delivery.traps import Traps
from antifreeze.errors import OptionError, OptionTypeError, StateMismatch
from antifreeze.linux import missing
from antifreeze.living import living
from antifreeze.options import OWN_DEFAULTS, Options, WorkerKind
from antifreeze.plan.randomness import own_generators, set_generator_states
from antifreeze.report import Report
from antifreeze.slots.ring import Ring
from antifreeze.supervisor.pool import Pool
from antifreeze.supervisor.process import see_off_left_behind
from antifreeze.torch_private import TORCH_ARGUMENTS, TorchDataLoader, is_datapipe, is_iterable_kind
from antifreeze.tuning.cores import auto_workers, rank_cores, usable_cores
from antifreeze.worker.as_found import AsFound
from antifreeze.worker.turns import Usage

_T_co = TypeVar("_T_co", covariant=True)
_warned_of_platform = False


class DataLoader(TorchDataLoader[_T_co]):
    """A drop-in for `torch.utils.data.DataLoader`: the same arguments in the same order, and our own by keyword.

    num_workers="auto"  as many workers as help, or none, measured and adapted as it runs; they stay between epochs
    on_bad_sample       "raise" (default), "skip", "replace", or a callable (index, error) that returns one of them
    max_bad_samples     how many may be skipped or replaced per epoch: a count, or a fraction of the data set
    keep_batches_full   with "skip": the next samples move up (default), or batches come short, as those of streams do among ranks
    sample_timeout_s    a sample that takes longer is bad, and its worker is replaced (default 300; None: no limit)
    stall_report_s      after this long without a batch, what everybody is doing is printed (default 30; None: never)
    warm_epochs         where workers stay, the first batches of the next epoch are loaded while the last ones of this one are used, and
                        dropped if it turns out otherwise than foreseen (default True; False for data sets that read what your code
                        writes between epochs, such as files: docs/decisions/0011)
    memory_budget       bytes that batches in flight may take, such as "4GiB"
    max_restarts_per_minute   workers that may be replaced before the loader gives up (default 30)
    recycle_worker_after      samples (an int) or private memory ("2GiB") after which a worker makes room for a fresh one
    hedge               True: a sample or batch that takes far longer than the others is loaded a second time by a worker that has
                        nothing to do; the first result is used, order and bytes stay the same (default False)
    workers             "process" (default), or "thread": workers are threads of this process. They share the data set, start at once and
                        hand over batches as they are; a stuck one can only be left behind. For data sets that wait (reads, requests)
                        or compute outside the GIL; docs/threads.md has the rest
    concurrency         of a data set whose __getitem__ is `async def`: how many samples a worker (or, without workers, this process)
                        waits for at a time (default 32)
    uneven_ranks        where ranks of a process group have different numbers of batches: "error" (default; a warning where gradients
                        are off), "trim" (all end with the first), "pad" (the others repeat some), "ignore"
    lost_stream         how an iterable data set without state_dict() goes on after its worker died, and in a resumed run: "replay"
                        (default: drawn again, what was delivered is left out), or, for what is endless or does not repeat itself,
                        "continue" (with whatever a new iterator gives; what the worker had drawn and not delivered is lost)
    story_file          a file to which what had happened (stalls, deaths, deadlines) is appended when an error leaves the loader
    bad_samples_file    a file to which every bad sample is appended as a line of JSON; `antifreeze replay FILE` runs them again
    quarantine          such a file of an earlier run: its samples are left out
    """

    def __init__(
        self,
        dataset: Dataset[_T_co],
        batch_size: int | None = 1,
        shuffle: bool | None = None,
        sampler: Sampler[Any] | Iterable[Any] | None = None,
        batch_sampler: Sampler[list[Any]] | Iterable[list[Any]] | None = None,
        num_workers: int | str = 0,
        collate_fn: Callable[[list[Any]], Any] | None = None,
        pin_memory: bool = False,
        drop_last: bool = False,
        timeout: float = 0,
        worker_init_fn: Callable[[int], None] | None = None,
        multiprocessing_context: Any = None,
        generator: torch.Generator | None = None,
        *,
        prefetch_factor: int | None = None,
        persistent_workers: bool = False,
        pin_memory_device: str = "",
        in_order: bool = True,
        on_bad_sample: str | Callable[[Any, BaseException], str] = "raise",
        max_bad_samples: int | float | None = None,
        keep_batches_full: bool = True,
        sample_timeout_s: float | None = 300.0,
        stall_report_s: float | None = 30.0,
        memory_budget: int | str | None = None,
        max_restarts_per_minute: int = 30,
        recycle_worker_after: int | str | None = None,
        hedge: bool = False,
        warm_epochs: bool = True,
        workers: str = "process",
        concurrency: int = 32,
        device: str | torch.device | None = None,
        uneven_ranks: str = "error",
        lost_stream: str = "replay",
        story_file: str | os.PathLike[str] | None = None,
        bad_samples_file: str | os.PathLike[str] | None = None,
        quarantine: str | os.PathLike[str] | None = None,
    ) -> None:
        chosen = choices.current()
        own_arguments = {
            "on_bad_sample": on_bad_sample,
            "max_bad_samples": max_bad_samples,
            "keep_batches_full": keep_batches_full,
            "sample_timeout_s": sample_timeout_s,
            "stall_report_s": stall_report_s,
            "memory_budget": memory_budget,
            "max_restarts_per_minute": max_restarts_per_minute,
            "recycle_worker_after": recycle_worker_after,
            "hedge": hedge,
            "warm_epochs": warm_epochs,
            "workers": workers,
            "concurrency": concurrency,
            "device": device,
            "uneven_ranks": uneven_ranks,
            "lost_stream": lost_stream,
            "story_file": story_file,
            "bad_samples_file": bad_samples_file,
            "quarantine": quarantine,
        }
        self._own_options = Options.checked(**chosen.fill(own_arguments, OWN_DEFAULTS))
        if self._own_options.workers is WorkerKind.THREAD:
            _check_threads(dataset, multiprocessing_context)
        if self._own_options.quarantined and isinstance(dataset, IterableDataset):
            warnings.warn(
                f"quarantine: {type(dataset).__name__} is an iterable data set, of which no sample can be left out by its index; "
                'all of it is loaded, and on_bad_sample="skip" leaves out what turns out bad',
                stacklevel=2,
            )
            self._own_options = replace(self._own_options, quarantined=frozenset())
        self._why_kind = ""
        self._generator_usage: Usage | None = None
        self._prefetch_asked = prefetch_factor is not None
        self._rows_failed = False
        self._fork_is_unsafe = False
        self._ledger = Ledger()
        self._traps = Traps(usable_cores)
        self._as_found = AsFound()
        self._made_at = made_at()
        self._watched_ranks: Ranks | None = None
        self._stream_ranks: StreamRanks | None = None
        self._spare_ring: Ring | None = None
        self._auto_workers: int | None = None
        self._pilot: Autopilot | None = None
        self._parking = Parking()
        self._resume_state: dict[str, Any] | None = None
        self._open_iterators: weakref.WeakSet[Any] = weakref.WeakSet()
        self._latest_cursor: Cursor | None = None
        torch_arguments = {
            "batch_size": batch_size,
            "shuffle": shuffle,
            "sampler": sampler,
            "batch_sampler": batch_sampler,
            "num_workers": num_workers,
            "collate_fn": collate_fn,
            "pin_memory": pin_memory,
            "drop_last": drop_last,
            "timeout": timeout,
            "worker_init_fn": worker_init_fn,
            "multiprocessing_context": multiprocessing_context,
            "generator": generator,
            "prefetch_factor": prefetch_factor,
            "persistent_workers": persistent_workers,
            "pin_memory_device": pin_memory_device,
            "in_order": in_order,
        }
        torch_arguments = chosen.with_workers(torch_arguments, isinstance(dataset, IterableDataset))
        is_auto = torch_arguments["num_workers"] == "auto"
        torch_arguments["num_workers"] = _count_workers(torch_arguments["num_workers"])
        self._auto_workers = torch_arguments["num_workers"] if is_auto else None
        super().__init__(dataset, **{name: value for name, value in torch_arguments.items() if name in TORCH_ARGUMENTS})
        self.in_order = in_order
        if chosen.on_made is not None:
            chosen.on_made(self)

    # --- iterating ---

    def _get_iterator(self) -> Any:
        if not _platform_allows():
            return super()._get_iterator()
        if self.num_workers and self._own_options.workers is WorkerKind.AUTO:
            kind, self._why_kind = choose_kind(self)
            self._own_options = replace(self._own_options, workers=kind)
        if self.num_workers and not self._is_auto:
            self.check_worker_number_rationality()
        see_off_left_behind()
        iterator = LoaderIterator(self)
        self._open_iterators.add(iterator)
        return iterator

    def check_worker_number_rationality(self) -> None:
        """torch's own word about more workers than cores is for processes: threads may well be many, and wait."""
        if self._own_options.workers is not WorkerKind.THREAD:
            super().check_worker_number_rationality()

    def __iter__(self) -> Any:
        try:
            iterator = super().__iter__()
            self._resume_state = None  # not before: what is broken off begins again from there
        except KeyboardInterrupt as stop:
            stop.__suppress_context__ = True  # as in next(): whatever it fell into is ours
            raise
        except Exception as error:
            if self._own_options.story_file is not None:
                write_story(self._own_options.story_file, error, self._ledger.story)
            raise
        self._latest_cursor = getattr(iterator, "cursor", None)
        return iterator

    def close(self) -> None:
        """Ends all workers and frees all shared memory that no batch holds; the loader can be iterated again. May be called twice."""
        see_off_left_behind()
        for iterator in living(self._open_iterators):
            iterator.close()
        self._open_iterators.clear()
        self._iterator = None
        self._parking.end()
        if self._spare_ring is not None:
            self._spare_ring.close()
            self._spare_ring = None

    def __enter__(self) -> DataLoader[_T_co]:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __getstate__(self) -> dict[str, Any]:
        """A copy is a loader of its own: it shares no workers, no memory and no counts with this one."""
        fresh = {"_ledger": Ledger(), "_traps": Traps(usable_cores), "_as_found": AsFound(), "_parking": Parking()}
        return {
            **self.__dict__,
            **fresh,
            **dict.fromkeys(
                (
                    "_watched_ranks",
                    "_stream_ranks",
                    "_spare_ring",
                    "_open_iterators",
                    "_latest_cursor",
                    "_pilot",
                    "_generator_usage",
                )
            ),
        }

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self.__dict__["_open_iterators"] = weakref.WeakSet()

    # --- what it did ---

    def report(self) -> Report:
        """Where the time went, what was skipped and why, and one verdict; of all epochs so far."""
        made = self._reporter(self.dataset)()
        lacking = missing()
        return replace(made, verdict=f"not measured: torch's own iterators are at work, as {lacking}") if lacking else made

    def _reporter(self, dataset: Any = None) -> Callable[[], Report]:
        """Makes the report, and holds nothing of the loader that would keep it alive (but `dataset`, where it is given)."""
        stay = self.persistent_workers or (self._pilot is not None and self.worker_init_fn is None)
        more = {"persistent": stay, "dataset": dataset, "quarantined": len(self._own_options.quarantined)}
        return partial(Report.of, self._ledger, self.num_workers, rank_cores(), **more)

    def __repr__(self) -> str:
        workers = f"{self.num_workers} workers" if self.num_workers else "no workers"
        if self._is_auto:
            workers = f'num_workers="auto" ({self._ledger.decided[-1].setting} now)' if self._ledger.decided else 'num_workers="auto"'
        timing = self._ledger.timing
        return (
            f"<antifreeze.DataLoader over {type(self.dataset).__name__}: batch_size={self.batch_size}, {workers}, "
            f"{timing.batches:,} batches delivered in {timing.epochs} epochs>"
        )

    # --- position ---

    def state_dict(self) -> dict[str, Any]:
        """Where the latest iteration is: what was delivered of it, and all that is needed to go on with the same bytes."""
        lacking = missing()
        if lacking:
            raise StateMismatch(f"state_dict() is not available here: {lacking}, so torch's own iterators are at work, which have none")
        if self._resume_state is not None:
            return dict(self._resume_state)
        return (
            fresh_state(self)
            if self._latest_cursor is None
            else self._latest_cursor.state(own_generators(self.generator, self._index_sampler))
        )

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """The next iter(loader) goes on where the state was taken; a state of a finished epoch begins the next one."""
        if not state_dict:  # as torchdata has it: nothing to go on from
            self._resume_state = None
            return
        self._go_back_to(state_dict)
        self._resume_state = dict(state_dict)

    def _go_back_to(self, state_dict: dict[str, Any]) -> None:
        """Generators and sampler are what they were, if it fits."""
        check_fits(state_dict, self)
        set_generator_states(own_generators(self.generator, self._index_sampler), state_dict["generators"])
        sampler: Any = sampler_within(self._index_sampler)
        if state_dict.get("sampler_state_at_end") is not None and hasattr(sampler, "load_state_dict"):
            sampler.load_state_dict(state_dict["sampler_state_at_end"])
        if state_dict["sampler_epoch"] is not None and hasattr(sampler, "set_epoch"):
            sampler.set_epoch(state_dict["sampler_epoch"])
            self._traps.resumes_in(sampler, state_dict["sampler_epoch"], state_dict["finished"])

    def _resume_states(self) -> tuple[dict[str, Any] | None, dict[str, Any] | None]:
        """(what the next iteration goes on from, whose seeds it uses): a finished epoch only hands on the seeds that
        persistent workers would have kept."""
        state = self._resume_state
        if state is None or not state["finished"]:
            return state, state
        return None, state if self.persistent_workers and "base_seed" in state else None

    # --- what iterators borrow ---

    def _watch_ranks(self, rank: int, world_size: int) -> Ranks | None:
        if self._watched_ranks is None:
            self._watched_ranks = watch_ranks(
                self, self._own_options.uneven_ranks, rank, world_size, lambda text: self._traps.say("ranks", text)
            )
        return self._watched_ranks

    def _watch_stream_ranks(self, rank: int, world_size: int) -> StreamRanks | None:
        if self._stream_ranks is None:
            given = (self._own_options.uneven_ranks, rank, world_size, lambda text: self._traps.say("ranks", text))
            self._stream_ranks = watch_stream_ranks(self, *given)
        return self._stream_ranks

    @property
    def _is_auto(self) -> bool:
        """As it was made; somebody who sets another num_workers later means that number."""
        return self._auto_workers is not None and self.num_workers == self._auto_workers

    def _autopilot(self, ranked: bool) -> Autopilot | None:
        """Whoever decides how many workers there are, where that may change as it runs."""
        if not self._is_auto:
            return None
        if is_iterable_kind(self) or is_datapipe(self.dataset):
            note_streams(self._ledger, self.num_workers)
            return None
        if self._pilot is None:
            self._pilot = new_autopilot(self, ranked, self._why_kind)
        return self._pilot

    def _park(self, pool: Pool, next_epoch: NextEpoch | None, at_first: tuple[Any, ...]) -> None:
        """`at_first`: attributes of the data set when this epoch began. Where the loop has changed one since, the copies that the workers
        have are old."""
        if at_first == self._attributes():
            self._parking.take_in(pool, next_epoch, self._looks())
        else:
            end_pool(pool.ring.holder, pool.crew, pool.ring)

    def _find_parked(self) -> tuple[Pool | None, NextEpoch | None]:
        return self._parking.find(self._looks)

    def _looks(self) -> tuple[Any, ...]:
        """What workers have a copy of, as far as a short look tells it from another one."""
        return likeness(self.dataset), self.collate_fn

    def _attributes(self) -> tuple[Any, ...]:
        """Of the data set as workers are given it; threads share it, and have nothing that could be old."""
        if self._own_options.workers is WorkerKind.THREAD:
            return ()
        with self._as_found.hidden():
            return attributes(self.dataset)

    def _borrow_ring(self) -> Ring:
        ring, self._spare_ring = self._spare_ring, None
        if ring is not None:
            ring.holder = None  # who had it before has no say any more
        if ring is not None and not ring.arena.is_whole():
            ring.close()
        return Ring() if ring is None or ring.closed else ring

    def _return_ring(self, ring: Ring) -> None:
        if self._spare_ring is ring:
            return
        if self._spare_ring is None and not ring.closed and os.getpid() == ring.owner_pid:
            self._spare_ring = ring
        else:
            ring.close()

    def _known_usage(self) -> Usage:
        """What threads have found out about random generators; kept from epoch to epoch."""
        if self._generator_usage is None:
            self._generator_usage = Usage()
        return self._generator_usage

    def _start_context(self) -> tuple[Any, bool]:
        """(the context, whether workers come from the clean server): the user's context is honoured. Python's own default of
        forkserver (3.14) wants everything picklable and the main module importable; the clean server does not."""
        if self.multiprocessing_context is not None:
            return self.multiprocessing_context, False
        by_default = torch.multiprocessing.get_start_method() == "forkserver"
        return torch.multiprocessing, by_default or self._fork_is_unsafe


def _check_threads(dataset: Any, multiprocessing_context: Any) -> None:
    """What cannot be had with workers="thread"."""
    if multiprocessing_context is not None:
        raise OptionError(f'multiprocessing_context={multiprocessing_context!r} is for worker processes, and workers="thread" starts none')
    if is_datapipe(dataset):
        raise OptionError(f'workers="thread": {type(dataset).__name__} is a DataPipe, which only one thread may use; say workers="process"')


def _count_workers(num_workers: int | str) -> int:
    if num_workers == "auto":
        return auto_workers()
    if isinstance(num_workers, str):
        raise OptionTypeError(f'num_workers={num_workers!r}: expected an int of 0 or more, or "auto"')
    return num_workers


def _platform_allows() -> bool:
    """Linux with memfd and Unix sockets; elsewhere torch's own iterators serve, and one warning says what is missing."""
    global _warned_of_platform
    lacking = missing()
    if lacking and not _warned_of_platform:
        _warned_of_platform = True
        warnings.warn(
            f"antifreeze works through torch's own iterators here, without supervision, resume and shared slots: {lacking}", stacklevel=4
        )
    return not lacking
