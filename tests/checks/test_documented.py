"""No false alarm: what PyTorch's, torchvision's, HF's and Lightning's own documentation shows, written out in our words."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from antifreeze.checks.code.all_rules import code_findings
from antifreeze.checks.code.program import read_program

DOCUMENTED = sorted((Path(__file__).parent / "documented").glob("*.py"))
SITE = Path(sys.modules["pytest"].__file__ or "").parents[1]
LIBRARIES = ["torch/utils/data", "torchdata"]


@pytest.mark.parametrize("script", DOCUMENTED, ids=lambda path: path.stem)
def test_nothing_is_said_about_documented_examples(script: Path) -> None:
    program = read_program(str(script))
    assert [each.verdict for each in code_findings(program)] == []
    assert program.loaders, "it was not understood: no loader was seen"


def test_nothing_is_said_about_the_data_sets_of_the_installed_libraries() -> None:
    files = [file for library in LIBRARIES for file in sorted((SITE / library).rglob("*.py"))]
    assert len(files) > 20
    said = {each.verdict for file in files for each in code_findings(read_program(str(file)))}
    assert said == set()
