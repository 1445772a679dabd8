"""`antifreeze selftest`: run the faults on this machine and print what became of each."""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
from pathlib import Path

from antifreeze.selftest.fault import Fault, Variant, all_faults
from antifreeze.selftest.judge import Verdict
from antifreeze.selftest.runner import TORCH_LIMIT_S, Run, Runner
from antifreeze.selftest.table import Key, Totals, markdown, matching, progress, text_table

OURS = "antifreeze"
DOCS_LIMIT_S = 25.0
"""torch's slowest honest stop is 5 s for each worker that hangs; what goes on longer is frozen."""


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("names", nargs="*", metavar="NAME", help="only faults whose name matches (regular expressions)")
    parser.add_argument("--torch", action="store_true", help="run torch's DataLoader beside ours")
    parser.add_argument("--only-torch", action="store_true", help="run torch's DataLoader alone")
    parser.add_argument("--json", action="store_true", help="print every record as JSON instead of the table")
    parser.add_argument("--jobs", type=int, default=2, metavar="N", help="programs at a time (default 2)")
    parser.add_argument("--list", action="store_true", help="list the faults and run nothing")
    parser.add_argument("--heavy", action="store_true", help="also those that need gigabytes or minutes")
    parser.add_argument("--fresh", action="store_true", help="a new interpreter for each program instead of a fork of a clean one (slower)")
    parser.add_argument(
        "--torch-limit", type=float, metavar="S", help="seconds after which torch counts as frozen (default 8; with --docs 25)"
    )
    parser.add_argument("--docs", nargs="?", const="docs/faults.md", metavar="FILE", help="write the table beside torch's as Markdown")


def run(args: argparse.Namespace) -> int:
    chosen = matching(all_faults(), args.names, args.heavy)
    if args.list:
        print("\n".join(f"{one.name:<36} {one.source:<44} {one.what}" for one in chosen))
        return 0
    if not chosen:
        print(f"no fault is called like {' or '.join(args.names)}; `antifreeze selftest --list` shows all", file=sys.stderr)
        return 2
    loaders = ["torch"] if args.only_torch else ["torch", OURS] if args.torch or args.docs else [OURS]
    verdicts = _run_all(chosen, loaders, args)
    _print(chosen, loaders, verdicts, args)
    return 0 if all(one.ok for key, one in verdicts.items() if key[1] == OURS) else 1


def _run_all(chosen: list[Fault], loaders: list[str], args: argparse.Namespace) -> dict[Key, Verdict]:
    torch_limit_s = args.torch_limit or (DOCS_LIMIT_S if args.docs else TORCH_LIMIT_S)
    runs = [
        Run(one, loader, variant, args.fresh, torch_limit_s)
        for one in chosen
        for loader in loaders
        for variant in (one.variants if loader == OURS else (Variant.RAISE,))
    ]
    verdicts: dict[Key, Verdict] = {}
    with Runner(args.jobs) as runner:
        for done, verdict in enumerate(runner.verdicts(runs), start=1):
            verdicts[verdict.fault, verdict.loader, verdict.variant] = verdict
            print(progress(done, len(runs), verdict), file=sys.stderr, flush=True)
    return verdicts


def _print(chosen: list[Fault], loaders: list[str], verdicts: dict[Key, Verdict], args: argparse.Namespace) -> None:
    totals = {loader: Totals.of(one for key, one in verdicts.items() if key[1] == loader) for loader in loaders}
    if args.json:
        runs = [{"fault": key[0], "loader": key[1], "variant": key[2], **one.as_json()} for key, one in sorted(verdicts.items())]
        print(json.dumps({"totals": {loader: one.as_json() for loader, one in totals.items()}, "runs": runs}, indent=1))
    else:
        print(text_table(chosen, verdicts, loaders))
        print()
        print("\n".join(f"{loader}: {one.line()}" for loader, one in totals.items()))
    if args.docs:
        Path(args.docs).write_text(markdown(chosen, verdicts, _heading()))


def _heading() -> str:
    import torch

    machine = f"torch {torch.__version__}, Python {platform.python_version()}, {len(os.sched_getaffinity(0))} cores"
    return (
        "# Faults: torch's DataLoader and ours, side by side\n\n"
        "Written by `antifreeze selftest --heavy --docs docs/faults.md` "
        f"({machine}); do not edit. Each row is a program in `src/antifreeze/selftest/faults/`: 24 samples, batches of 4, 2 workers "
        "unless the fault needs otherwise. Times are for the whole program, interpreter's exit included. FROZEN: still blocked at its "
        "limit, and killed. torch runs with its defaults, `timeout=0` among them. `antifreeze selftest` runs them on your machine."
    )
