"""antifreeze: PyTorch data loading that does not freeze, says why when anything stalls, and feeds the accelerator at full speed.

loader      DataLoader: torch's arguments, our iterator
report      what a loader did so far, with a verdict
delivery    from resolved batches to the user's loop, in order
tuning      the cores and the memory we really have
supervisor  decides what workers do (pure), then acts
worker      runs in the child: fetches samples, writes rows or parcels
caching     samples of slow storage, kept in local files
batching    samples of different lengths: padded, joined, in batches of those about as long
slots       shared memory: one anonymous file, slots used again and again
channel     messages between the parent and one worker
running     an unchanged script, or a notebook, with our loader
plan        which samples make which batch, and where we are
doctor      why is it frozen, why is it slow
checks      what will go wrong, before the run
profiling   how many workers, and what each stage costs
selftest    the diseases, to be run on any machine

A name is imported when it is first used: `antifreeze --help` and `antifreeze doctor` start without torch.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from antifreeze.batching.by_length import BatchesByLength
    from antifreeze.batching.join import Join
    from antifreeze.batching.pad import Pad
    from antifreeze.batching.stream_by_length import StreamByLength
    from antifreeze.caching.cached import cached
    from antifreeze.checks.checked import check
    from antifreeze.errors import (
        AntifreezeError,
        AntifreezeWarning,
        BadSample,
        BatchNotPicklable,
        BatchTooLarge,
        DescriptorsClosed,
        LoaderClosed,
        LoaderGaveUp,
        LoaderTimeout,
        LoadingError,
        OptionError,
        SampleLost,
        SampleTimeout,
        StaleCache,
        StateMismatch,
        TooManyBadSamples,
        TraceError,
        UnevenRanks,
        WorkerStartFailed,
    )
    from antifreeze.lengths import lengths_of
    from antifreeze.loader import DataLoader
    from antifreeze.report import Report
    from antifreeze.tracing import trace

__version__ = "0.1.0"

__all__ = [
    "AntifreezeError",
    "AntifreezeWarning",
    "BadSample",
    "BatchNotPicklable",
    "BatchTooLarge",
    "BatchesByLength",
    "DataLoader",
    "DescriptorsClosed",
    "Join",
    "LoaderClosed",
    "LoaderGaveUp",
    "LoaderTimeout",
    "LoadingError",
    "OptionError",
    "Pad",
    "Report",
    "SampleLost",
    "SampleTimeout",
    "StaleCache",
    "StateMismatch",
    "StreamByLength",
    "TooManyBadSamples",
    "TraceError",
    "UnevenRanks",
    "WorkerStartFailed",
    "__version__",
    "cached",
    "check",
    "lengths_of",
    "trace",
]

_HOMES = {
    "BatchesByLength": "antifreeze.batching.by_length",
    "DataLoader": "antifreeze.loader",
    "Join": "antifreeze.batching.join",
    "Pad": "antifreeze.batching.pad",
    "Report": "antifreeze.report",
    "StreamByLength": "antifreeze.batching.stream_by_length",
    "cached": "antifreeze.caching.cached",
    "check": "antifreeze.checks.checked",
    "lengths_of": "antifreeze.lengths",
    "trace": "antifreeze.tracing",
}
"""Where a public name is defined, if not in antifreeze.errors."""


if not TYPE_CHECKING:  # a type checker must see the names above, and no others

    def __getattr__(name: str) -> Any:
        if name not in __all__:
            raise AttributeError(f"module 'antifreeze' has no attribute {name!r}")
        from importlib import import_module

        value = getattr(import_module(_HOMES.get(name, "antifreeze.errors")), name)
        globals()[name] = value  # the next use finds it here
        return value


def load_ipython_extension(shell: Any) -> None:
    """`%load_ext antifreeze`"""
    from antifreeze.running.notebook import load

    load(shell)


def unload_ipython_extension(shell: Any) -> None:
    """`%unload_ext antifreeze`"""
    from antifreeze.running.notebook import unload

    unload(shell)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
