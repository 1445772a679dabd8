"""`antifreeze check script.py`: what will freeze, repeat, copy or waste, before it runs; `antifreeze check module:object` probes that.

Exit codes: 0 nothing found · 1 findings · 2 it cannot be checked, and the last line says why
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import sys

from antifreeze.checks.checked import Checked, check, ordered
from antifreeze.checks.code.all_rules import code_findings
from antifreeze.checks.code.program import Program, read_program
from antifreeze.checks.code.rule import RULES
from antifreeze.checks.code.rules_page import rule_text, rules_page
from antifreeze.checks.errors import NotCheckable
from antifreeze.doctor.findings.model import Finding
from antifreeze.doctor.findings.words import plural
from antifreeze.doctor.report.page import write_whole
from antifreeze.doctor.report.text import print_lines

NOTHING, FOUND, WRONG_USAGE = 0, 1, 2


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "target", nargs="?", metavar="SCRIPT.py | MODULE:OBJECT", help="a script, which is read and never run; or a live object"
    )
    parser.add_argument("--json", action="store_true", help="print the findings as JSON")
    parser.add_argument("--html", metavar="FILE", help="also write them as a page that needs no network")
    parser.add_argument("--no-machine", action="store_true", help="of a script: only what the code says, nothing about this machine")
    parser.add_argument("--no-fetch", action="store_true", help="of a live object: do not load any sample")
    parser.add_argument("--rules", action="store_true", help="print every rule with a wrong and a right example, as Markdown")
    parser.add_argument("--explain", metavar="RULE", help="print one rule")


def run(args: argparse.Namespace) -> int:
    try:
        if args.rules or args.explain:
            print(rules_page() if args.rules else _explained(args.explain), end="")
            return NOTHING
        if args.target is None:
            raise NotCheckable("give a script (train.py), or a live object (mypackage.data:train_set)")
        checked = _checked(args)
        _show(checked, args)
    except NotCheckable as error:
        print(f"antifreeze check: {error}", file=sys.stderr)
        return WRONG_USAGE
    return FOUND if checked.findings else NOTHING


def _checked(args: argparse.Namespace) -> Checked:
    if ":" in args.target and not os.path.exists(args.target):
        from antifreeze.checks.target import load_target

        return check(load_target(args.target), fetch=not args.no_fetch)
    return check_script(args.target, machine=not args.no_machine)


def check_script(path: str, *, machine: bool = True) -> Checked:
    program = read_program(path, multiprocessing.get_start_method())
    found = code_findings(program)
    if machine:
        found += _of_machine(program)
    others = len(program.modules) - 1
    beside = f" and {plural(others, 'local module')}" if others else ""
    return Checked(f"{path}{beside}, {plural(len(program.loaders), 'loader')}, {len(RULES)} rules", ordered(found), tuple(program.unread))


def _of_machine(program: Program) -> list[Finding]:
    """What this machine means for the loaders of the script; a number of workers that is not known counts as one."""
    asked = [(call, call.constant("num_workers", 0)) for call in program.loaders if call.has_workers]
    if not asked or not sys.platform.startswith("linux"):
        return []
    from antifreeze.checks.machine import Needs, machine_findings, read_surroundings

    workers = max(number if isinstance(number, int) else 1 for _, number in asked)
    return list(machine_findings(read_surroundings(), Needs(workers, is_ours=all(call.is_ours for call, _ in asked))))


def _explained(name: str) -> str:
    if name not in RULES:
        raise NotCheckable(f"there is no rule {name!r}; `antifreeze check --rules` lists them: {', '.join(RULES)}")
    return rule_text(RULES[name])


def _show(checked: Checked, args: argparse.Namespace) -> None:
    if args.json:
        print(checked.json())
    else:
        print_lines(checked.lines())
    if args.html:
        try:
            write_whole(args.html, checked.html())
        except OSError as error:
            raise NotCheckable(f"the page could not be written to {args.html}: {error.strerror}") from None
        print(f"page written to {args.html}", file=sys.stderr)
