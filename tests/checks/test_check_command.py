"""`antifreeze check`: its exit codes, its output, its sentences; and its pages, which are made from the rules."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "doctor"))

from browser import browser, find_browser

from antifreeze.checks.code.rule import RULES
from antifreeze.checks.code.rules_page import rules_page
from antifreeze.cli import main

ROOT = Path(__file__).parents[2]
CLEAN = "from torch.utils.data import DataLoader\nloader = DataLoader(dataset, batch_size=8)\n"
WRONG = (
    "import os\nfrom torch.utils.data import DataLoader\nraise SystemExit('it was run')\nDataLoader(ds, 8, num_workers=os.cpu_count())\n"
)
LIVE = """
class Six:
    def __len__(self): return 6
    def __getitem__(self, i): return float(i)
def make(): return Six()
six = Six()
raised = 0
def bad(): raise ValueError('no data here')
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "clean.py").write_text(CLEAN)
    (tmp_path / "wrong.py").write_text(WRONG)
    (tmp_path / "live_for_test.py").write_text(LIVE)
    (tmp_path / "breaks_for_test.py").write_text("import json\nraise RuntimeError('at import')\n")
    (tmp_path / "leaves_for_test.py").write_text("import sys\nsys.exit(3)\n")
    (tmp_path / "book.ipynb").write_text("{}")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    return tmp_path


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (["clean.py"], 0),
        (["wrong.py"], 1),
        (["live_for_test:six"], 0),
        (["live_for_test:make"], 0),
        (["live_for_test.py:Six"], 0),
        (["--rules"], 0),
        (["--explain", "no-main-guard"], 0),
    ],
)
def test_exit_codes(words: list[str], code: int, folder: Path) -> None:
    assert main(["check", *words]) == code


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["absent.py"], "absent.py: there is no such file"),
        (["."], "is a folder"),
        (["book.ipynb"], "is a notebook"),
        (["absent_for_test:six"], "absent_for_test does not import: ModuleNotFoundError"),
        (["breaks_for_test:six"], "breaks_for_test.py:2"),
        (["leaves_for_test:six"], "SystemExit 3"),
        (["live_for_test:absent"], "has no 'absent'; it has six"),
        (["live_for_test:raised"], "int is no data set"),
        (["live_for_test:bad"], "bad() did not make a data set: ValueError: no data here"),
        (["absent.py:six"], "there is no such file"),
        ([], "give a script"),
        (["--explain", "nonsense"], "there is no rule 'nonsense'"),
        (["clean.py", "--html", "absent/page.html"], "could not be written"),
    ],
)
def test_bad_input_is_2_and_a_sentence(words: list[str], sentence: str, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", *words]) == 2
    assert sentence in capsys.readouterr().err


def test_json_and_page(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", "wrong.py", "--json", "--html", "page.html", "--no-machine"]) == 1
    read = json.loads(capsys.readouterr().out)
    assert read["schema"] == "antifreeze-check/1"
    (found,) = read["findings"]
    assert (found["code"], found["severity"], found["file"], found["line"]) == ("workers-cpu-count", "slow", "wrong.py", 4)
    assert "workers-cpu-count" in (folder / "page.html").read_text()


def test_docs_are_made_from_the_rules() -> None:
    page = (ROOT / "docs" / "check-rules.md").read_text(encoding="utf-8")
    assert page == rules_page(), "docs/check-rules.md is old: antifreeze check --rules > docs/check-rules.md"
    assert all(f"## {name}\n" in page for name in RULES)


def test_a_script_is_neither_run_nor_waited_for_torch(folder: Path) -> None:
    ask = "import sys; from antifreeze.cli import main; code = main(['check', 'wrong.py']); print('torch' in sys.modules); sys.exit(code)"
    done = subprocess.run([sys.executable, "-c", ask], capture_output=True, text=True, timeout=150, check=False)
    assert done.returncode == 1, done.stderr
    assert "it was run" not in done.stdout + done.stderr
    assert done.stdout.splitlines()[-1] == "False"


@pytest.mark.slow
@pytest.mark.skipif(find_browser() is None, reason="no chromium here: apt-get install chromium")
def test_the_page_in_a_real_browser(folder: Path) -> None:
    assert main(["check", "wrong.py", "--html", "page.html"]) == 1
    with browser() as window:
        for width, dark in ((1000, False), (360, True)):
            window.open(folder / "page.html", width=width, height=800, dark=dark)
            assert window.complaints() == []
            assert window.requests() == [(folder / "page.html").as_uri()]
            assert window.evaluate("document.documentElement.scrollWidth") <= width
    shutil.rmtree(folder)
