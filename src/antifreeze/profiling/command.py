"""`antifreeze profile module:object`, or `antifreeze profile train.py --loader NAME`: measures it, and recommends one setting.

Exit codes: 0 it was measured · 2 it cannot be, and the last line says why · 130 Ctrl-C
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable
from typing import Any

from antifreeze.checks.errors import NotCheckable
from antifreeze.checks.target import load_target
from antifreeze.doctor.report.as_json import plain
from antifreeze.doctor.report.page import why_not_writable, write_whole
from antifreeze.doctor.report.text import print_lines
from antifreeze.profiling.compare import changes, left_out, read_profile
from antifreeze.profiling.html import html_page
from antifreeze.profiling.measure import Plan, measure
from antifreeze.profiling.model import Profile
from antifreeze.profiling.progress import Progress
from antifreeze.profiling.recommend import Recommendation, recommend
from antifreeze.profiling.script import loader_of_script
from antifreeze.profiling.text import text_lines
from antifreeze.profiling.workload import workload_of

DONE, WRONG_USAGE = 0, 2


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("target", metavar="MODULE:OBJECT | SCRIPT.py", help="a data set, a loader, or a function that makes one")
    parser.add_argument("--loader", metavar="NAME", help="of a script: it is run until it iterates the loader in this variable")
    parser.add_argument("--batch-size", type=_count, metavar="N", help="instead of the loader's (of a data set: 32)")
    parser.add_argument("--step-ms", type=_milliseconds, metavar="MS", help="what one training step takes, without the data")
    parser.add_argument("--step", metavar="MODULE:FUNCTION", help="the training step itself, called with each batch")
    parser.add_argument("--seconds", type=_seconds, default=30.0, metavar="S", help="about how long to measure (default 30)")
    parser.add_argument("--max-workers", type=_count, metavar="N", help="try no more than these")
    parser.add_argument("--skip-bad", action="store_true", help="leave out samples that raise")
    parser.add_argument("--json", action="store_true", help="print everything as JSON")
    parser.add_argument("--html", metavar="FILE", help="also write a page with the curves, which needs no network")
    parser.add_argument("--save", metavar="FILE", help="keep the measurements, for --compare")
    parser.add_argument("--compare", metavar="OLD", help="an earlier --save: show what changed")


def _count(text: str) -> int:
    if not text.isdigit() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r}: expected a whole number above 0")
    return int(text)


def _milliseconds(text: str) -> float:
    return _number(text, 0.001, 3_600_000, "milliseconds")


def _seconds(text: str) -> float:
    return _number(text, 1, 3600, "seconds")


def _number(text: str, low: float, high: float, unit: str) -> float:
    try:
        number = float(text)
    except ValueError:
        number = -1.0
    if not low <= number <= high:
        raise argparse.ArgumentTypeError(f"{text!r}: expected {unit} from {low:g} to {high:g}")
    return number


def run(args: argparse.Namespace) -> int:
    try:
        before = read_profile(args.compare) if args.compare else None
        _check_files(args)
        plan = Plan(args.seconds, args.max_workers, args.step_ms / 1000 if args.step_ms else None, _step(args))
        workload = workload_of(_target(args), _name(args), args.batch_size, args.skip_bad)
        with Progress() as progress:
            profile = measure(workload, plan, progress.tell)
        _show(profile, recommend(profile), before, args)
    except NotCheckable as error:
        print(f"antifreeze profile: {error}", file=sys.stderr)
        return WRONG_USAGE
    return DONE


def _check_files(args: argparse.Namespace) -> None:
    """Before half a minute of measuring, and not after it."""
    for path, what in ((args.save, "measurements"), (args.html, "page")):
        reason = why_not_writable(path) if path else None
        if reason is not None:
            raise NotCheckable(f"the {what} could not be written to {path}: {reason}")


def _target(args: argparse.Namespace) -> Any:
    if args.loader:
        if ":" in args.target:
            raise NotCheckable(f"--loader {args.loader} is for a script; {args.target} names its object already")
        return loader_of_script(args.target, args.loader)
    if args.target.endswith(".py"):
        raise NotCheckable(
            f"which loader of {args.target}? give --loader NAME (the script is run until it iterates it), or {args.target}:NAME"
        )
    return load_target(args.target)


def _name(args: argparse.Namespace) -> str:
    return f"{args.target} {args.loader}" if args.loader else str(args.target)


def _step(args: argparse.Namespace) -> Callable[[Any], Any] | None:
    if args.step is None:
        return None
    if args.step_ms is not None:
        raise NotCheckable("--step and --step-ms say the same twice: give one of them")
    step = load_target(args.step, call=False)
    if not callable(step):
        raise NotCheckable(f"--step {args.step} is no function of a batch: it is a {type(step).__name__}")
    found: Callable[[Any], Any] = step
    return found


def _show(profile: Profile, advice: Recommendation, before: dict[str, Any] | None, args: argparse.Namespace) -> None:
    found = json.loads(json.dumps(profile.as_dict(), default=plain, allow_nan=False))
    compared = changes(before, found) if before is not None else []
    alone = left_out(before, found) if before is not None else ""
    if args.json:
        told: dict[str, Any] = {
            "kind": advice.chosen.kind.value,
            "workers": advice.chosen.workers,
            "line": advice.line,
            "gain": advice.gain,
        }
        told |= {"why": advice.why, "step": advice.step, "hints": advice.hints}
        more = {"recommendation": told, "changes": [change.__dict__ for change in compared], "not_compared": alone}
        print(json.dumps({**found, **more}, indent=2))
    else:
        print_lines(text_lines(profile, advice, compared, alone))
    sys.stdout.flush()
    if args.save:
        _write(args.save, json.dumps(found, indent=1), "measurements")
    if args.html:
        _write(args.html, html_page(profile, advice, compared, alone), "page")


def _write(path: str, text: str, what: str) -> None:
    try:
        write_whole(path, text)
    except OSError as error:
        raise NotCheckable(f"the {what} could not be written to {path}: {error.strerror}") from None
    print(f"{what} written to {path}", file=sys.stderr)
