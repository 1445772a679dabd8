"""Pure: what a record means, and whether it is what issue 3 demands.

1. Not over at its limit: frozen. Over without saying so: died. A row that does not prove itself: wrong data.
2. A sample is lost silently when the loop ended without an error, and it was owed, did not come, and is in no report and no caught error.
3. A sample is doubled when it came more often than it was owed, whatever the outcome.
4. An error that stops the loop names its sample and its cause, or is counted.
5. Nothing fails where nobody can catch it: in a finalizer, in a thread, at the interpreter's exit. Python prints such exceptions.
"""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from antifreeze.selftest.fault import SICK, Expectation, Fault, Outcome, Variant
from antifreeze.selftest.record import Record

EXIT_S = 3.0
_UNCATCHABLE = re.compile(r"^(Exception ignored .*|Exception in thread .*|Error in .*)\nTraceback .*\n(?: .*\n)*(\S.*)$", re.M)


@dataclass(frozen=True)
class Verdict:
    fault: str
    loader: str
    variant: str
    outcome: Outcome
    problems: tuple[str, ...]
    """Empty: as demanded."""
    silent_losses: tuple[Any, ...]
    doubled: tuple[Any, ...]
    names_sample: bool
    names_cause: bool | None
    """None: the fault has no cause to look for, it should not have raised at all."""
    left_behind: tuple[str, ...]
    record: Record = field(repr=False)

    @property
    def ok(self) -> bool:
        return not self.problems

    @property
    def nameless(self) -> bool:
        return self.outcome is Outcome.ERROR and not self.names_sample and self.names_cause is False

    def as_json(self) -> dict[str, Any]:
        kept = ("outcome", "problems", "silent_losses", "doubled", "names_sample", "names_cause", "left_behind")
        seen = {name: getattr(self, name) for name in kept} | {"outcome": self.outcome.value, "ok": self.ok}
        return seen | {"record": self.record.as_json()}


def judge(fault: Fault, record: Record, slack: float = 1.0) -> Verdict:
    """`slack`: so many times as long may an end take."""
    expected = fault.expects(Variant(record.variant))
    outcome = outcome_of(record, expected)
    lost, doubled = _lost(record, outcome, expected), _surplus(record.got, record.plan)
    left = _left_behind(record)
    text = _error_text(record)
    names_sample = _names(text, SICK)
    names_cause = _says(expected.cause, text) if expected.cause else None
    problems: tuple[str, ...] = ()
    if outcome is not Outcome.SKIPPED:
        problems = (
            *_outcome_problems(expected, outcome, record),
            *([f"lost without a word: {list(lost)}"] if lost else []),
            *([f"came twice: {list(doubled)}"] if doubled else []),
            *_error_problems(expected, outcome, record, names_sample, names_cause),
            *_saying_problems(expected, record),
            *([f"left behind: {', '.join(left)}"] if left else []),
            *_stopping_problems(expected, outcome, record, slack),
        )
    return Verdict(record.fault, record.loader, record.variant, outcome, problems, lost, doubled, names_sample, names_cause, left, record)


def outcome_of(record: Record, expected: Expectation) -> Outcome:
    if record.not_here is not None:
        return Outcome.SKIPPED
    if record.exit_code is None:
        return Outcome.FROZEN
    if record.wrong:
        return Outcome.WRONG_DATA
    if not record.ended or record.exit_code not in (0, *expected.exit_codes):
        return Outcome.DIED
    return Outcome.ERROR if record.error else Outcome.FINISHED


def _surplus(more: list[Any], less: list[Any]) -> tuple[Any, ...]:
    return tuple(sorted((Counter(map(_key, more)) - Counter(map(_key, less))).elements(), key=str))


def _key(sample: Any) -> Any:
    return tuple(sample) if isinstance(sample, list) else sample


def _lost(record: Record, outcome: Outcome, expected: Expectation) -> tuple[Any, ...]:
    """Only a loop that says it is finished can lose silently."""
    if outcome not in (Outcome.FINISHED, Outcome.WRONG_DATA) or record.error:
        return ()
    missing = _surplus(record.plan, record.got)
    reported = [sample for sample in missing if sample in expected.missing and _names(record.report, sample)]
    return tuple(sample for sample in missing if sample not in reported and sample not in map(_key, record.excused))


def _names(text: str, sample: Any) -> bool:
    return bool(re.search(rf"\b(samples?|index|indices|key)\b[^\n]{{0,40}}?(?<!\w){re.escape(str(sample))}\b", text, re.I))


def _outcome_problems(expected: Expectation, outcome: Outcome, record: Record) -> list[str]:
    found = []
    if outcome not in expected.outcomes:
        wanted = " or ".join(one.value for one in expected.outcomes)
        found.append(f"{outcome.value} instead of {wanted}: {_detail(outcome, record)}")
    if outcome is Outcome.DIED and record.exit_code not in expected.exit_codes:
        found.append(f"exit code {record.exit_code}")
    came = [sample for sample in expected.missing if outcome is Outcome.FINISHED and sample in record.got]
    return found + [f"sample {sample} was delivered though it is bad" for sample in came]


def _detail(outcome: Outcome, record: Record) -> str:
    if outcome is Outcome.WRONG_DATA:
        return record.wrong[0]
    if record.error:
        return f"{record.error['type']}: {record.error['text'][:300]}"
    return f"exit code {record.exit_code} after {record.seconds:.1f} s, {len(record.got)} samples delivered"


def _error_problems(expected: Expectation, outcome: Outcome, record: Record, names_sample: bool, names_cause: bool | None) -> list[str]:
    if outcome is not Outcome.ERROR or Outcome.ERROR not in expected.outcomes or record.error is None:
        return []
    found = []
    if expected.error and not re.search(rf"\b({expected.error})\b", record.error["types"]):
        found.append(f"{record.error['type']} instead of {expected.error}")
    if expected.names_sample and not names_sample:
        found.append(f"the error does not name sample {SICK}: {record.error['text'][:300]}")
    if expected.cause and not names_cause:
        found.append(f"the error does not name the cause ({expected.cause}): {record.error['text'][:300]}")
    return found


def _saying_problems(expected: Expectation, record: Record) -> list[str]:
    found = []
    if expected.said and not _says(expected.said, "\n".join((record.stderr, record.stdout, record.report, _error_text(record)))):
        found.append(f"nobody was told ({expected.said})")
    count = record.stderr.count("Traceback (most recent call last)")
    if expected.tracebacks is not None and count != expected.tracebacks:
        found.append(f"{count} tracebacks printed instead of {expected.tracebacks}")
    if (uncatchable := _UNCATCHABLE.search(record.stderr)) is not None:
        found.append(f"failed where nobody could catch it: {uncatchable[1][:100]} {uncatchable[2][:200]}")
    return found


def _stopping_problems(expected: Expectation, outcome: Outcome, record: Record, slack: float) -> list[str]:
    found = []
    if record.ended and not record.left and record.stop_s > expected.stop_s * slack:
        found.append(f"stopping took {record.stop_s:.1f} s")
    if record.ended and outcome is not Outcome.FROZEN and record.exit_s > EXIT_S * slack:
        found.append(f"the interpreter's exit took {record.exit_s:.1f} s")
    return found


def _left_behind(record: Record) -> tuple[str, ...]:
    inside = [f"{len(what)} {kind} ({what[0][:60]})" for kind, what in record.left.items()]
    orphans = [f"{len(record.orphans)} orphans ({record.orphans[0][:60]})"] if record.orphans else []
    files = [f"files {record.files_left}"] if record.files_left else []
    return (*inside, *orphans, *files)


def _error_text(record: Record) -> str:
    every = [*record.caught, *([record.error] if record.error else [])]
    return "\n".join(one["text"] for one in every)


def _says(pattern: str, text: str) -> bool:
    return bool(re.search(pattern, text, re.I | re.S))
