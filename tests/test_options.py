"""Our keyword arguments at the door: what is taken, and what is refused by name."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from antifreeze.errors import AntifreezeError, OptionError
from antifreeze.options import OnBadSample, Options, StreamChoice, UnevenChoice, parse_bytes

GOOD: dict[str, Any] = {
    "on_bad_sample": "raise",
    "max_bad_samples": None,
    "keep_batches_full": True,
    "sample_timeout_s": 300,
    "stall_report_s": 30,
    "memory_budget": None,
    "max_restarts_per_minute": 30,
    "recycle_worker_after": None,
    "hedge": False,
    "uneven_ranks": "error",
    "lost_stream": "replay",
    "story_file": None,
    "bad_samples_file": None,
    "quarantine": None,
}
nan, infinity = float("nan"), float("inf")


def checked(**given: Any) -> Options:
    return Options.checked(**GOOD | given)


@pytest.mark.parametrize(
    ("given", "field", "expected"),
    [
        ({"on_bad_sample": "skip"}, "on_bad_sample", OnBadSample.SKIP),
        ({"on_bad_sample": OnBadSample.REPLACE}, "on_bad_sample", OnBadSample.REPLACE),
        ({"on_bad_sample": print}, "on_bad_sample", print),
        ({"max_bad_samples": 0}, "max_bad_samples", 0),
        ({"max_bad_samples": 7}, "max_bad_samples", 7),
        ({"max_bad_samples": 0.25}, "max_bad_samples", 0.25),
        ({"max_bad_samples": 1.0}, "max_bad_samples", 1.0),
        ({"keep_batches_full": False}, "keep_batches_full", False),
        ({"sample_timeout_s": 1}, "sample_timeout_s", 1.0),
        ({"sample_timeout_s": None}, "sample_timeout_s", None),
        ({"stall_report_s": 0.5}, "stall_report_s", 0.5),
        ({"stall_report_s": None}, "stall_report_s", None),
        ({"memory_budget": 4096}, "memory_budget_bytes", 4096),
        ({"memory_budget": "512MiB"}, "memory_budget_bytes", 512 << 20),
        ({"max_restarts_per_minute": 0}, "max_restarts_per_minute", 0),
        ({"recycle_worker_after": 1000}, "recycle_after_samples", 1000),
        ({"recycle_worker_after": 1000}, "recycle_after_bytes", None),
        ({"recycle_worker_after": "2GB"}, "recycle_after_bytes", 2 * 10**9),
        ({"recycle_worker_after": "2GB"}, "recycle_after_samples", None),
        ({"bad_samples_file": Path("bad.jsonl")}, "bad_samples_file", "bad.jsonl"),
        ({"quarantine": None}, "quarantined", frozenset()),
        ({"hedge": True}, "hedge", True),
        ({"uneven_ranks": "trim"}, "uneven_ranks", UnevenChoice.TRIM),
        ({"lost_stream": "continue"}, "lost_stream", StreamChoice.CONTINUE),
        ({"story_file": Path("story.txt")}, "story_file", "story.txt"),
    ],
)
def test_what_is_taken(given: dict[str, Any], field: str, expected: Any) -> None:
    assert getattr(checked(**given), field) == expected


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("on_bad_sample", ["ignore", "", None, 1, True, ["skip"], {}]),
        ("max_bad_samples", [-1, 1.5, -0.1, nan, "3", True, [1]]),
        ("keep_batches_full", [1, 0, "yes", None]),
        ("sample_timeout_s", [0, -1, nan, "60", True, [1], 10**400]),
        ("stall_report_s", [0, -0.5, nan, "30", False, -infinity]),
        ("memory_budget", [0, -1, 1.5, "", "GiB", "4 XB", "-4GB", "4,000", "0", "0.0GiB", "0.2", "1e9", True, [4], "9" * 400]),
        ("max_restarts_per_minute", [-1, 1.0, "30", None, True]),
        ("recycle_worker_after", [0, -5, 2.5, "many", True]),
        ("hedge", [1, 0, "yes", None]),
        ("uneven_ranks", ["skip", "", None, 1, True, ["trim"]]),
        ("lost_stream", ["raise", None, True, 0]),
        ("story_file", [1, True, ["x"]]),
        ("bad_samples_file", [1, True, ["x"]]),
        ("quarantine", [1, ["x"], "/no/such/file"]),
    ],
)
def test_what_is_refused_is_named_with_its_value(name: str, values: list[Any]) -> None:
    assert name in GOOD
    for value in values:
        with pytest.raises(OptionError, match=name) as refused:
            print(name, repr(value)[:60], checked(**{name: value}))
        assert f"{name}={value!r}" in str(refused.value)


def test_recycling_is_by_samples_or_by_memory() -> None:
    with pytest.raises(
        OptionError, match=r'recycle_worker_after=0: expected a number of samples \(an int above 0\), or memory such as "2GiB"'
    ):
        checked(recycle_worker_after=0)


def test_an_option_error_is_a_value_error() -> None:
    assert issubclass(OptionError, ValueError)
    assert issubclass(OptionError, AntifreezeError)


@settings(deadline=None, derandomize=True, database=None)
@given(st.integers(1, 10**6), st.sampled_from(["", "B", "kb", "KiB", "MB", "MiB", "GB", "gib", "TB", "TiB"]), st.sampled_from(["", " "]))
def test_sizes_may_be_written_as_people_write_them(number: int, unit: str, gap: str) -> None:
    factor = (1024 if "i" in unit else 1000) ** ("kmgt".find(unit[:1].lower()) + 1 if unit not in ("", "B") else 0)
    assert parse_bytes("x", f"{number}{gap}{unit}") == number * factor
    assert parse_bytes("x", number) == number


def test_only_raise_does_not_forgive() -> None:
    assert [checked(on_bad_sample=choice).forgives for choice in ("raise", "skip", "replace", print)] == [False, True, True, True]


def test_options_are_frozen_and_equal_by_value() -> None:
    assert checked() == checked() == Options()
    with pytest.raises(AttributeError):
        checked().sample_timeout_s = 1  # type: ignore[misc]


# --- quarantine -------------------------------------------------------------------------------------------------------


def test_a_quarantine_is_what_an_earlier_run_wrote(tmp_path: Path) -> None:
    path = tmp_path / "bad.jsonl"
    path.write_text("".join(json.dumps({"index": index, "seed": 1}) + "\n" for index in ["3", "'a.jpg'", "3"]))
    assert checked(quarantine=path).quarantined == {"3", "'a.jpg'"}


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b'{"index": "1"}\n[1]\n', "line 2"),
        (b'{"index": "1"}\n{"row": 1}\n', "line 2"),
        (b"not json\n", "line 1"),
        (b'{"index": "1"}\n\xff\xfe\n', "quarantine"),
        (b"\xff\xfe", "quarantine"),
    ],
)
def test_a_quarantine_that_is_something_else_is_refused(tmp_path: Path, content: bytes, says: str) -> None:
    path = tmp_path / "bad.jsonl"
    path.write_bytes(content)
    with pytest.raises(OptionError, match=says):
        checked(quarantine=path)
