"""What `from antifreeze import …` may rely on. Adding a name is a promise; removing one breaks somebody's program."""

from __future__ import annotations

import subprocess
import sys

import antifreeze

PUBLIC = [
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


def test_the_public_names_are_these() -> None:
    assert sorted(antifreeze.__all__) == PUBLIC


def test_every_public_name_is_there() -> None:
    assert [name for name in antifreeze.__all__ if not hasattr(antifreeze, name)] == []


def test_every_public_name_is_listed_and_nothing_else_is_there() -> None:
    assert set(PUBLIC) <= set(dir(antifreeze))
    assert not hasattr(antifreeze, "no_such_name")


def test_nothing_is_imported_before_it_is_used() -> None:
    program = """if True:
        import sys, antifreeze, antifreeze.cli, antifreeze.doctor.command, antifreeze.selftest.command
        assert not {"torch", "numpy"} & set(sys.modules)
        antifreeze.DataLoader
        assert "torch" in sys.modules
    """
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=150, check=False)
    assert done.returncode == 0, done.stderr
