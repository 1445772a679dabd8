"""`antifreeze run script.py …`: the script, unchanged, with our DataLoader in the place of torch's.

    antifreeze run ──▶ checks options ──▶ exec: python script.py …   (the same process; PYTHONPATH brings running/site/sitecustomize.py)
                                            └─ torch is imported ──▶ running/start.py

So the script *is* run by Python: arguments, `__main__`, stdin, signals, tracebacks and exit code are Python's own. The Python processes
it starts inherit the same environment: ranks of torchrun, mp.spawn or a framework's launcher get our loader too.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from antifreeze.doctor.report.page import why_not_writable
from antifreeze.errors import AntifreezeError, OptionError
from antifreeze.running.settings import (
    FIRST,
    MARK,
    SETTINGS,
    Settings,
    as_environment,
    read_settings,
    split_command_line,
    unknown_variables,
)

WRONG_USAGE = 2


def split(words: Sequence[str]) -> tuple[list[str], list[str]]:
    """(what argparse is to see, the rest)."""
    return split_command_line(words)


def configure(parser: argparse.ArgumentParser) -> None:
    parser.allow_abbrev = False  # what follows an option we do not know would be taken for the script
    parser.usage = "antifreeze run [option …] (script.py | -m module | -c code | -) [argument …]"
    parser.epilog = (
        "Every option can also be given in the environment: --sample-timeout 60 as ANTIFREEZE_SAMPLE_TIMEOUT=60. "
        "The exit code is the script's own; 2 where the command line is wrong or the script is not there."
    )
    for setting in SETTINGS:
        parser.add_argument(setting.flag, dest=setting.name, metavar=setting.metavar, help=setting.help)


def run(args: argparse.Namespace, rest: Sequence[str] = ()) -> int:
    words = {setting.name: value for setting in SETTINGS if (value := getattr(args, setting.name)) is not None}
    try:
        _check_files(read_settings(words, os.environ))
        target = _checked_target(rest)
        flags = _python_flags()
    except AntifreezeError as error:
        print(f"antifreeze run: {error}", file=sys.stderr)
        return WRONG_USAGE
    for name in unknown_variables(os.environ):
        print(f"antifreeze run: {name} in the environment means nothing to this version and is ignored", file=sys.stderr)
    environment = {**os.environ, **as_environment(words, os.path.abspath), **_marks()}
    sys.stdout.flush()
    sys.stderr.flush()
    try:
        os.execve(sys.executable, [sys.executable, *flags, *target], environment)
    except OSError as error:
        print(f"antifreeze run: {sys.executable} could not be started: {error.strerror}", file=sys.stderr)
    return WRONG_USAGE


def _check_files(settings: Settings) -> None:
    """What is written at the end of a long run must not fail only there."""
    report = None if settings.report in ("text", "none") else settings.report
    files = {"--trace": settings.trace, "--report": report}
    files |= {
        flag: settings.options.get(name) for name, flag in (("story_file", "--story-file"), ("bad_samples_file", "--bad-samples-file"))
    }
    for flag, path in files.items():
        reason = why_not_writable(path) if path is not None else None
        if reason is not None:
            raise OptionError(f"{flag} {path}: cannot be written: {reason}")


def _marks() -> dict[str, str]:
    return {MARK: sys.prefix, FIRST: str(os.getpid()), "PYTHONPATH": _python_path()}


def _checked_target(rest: Sequence[str]) -> list[str]:
    if not rest:
        raise OptionError("no script was given; try: antifreeze run train.py, or antifreeze run -m package.module")
    first = rest[0]
    if first in ("-m", "-c") and len(rest) < 2:
        raise OptionError(f"{first} needs {'a module' if first == '-m' else 'code'} after it")
    if not first.startswith("-") and not Path(first).exists():
        raise OptionError(f"no such script: {first}")
    return list(rest)


def _python_path() -> str:
    site = str(Path(__file__).with_name("site"))
    before = [folder for folder in os.environ.get("PYTHONPATH", "").split(os.pathsep) if folder and folder != site]
    return os.pathsep.join([site, *before])


def _python_flags() -> list[str]:
    """What Python itself was given, as in `python -u -X dev -m antifreeze run …`; the script gets it too."""
    if not sys.executable:
        raise OptionError("Python does not know its own path (sys.executable is empty), so it cannot be started for the script")
    if sys.flags.ignore_environment or sys.flags.no_site:
        raise OptionError("Python was started with -I, -E or -S, which keep antifreeze from reaching the script; start it without them")
    return python_flags(sys.orig_argv[1:])


def python_flags(words: Sequence[str]) -> list[str]:
    """The words up to the script, or to -m, which may be the last letter of several: `-X dev -um antifreeze` has -X dev -u."""
    flags: list[str] = []
    rest = iter(words)
    for word in rest:
        if not word.startswith("-") or word == "-":
            break
        letters = "" if word.startswith("--") else word[1:]
        at = next((number for number, letter in enumerate(letters) if letter in "mWX"), None)
        if at is not None and letters[at] == "m":
            flags += ["-" + letters[:at]] if at else []
            break
        flags.append(word)
        if word == "--check-hash-based-pycs" or (at is not None and at == len(letters) - 1):
            flags.append(next(rest, ""))
    return flags
