"""What `from antifreeze import …` may rely on. Adding a name is a promise; removing one breaks somebody's program."""

from __future__ import annotations

import antifreeze

PUBLIC = [
    "AntifreezeError",
    "AntifreezeWarning",
    "BadSample",
    "BatchNotPicklable",
    "BatchTooLarge",
    "DataLoader",
    "LoaderClosed",
    "LoaderGaveUp",
    "LoaderTimeout",
    "LoadingError",
    "OptionError",
    "Report",
    "SampleLost",
    "SampleTimeout",
    "StateMismatch",
    "TooManyBadSamples",
    "WorkerStartFailed",
    "__version__",
]


def test_the_public_names_are_these() -> None:
    assert sorted(antifreeze.__all__) == PUBLIC


def test_every_public_name_is_there() -> None:
    assert [name for name in antifreeze.__all__ if not hasattr(antifreeze, name)] == []
