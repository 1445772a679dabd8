"""Pure: verdicts to text, to Markdown, to totals."""

from __future__ import annotations

import re
import signal
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass

from antifreeze.selftest.fault import Fault, Outcome, Variant
from antifreeze.selftest.judge import Verdict

Key = tuple[str, str, str]
"""fault, loader, variant."""


@dataclass(frozen=True)
class Totals:
    runs: int = 0
    as_demanded: int = 0
    hangs: int = 0
    silent_losses: int = 0
    doubled_samples: int = 0
    nameless_errors: int = 0
    wrong_data: int = 0
    leftovers: int = 0
    not_run: int = 0

    @classmethod
    def of(cls, verdicts: Iterable[Verdict]) -> Totals:
        every = list(verdicts)
        run = [one for one in every if one.outcome is not Outcome.SKIPPED]
        return cls(
            runs=len(run),
            as_demanded=sum(one.ok for one in run),
            hangs=sum(one.outcome is Outcome.FROZEN for one in run),
            silent_losses=sum(len(one.silent_losses) for one in run),
            doubled_samples=sum(len(one.doubled) for one in run),
            nameless_errors=sum(one.nameless for one in run),
            wrong_data=sum(one.outcome is Outcome.WRONG_DATA for one in run),
            leftovers=sum(bool(one.left_behind) for one in run),
            not_run=len(every) - len(run),
        )

    def line(self) -> str:
        return (
            f"{self.as_demanded} of {self.runs} as demanded · hangs {self.hangs} · silent losses {self.silent_losses} · "
            f"doubled samples {self.doubled_samples} · errors that name neither sample nor cause {self.nameless_errors} · "
            f"wrong data {self.wrong_data} · runs that left something behind {self.leftovers}"
            + (f" · not run here {self.not_run}" if self.not_run else "")
        )

    def as_json(self) -> dict[str, int]:
        return asdict(self)


def cell(verdict: Verdict | None) -> str:
    """One run in a few words."""
    if verdict is None:
        return ""
    record = verdict.record
    took = f"{record.seconds:.1f} s"
    words = {
        Outcome.SKIPPED: f"not run: {record.not_here}",
        Outcome.FROZEN: f"FROZEN{' at exit' if record.ended else ''} (killed after {took})",
        Outcome.DIED: f"ended by {_exit_name(record.exit_code)}, {took}",
        Outcome.WRONG_DATA: f"WRONG DATA, {took}",
        Outcome.FINISHED: f"finished, {took}",
        Outcome.ERROR: f"{record.error['type'] if record.error else 'error'}, {took}",
    }[verdict.outcome]
    if verdict.outcome is Outcome.ERROR:
        named = [name for name, is_named in (("sample", verdict.names_sample), ("cause", verdict.names_cause)) if is_named]
        words += f", names {' and '.join(named)}" if named else ", names neither sample nor cause" if verdict.nameless else ""
    if verdict.silent_losses:
        words += f", LOST {len(verdict.silent_losses)} silently"
    if verdict.doubled:
        words += f", {len(verdict.doubled)} DOUBLED"
    if record.report and not verdict.silent_losses and len(record.got) < len(record.plan) and verdict.outcome is Outcome.FINISHED:
        words += ", without the bad sample, which is reported"
    if verdict.left_behind:
        words += f", left behind: {', '.join(verdict.left_behind)}"
    return words


def _exit_name(code: int | None) -> str:
    if code is None or code >= 0:
        return f"exit code {code}"
    return signal.Signals(-code).name


def progress(done: int, of: int, verdict: Verdict) -> str:
    mark = "–" if verdict.outcome is Outcome.SKIPPED else "ok" if verdict.ok else "XX"
    who = verdict.loader + ("" if verdict.variant == Variant.RAISE.value else f"/{verdict.variant}")
    lines = [f"[{done:>{len(str(of))}}/{of}] {mark:<2} {verdict.fault:<36} {who:<16} {cell(verdict)}"]
    return "\n".join(lines + [f"        {problem}" for problem in verdict.problems if verdict.loader != "torch"])


def text_table(faults: Sequence[Fault], verdicts: Mapping[Key, Verdict], loaders: Sequence[str]) -> str:
    columns = [(loader, variant) for loader in loaders for variant in Variant if loader != "torch" or variant is Variant.RAISE]
    lines = []
    for one in faults:
        cells = {f"{loader}/{variant.value}": verdicts.get((one.name, loader, variant.value)) for loader, variant in columns}
        seen = [f"    {where:<18} {cell(verdict)}" for where, verdict in cells.items() if verdict is not None]
        wrong = [
            f"    WRONG: {problem}" for verdict in cells.values() if verdict and verdict.loader != "torch" for problem in verdict.problems
        ]
        lines += [f"{one.name}: {one.what}", *seen, *wrong]
    return "\n".join(lines)


def markdown(faults: Sequence[Fault], verdicts: Mapping[Key, Verdict], heading: str) -> str:
    """docs/faults.md: torch's behaviour beside ours."""

    def column(name: str, loader: str, variant: Variant) -> str:
        verdict = verdicts.get((name, loader, variant.value))
        text = cell(verdict).replace("|", "\\|")
        return text if verdict is None or verdict.ok or loader == "torch" else f"**not as demanded:** {text}"

    rows = [
        "| "
        + " | ".join(
            (
                f"`{one.name}`",
                one.what.replace("|", "\\|"),
                one.source,
                column(one.name, "torch", Variant.RAISE),
                column(one.name, "antifreeze", Variant.RAISE),
                column(one.name, "antifreeze", Variant.SKIP),
            )
        )
        + " |"
        for one in faults
    ]
    totals = [
        f"- {loader}: {Totals.of(one for key, one in verdicts.items() if key[1] == loader).line()}" for loader in ("torch", "antifreeze")
    ]
    title = '| fault | what is sick | seen in | torch | antifreeze | antifreeze, on_bad_sample="skip" |'
    return "\n".join([heading, "", *totals, "", title, "| --- | --- | --- | --- | --- | --- |", *rows, ""])


def matching(faults: Mapping[str, Fault], names: Sequence[str], heavy: bool) -> list[Fault]:
    """Those whose name holds one of the words; a heavy one only when asked for."""
    return [one for one in faults.values() if (not names and (heavy or not one.heavy)) or any(re.search(word, one.name) for word in names)]
