"""The command `antifreeze`: a table of subcommands, each imported only when it is used.

A subcommand is a module with two functions:
    configure(parser)      adds its arguments
    run(args) -> int       does the work and returns the exit code
and, where what follows is another program's command line, a third:
    split(words)           (our own words, the rest); the rest then goes to run(args, rest)

Exit codes: 0 it worked · 1 it did not, and the last line says why · 2 the command line was wrong · 130 Ctrl-C
"""

from __future__ import annotations

import argparse
import importlib
import os
import platform
import sys
from collections.abc import Callable, Mapping, Sequence
from importlib.metadata import PackageNotFoundError, version
from typing import NamedTuple, Protocol, cast

from antifreeze.errors import AntifreezeError

FAILED, WRONG_USAGE, INTERRUPTED = 1, 2, 130


class Command(NamedTuple):
    module: str
    help: str


COMMANDS: dict[str, Command] = {
    "run": Command("antifreeze.running.command", "run a script, unchanged, with antifreeze's DataLoader in the place of torch's"),
    "doctor": Command("antifreeze.doctor.command", "why is this process frozen, or slow, now?"),
    "check": Command("antifreeze.checks.command", "what will freeze, repeat, copy or waste, before it runs"),
    "profile": Command("antifreeze.profiling.command", "how many workers, and what does each stage cost?"),
    "selftest": Command("antifreeze.selftest.command", "run the diseases on this machine, and see what becomes of them"),
    "replay": Command("antifreeze.replay", "run the samples of a bad_samples_file again"),
}
"""name -> (module, one line of help), in the order `antifreeze --help` shows them."""


class _CommandModule(Protocol):
    def configure(self, parser: argparse.ArgumentParser) -> None: ...

    run: Callable[..., int]


def main(argv: Sequence[str] | None = None, commands: Mapping[str, Command] = COMMANDS) -> int:
    """Returns the exit code; argparse itself leaves by SystemExit for --help, --version (0) and wrong usage (2)."""
    words = list(sys.argv[1:] if argv is None else argv)
    # No option of ours before the subcommand takes a value, so the first plain word is the subcommand.
    name = next((word for word in words if not word.startswith("-")), None)
    chosen = commands.get(name) if name is not None else None
    module = cast(_CommandModule, importlib.import_module(chosen.module)) if chosen is not None else None

    parser, command_parsers = _parsers(commands)
    if module is not None:
        module.configure(command_parsers[str(name)])
    rest: tuple[list[str], ...] = ()
    split = getattr(module, "split", None)
    if split is not None:
        at = words.index(str(name)) + 1
        ours, theirs = split(words[at:])
        words, rest = words[:at] + ours, (theirs,)
    args, unknown = parser.parse_known_args(words)
    if unknown:  # argparse would show the usage of the whole
        command_parsers.get(str(name), parser).error(f"unrecognized arguments: {' '.join(unknown)}")
    if module is None:
        parser.print_help(sys.stderr)
        return WRONG_USAGE
    return _run(module, args, *rest)


def _run(module: _CommandModule, args: argparse.Namespace, *rest: list[str]) -> int:
    try:
        code = module.run(args, *rest)
        sys.stdout.flush()  # here, so that a closed pipe is met inside this try
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:
        # `antifreeze … | head`: the reader has enough. Python would complain again when it closes stdout at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return FAILED
    except AntifreezeError as error:
        print(f"antifreeze: {error}", file=sys.stderr)
        return FAILED
    return code


def _parsers(commands: Mapping[str, Command]) -> tuple[argparse.ArgumentParser, dict[str, argparse.ArgumentParser]]:
    """The parser of the whole line, and those of the subcommands by name."""
    parser = argparse.ArgumentParser(
        prog="antifreeze",
        description="PyTorch data loading that does not freeze, and says why when anything stalls.",
        epilog="exit codes: 0 it worked, 1 it did not, 2 the command line was wrong, 130 Ctrl-C",
    )
    parser.add_argument("--version", action="version", version=_versions(), help="show the versions that matter in a bug report")
    if not commands:  # argparse would print an empty list
        return parser, {}
    table = parser.add_subparsers(title="commands", metavar="COMMAND")
    return parser, {name: table.add_parser(name, help=command.help, description=command.help) for name, command in commands.items()}


def _versions() -> str:
    """Read from the installed metadata: importing torch for `--version` would take seconds."""
    return f"antifreeze {_version_of('antifreeze')} (torch {_version_of('torch')}, Python {platform.python_version()}, {platform.system()})"


def _version_of(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "not installed"
