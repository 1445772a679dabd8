"""The options of `antifreeze run`: tables, no process."""

from __future__ import annotations

import inspect
import signal

import pytest

from antifreeze.choices import Choices
from antifreeze.errors import OptionError
from antifreeze.loader import DataLoader
from antifreeze.options import OWN_DEFAULTS
from antifreeze.running.command import python_flags
from antifreeze.running.reports import who
from antifreeze.running.settings import OPTIONS, SETTINGS, as_environment, read_settings, split_command_line, trace_path, unknown_variables
from antifreeze.torch_private import TorchDataLoader


def test_every_keyword_of_our_own_is_an_option_and_the_defaults_agree() -> None:
    torchs = inspect.signature(TorchDataLoader.__init__).parameters
    ours = {name: value.default for name, value in inspect.signature(DataLoader.__init__).parameters.items() if name not in torchs}
    ours.pop("in_order", None)  # an older torch has no such argument
    assert ours == OWN_DEFAULTS
    assert {setting.name for setting in OPTIONS} == set(ours)


@pytest.mark.parametrize(
    ("words", "ours", "theirs"),
    [
        (["train.py"], [], ["train.py"]),
        (["--workers", "2", "train.py", "--workers", "3"], ["--workers", "2"], ["train.py", "--workers", "3"]),
        (["--workers=2", "train.py"], ["--workers=2"], ["train.py"]),
        (["-m", "pack", "-m"], [], ["-m", "pack", "-m"]),
        (["-mpack"], [], ["-mpack"]),
        (["--", "train.py", "--", "x"], [], ["train.py", "--", "x"]),
        (["-"], [], ["-"]),
        (["--unknown", "train.py"], ["--unknown"], ["train.py"]),
        (["--workers"], ["--workers"], []),
        (["-h"], ["-h"], []),
        ([], [], []),
    ],
)
def test_where_the_script_begins(words: list[str], ours: list[str], theirs: list[str]) -> None:
    assert split_command_line(words) == (ours, theirs)


@pytest.mark.parametrize(
    ("name", "text", "value"),
    [
        ("on_bad_sample", "skip", "skip"),
        ("max_bad_samples", "5", 5),
        ("max_bad_samples", "0.01", 0.01),
        ("keep_batches_full", "no", False),
        ("sample_timeout_s", "1.5", 1.5),
        ("stall_report_s", "none", None),
        ("memory_budget", "4GiB", "4GiB"),
        ("memory_budget", "4096", 4096),
        ("max_restarts_per_minute", "3", 3),
        ("recycle_worker_after", "1000", 1000),
        ("workers", "thread", "thread"),
        ("concurrency", "8", 8),
        ("recycle_worker_after", "2GiB", "2GiB"),
        ("bad_samples_file", "bad.json", "bad.json"),
    ],
)
def test_texts_become_values(name: str, text: str, value: object) -> None:
    assert read_settings({name: text}, {}).options == {name: value}
    variable = next(setting.variable for setting in SETTINGS if setting.name == name)
    assert read_settings({}, {variable: text}).options == {name: value}


def test_the_command_line_stands_above_the_environment() -> None:
    settings = read_settings({"num_workers": "auto", "workers": "thread"}, {"ANTIFREEZE_WORKERS": "3", "ANTIFREEZE_ON_BAD_SAMPLE": "skip"})
    assert (settings.workers, settings.options) == ("auto", {"on_bad_sample": "skip", "workers": "thread"})


def test_the_signal() -> None:
    assert read_settings({}, {}).report_signal == signal.SIGUSR1
    assert read_settings({}, {"SLURM_JOB_ID": "7"}).report_signal is None, "SLURM and what runs under it use it themselves"
    assert read_settings({"report_signal": "usr2"}, {"SLURM_JOB_ID": "7"}).report_signal == signal.SIGUSR2
    assert read_settings({"report_signal": "none"}, {}).report_signal is None
    with pytest.raises(OptionError, match="--report-signal 1000"):
        read_settings({"report_signal": "1000"}, {})


def test_files_are_handed_on_by_their_whole_path() -> None:
    words = {"bad_samples_file": "bad.json", "report": "out.json", "on_bad_sample": "skip"}
    assert as_environment(words, lambda path: f"/whole/{path}") == {
        "ANTIFREEZE_BAD_SAMPLES_FILE": "/whole/bad.json",
        "ANTIFREEZE_REPORT": "/whole/out.json",
        "ANTIFREEZE_ON_BAD_SAMPLE": "skip",
    }
    assert as_environment({"report": "none"}, lambda path: f"/whole/{path}") == {"ANTIFREEZE_REPORT": "none"}


def test_who_reports() -> None:
    assert who({"RANK": "3", "LOCAL_RANK": "1"}, 8) == "rank 3, "
    assert who({"LOCAL_RANK": "1", "ANTIFREEZE_RUN_PID": "7"}, 8) == "local rank 1, "
    assert who({"ANTIFREEZE_RUN_PID": "7"}, 8) == "process 8, "
    assert who({"ANTIFREEZE_RUN_PID": "7"}, 7) == who({}, 8) == ""


def test_each_process_has_its_own_trace() -> None:
    assert trace_path("/a.b/out.json", {"ANTIFREEZE_RUN_PID": "7"}, 7) == "/a.b/out.json"
    assert trace_path("/a.b/out.json", {"ANTIFREEZE_RUN_PID": "7"}, 8) == "/a.b/out.8.json"
    assert trace_path("/a.b/out", {"RANK": "3"}, 8) == "/a.b/out.rank3"


def test_unknown_variables() -> None:
    assert unknown_variables({"ANTIFREEZE_WORKERS": "1", "ANTIFREEZE_RUN": "/", "ANTIFREEZE_WORKER": "1", "PATH": ""}) == [
        "ANTIFREEZE_WORKER"
    ]


def test_without_workers_what_contradicts_it_is_left_out() -> None:
    given = {"num_workers": 4, "prefetch_factor": 3, "persistent_workers": True, "timeout": 5, "multiprocessing_context": "spawn", "x": 1}
    assert Choices(workers=0).with_workers(given, iterable=False) == {
        "num_workers": 0,
        "prefetch_factor": None,
        "persistent_workers": False,
        "timeout": 0,
        "multiprocessing_context": None,
        "x": 1,
    }
    assert Choices(workers=2).with_workers(given, iterable=False) == {**given, "num_workers": 2}
    assert Choices(workers=2).with_workers(given, iterable=True) == given
    assert Choices().with_workers(given, iterable=False) == given


@pytest.mark.parametrize(
    ("words", "flags"),
    [
        (["-m", "antifreeze", "run", "x.py"], []),
        (["-u", "-m", "antifreeze"], ["-u"]),
        (["-X", "dev", "-um", "antifreeze", "run"], ["-X", "dev", "-u"]),
        (["-OXdev", "-W", "error", "/bin/antifreeze", "run", "-u"], ["-OXdev", "-W", "error"]),
        (["-OX", "dev", "/bin/antifreeze"], ["-OX", "dev"]),
        (["--check-hash-based-pycs", "always", "-mantifreeze"], ["--check-hash-based-pycs", "always"]),
        ([], []),
    ],
)
def test_what_python_itself_was_given(words: list[str], flags: list[str]) -> None:
    assert python_flags(words) == flags
