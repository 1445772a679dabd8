"""The options of `antifreeze run`: one table for the command line, the environment and the notebook. Pure.

--sample-timeout 60   ·   ANTIFREEZE_SAMPLE_TIMEOUT=60   ·   %antifreeze --sample-timeout 60
"""

from __future__ import annotations

import signal
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from antifreeze.choices import Choices
from antifreeze.errors import OptionError
from antifreeze.options import Options

PREFIX = "ANTIFREEZE_"
MARK = "ANTIFREEZE_RUN"
"""Holds the sys.prefix of the Python that `antifreeze run` started: another Python that inherits the environment is left alone."""

FIRST = "ANTIFREEZE_RUN_PID"
"""The process that `antifreeze run` became; others inherited its environment."""


@dataclass(frozen=True)
class Setting:
    """`name` is our keyword argument where the setting is one."""

    name: str
    flag: str
    metavar: str
    help: str
    read: Callable[[str], Any]

    @property
    def variable(self) -> str:
        return PREFIX + self.flag[2:].replace("-", "_").upper()


def _text(text: str) -> str:
    return text


def _number_or_none(text: str) -> float | None:
    return None if text.lower() == "none" else float(text)


def _count_or_fraction(text: str) -> int | float:
    return float(text) if "." in text or "e" in text.lower() else int(text)


def _count_or_text(text: str) -> int | str:
    return int(text) if text.isdecimal() else text


def _flag(text: str) -> bool:
    return {"yes": True, "true": True, "1": True, "no": False, "false": False, "0": False}[text.lower()]


def _workers(text: str) -> int | str:
    if text == "auto":
        return text
    count = int(text)
    if count < 0:
        raise ValueError
    return count


def _signal(text: str) -> int | None:
    """ "USR2", "SIGUSR2", a number, or none."""
    if text.lower() == "none":
        return None
    if text.isdecimal():
        return int(signal.Signals(int(text)))
    return int(signal.Signals["SIG" + text.upper().removeprefix("SIG")])


OPTIONS = (
    Setting("on_bad_sample", "--on-bad-sample", "raise|skip|replace", "what is done about a bad sample", _text),
    Setting("max_bad_samples", "--max-bad-samples", "N|FRACTION", "how many may be skipped or replaced per epoch", _count_or_fraction),
    Setting("keep_batches_full", "--keep-batches-full", "yes|no", "with skip: other samples move up, or batches come short", _flag),
    Setting("sample_timeout_s", "--sample-timeout", "SECONDS|none", "a sample that takes longer is bad", _number_or_none),
    Setting(
        "stall_report_s",
        "--stall-report",
        "SECONDS|none",
        "after this long without a batch, what everybody does is printed",
        _number_or_none,
    ),
    Setting("memory_budget", "--memory-budget", "BYTES", "what batches in flight may take, such as 4GiB", _count_or_text),
    Setting("max_restarts_per_minute", "--max-restarts-per-minute", "N", "workers that may be replaced before the loader gives up", int),
    Setting(
        "recycle_worker_after", "--recycle-worker-after", "N|BYTES", "samples or memory after which a worker is replaced", _count_or_text
    ),
    Setting("hedge", "--hedge", "yes|no", "a late task is loaded a second time by an idle worker; the first result wins", _flag),
    Setting("warm_epochs", "--warm-epochs", "yes|no", "the next epoch's first batches are loaded while the last ones are used", _flag),
    Setting("device", "--device", "NAME", "batches arrive on this device, such as cuda", _text),
    Setting("uneven_ranks", "--uneven-ranks", "error|trim|pad|ignore", "where ranks have different numbers of batches", _text),
    Setting("lost_stream", "--lost-stream", "replay|continue", "how a stream without a state goes on after its worker died", _text),
    Setting(
        "workers", "--worker-kind", "process|thread|auto", "what workers are; threads share the script's process (docs/threads.md)", _text
    ),
    Setting("concurrency", "--concurrency", "N", "samples of an async data set that wait at a time in each worker", int),
    Setting("story_file", "--story-file", "FILE", "what had happened is appended to it when an error leaves a loader", _text),
    Setting("bad_samples_file", "--bad-samples-file", "FILE", "every bad sample as a line of JSON", _text),
    Setting("quarantine", "--quarantine", "FILE", "such a file of an earlier run: its samples are left out", _text),
)
"""Every keyword argument of our own."""

WORKERS = Setting(
    "num_workers", "--workers", "N|auto", "workers of every loader over a map-style data set, whatever the script says", _workers
)
REPORT = Setting(
    "report", "--report", "text|none|FILE", "at the end: on stderr (text), not at all, or as lines of JSON appended to FILE", _text
)
SIGNAL = Setting("report_signal", "--report-signal", "NAME|none", "the signal that asks for the report (USR1; none under SLURM)", _signal)
TRACE = Setting(
    "trace", "--trace", "FILE", "the loop and its workers on one time line, for ui.perfetto.dev (FILE.rankN.json of ranks)", _text
)
SETTINGS = (*OPTIONS, WORKERS, REPORT, SIGNAL, TRACE)
_FILES = {"bad_samples_file", "quarantine", "story_file", "trace"}


@dataclass(frozen=True)
class Settings:
    options: Mapping[str, Any]
    workers: int | str | None
    report: str
    report_signal: int | None
    trace: str | None

    def choices(self, on_made: Callable[[Any], None]) -> Choices:
        return Choices(self.options, self.workers, on_made)


def read_settings(words: Mapping[str, str], environment: Mapping[str, str]) -> Settings:
    """`words`: texts by setting name, from a command line, which stands above the environment. Raises OptionError, which names what is
    wrong as the user wrote it."""
    values: dict[str, Any] = {}
    for setting in SETTINGS:
        written, text = f"{setting.flag} ", words.get(setting.name)
        if text is None:
            written, text = f"{setting.variable}=", environment.get(setting.variable)
        if text is not None:
            values[setting.name] = _read(setting, written, text)
    options = {setting.name: values[setting.name] for setting in OPTIONS if setting.name in values}
    by_default = None if "SLURM_JOB_ID" in environment else int(signal.SIGUSR1)
    wanted = values.get("report_signal", by_default)
    return Settings(options, values.get("num_workers"), values.get("report", "text"), wanted, values.get("trace"))


def _read(setting: Setting, written: str, text: str) -> Any:
    try:
        value = setting.read(text)
    except (ValueError, KeyError):
        raise OptionError(f"{written}{text}: expected {setting.metavar}") from None
    if setting in OPTIONS:
        try:
            Options.checked(**{setting.name: value})
        except OptionError as error:
            raise OptionError(f"{written}{text}: {error}") from None
    return value


def as_environment(words: Mapping[str, str], absolute: Callable[[str], str]) -> dict[str, str]:
    """The same settings for a process that is to read them; files by their whole path, since it may change its folder."""
    return {
        setting.variable: absolute(words[setting.name]) if _names_file(setting.name, words[setting.name]) else words[setting.name]
        for setting in SETTINGS
        if setting.name in words
    }


def _names_file(name: str, text: str) -> bool:
    return name in _FILES or (name == "report" and text not in ("text", "none"))


def trace_path(path: str, environment: Mapping[str, str], pid: int) -> str:
    """One file for each process: the first one's has the name that was given."""
    stem, dot, ending = path.rpartition(".") if "." in path.rsplit("/", 1)[-1] else (path, "", "")
    if "RANK" in environment:
        return f"{stem}.rank{environment['RANK']}{dot}{ending}"
    return path if environment.get(FIRST) == str(pid) else f"{stem}.{pid}{dot}{ending}"


def unknown_variables(environment: Mapping[str, str]) -> list[str]:
    known = {setting.variable for setting in SETTINGS} | {MARK, FIRST}
    return sorted(name for name in environment if name.startswith(PREFIX) and name not in known)


def split_command_line(words: Sequence[str]) -> tuple[list[str], list[str]]:
    """(our options, what Python is to run): all from the first word that is no option of ours, or from -m or -c."""
    takes_value = {setting.flag for setting in SETTINGS}
    number = 0
    while number < len(words):
        word = words[number]
        if word == "--":
            return list(words[:number]), list(words[number + 1 :])
        if not word.startswith("-") or word == "-" or word[:2] in ("-m", "-c"):
            break
        number += 2 if word in takes_value else 1
    return list(words[:number]), list(words[number:])
