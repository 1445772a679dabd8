"""Writes the table of docs/doctor.md: every disease, and what the doctor said about it. Run it: python tests/doctor/make_table.py

It runs the programs of diseases/ (root sees more of them: some need a cgroup, a mount, or a small /dev/shm of their own).
"""

from __future__ import annotations

import ast
import re
import sys
from pathlib import Path

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE), str(HERE.parents[1] / "src")]

from _pytest.outcomes import Skipped  # noqa: E402
from cases import DISEASES, HEALTHY  # noqa: E402
from ward import Patient, Visited, visit_all, without_pids  # noqa: E402

PAGE = HERE.parents[1] / "docs" / "doctor.md"
BEGIN, END = "<!-- table: python tests/doctor/make_table.py -->", "<!-- end of table -->"


def what_it_is(patient: Patient) -> str:
    """The first sentence of the program's docstring; with arguments, what it says about them."""
    text = ast.get_docstring(ast.parse(patient.file.read_text(encoding="utf-8"))) or ""
    if patient.arguments:
        about = re.search(rf"`{patient.program}\.py [^`]*{patient.arguments[0]}[^`]*`:? ([^\n.`]*)", text)
        if about:
            return f"(… {patient.arguments[0]}) {about.group(1).strip()}"
    return " ".join(re.split(rf"`{patient.program}\.py ", text)[0].split("\n\n")[0].split())


def row(patient: Patient, found: Visited | BaseException) -> str:
    program = f"[{patient.name}](../tests/doctor/diseases/{patient.program}.py)"
    if isinstance(found, Skipped):
        return f"| {program} | {cell(what_it_is(patient))} | not run: {cell(str(found))} | – |"
    if isinstance(found, BaseException):
        raise found
    said = f"**{found.verdict.code}**: {cell(without_pids(found.verdict.verdict))}"
    return f"| {program} | {cell(what_it_is(patient))} | {said} | {found.took_s:.1f} s |"


def cell(text: str) -> str:
    return text.replace("|", "\\|").replace("<", "&lt;")


def table(patients: tuple[Patient, ...], found: dict[str, Visited | BaseException]) -> list[str]:
    head = ["| program | what happens in it | what the doctor said | took |", "| --- | --- | --- | --- |"]
    return [*head, *(row(patient, found[patient.name]) for patient in patients)]


def wrong(patient: Patient, found: Visited | BaseException) -> bool:
    return isinstance(found, Visited) and patient.code not in ("", found.verdict.code)


def main() -> None:
    found = visit_all((*DISEASES, *HEALTHY))
    mistaken = [patient.name for patient in (*DISEASES, *HEALTHY) if wrong(patient, found[patient.name])]
    if mistaken:
        sys.exit(f"no table is written: the doctor was wrong about {', '.join(mistaken)}; run the tests of these patients")
    lines = ["", "### Ill", "", *table(DISEASES, found), "", "### Not ill, and not called so", "", *table(HEALTHY, found), ""]
    text = PAGE.read_text(encoding="utf-8")
    before, _, rest = text.partition(BEGIN)
    _, _, after = rest.partition(END)
    PAGE.write_text(before + "\n".join((BEGIN, *lines, END)) + after, encoding="utf-8")
    print(f"{len(found)} rows written to {PAGE}")


if __name__ == "__main__":
    main()
