"""The findings, shown: the same verdict first in text, JSON and page; and nothing of the patient's can break out of the page."""

from __future__ import annotations

import io
import json
import os
import re
import shutil
from pathlib import Path

import pytest
from browser import browser, find_browser
from build_facts import LOOP, W0, exam, feeder, idle_worker, loading, lock, loop_process, process, running, stuck_worker

from antifreeze.doctor.facts.model import Blindness, Examination
from antifreeze.doctor.findings.diagnose import diagnose
from antifreeze.doctor.report.as_json import as_dict, json_text
from antifreeze.doctor.report.html import html_page
from antifreeze.doctor.report.page import write_whole
from antifreeze.doctor.report.text import plain_text, print_text

BLIND = Blindness("the Python stacks", "not allowed", "`sudo …`")


@pytest.fixture
def facts() -> Examination:
    return exam(loop_process(), process(W0, running(W0, loading(0)), feeder(301)), blindness=(BLIND,))


def test_text_says_the_verdict_then_evidence_then_what_to_do(facts: Examination) -> None:
    diagnosis = diagnose(facts)
    lines = plain_text(facts, diagnosis).splitlines()
    assert lines[0] == diagnosis.verdict.verdict
    assert lines.index("  evidence") < lines.index("  what to do")
    assert "  to allow it: `sudo …`" in lines
    assert any("worker 0" in line and "100 %" in line for line in lines)
    assert len(plain_text(facts, diagnosis, all_stacks=True)) > len(plain_text(facts, diagnosis))


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_terminal_gets_the_same_words_in_colour(facts: Examination, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("rich")
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setenv("COLUMNS", "60")
    diagnosis, out = diagnose(facts), Terminal()
    print_text(facts, diagnosis, file=out)
    assert "\x1b[" in out.getvalue()
    words = re.sub(r"\x1b\[[\d;]*m", "", out.getvalue())
    assert words.split() == plain_text(facts, diagnosis).split()
    assert max(len(line) for line in words.splitlines()) <= 60 < max(len(line) for line in plain_text(facts, diagnosis).splitlines())


def test_json_has_findings_and_facts_and_no_source_text(facts: Examination) -> None:
    diagnosis = diagnose(facts)
    read = json.loads(json_text(facts, diagnosis))
    assert read["schema"] == "antifreeze-doctor/1"
    assert (read["verdict"], read["code"], read["disease"]) == (diagnosis.verdict.verdict, "infinite-loop", True)
    assert read["findings"][0]["severity"] == "disease"
    assert {process["pid"] for process in read["facts"]["processes"]} == {100, 101, 102}
    assert "sources" not in as_dict(facts, diagnosis)["facts"]
    assert "\n" not in json_text(facts, diagnosis, one_line=True)


def test_the_page_needs_nothing_and_leaks_nothing(facts: Examination) -> None:
    evil = exam(loop_process(command=("python", "<script>alert(1)</script>", '"><img src=http://x/>')), stuck_worker(W0, 0, call=lock()))
    for page in (html_page(facts, diagnose(facts)), html_page(evil, diagnose(evil))):
        assert "<script" not in page
        assert re.findall(r'<[^>]*(?:src|href)="?([^" >]*)', page) == ["data:,"]
        assert "<img" not in page
        assert "default-src 'none'" in page
        assert page.count("<svg") == 3


def test_the_page_has_axes_with_units(facts: Examination) -> None:
    page = html_page(facts, diagnose(facts))
    assert [
        text for text in ("percent of one core", "megabytes (MB)", "seconds since its main thread last ran", "100 %") if text not in page
    ] == []


@pytest.mark.slow
@pytest.mark.skipif(find_browser() is None, reason="no chromium here: apt-get install chromium")
def test_the_page_in_a_real_browser(facts: Examination, tmp_path: Path) -> None:
    """Opened from disk: no complaint, no request, no sideways scrolling on a phone, dark and light as the system is."""
    page = tmp_path / "page.html"
    page.write_text(html_page(facts, diagnose(facts)), encoding="utf-8")
    backgrounds = set()
    with browser() as window:
        for width, dark in ((1000, False), (1000, True), (390, False), (320, True)):
            window.open(page, width=width, height=844, dark=dark)
            assert window.complaints() == []
            assert window.requests() == [page.as_uri()]
            assert window.evaluate("document.documentElement.scrollWidth") <= width
            assert window.evaluate("document.querySelector('h1').textContent") == diagnose(facts).verdict.verdict
            assert window.evaluate("getComputedStyle(document.querySelector('svg .label')).fontSize") == "12px"
            backgrounds.add(window.evaluate("getComputedStyle(document.body).backgroundColor"))
            window.screenshot(tmp_path / f"page-{width}-{dark}.png")
    assert len(backgrounds) == 2
    shutil.rmtree(tmp_path)


def test_a_patient_without_loader_is_shown_too() -> None:
    alone = exam(process(LOOP, running(LOOP, ())))
    assert "no DataLoader" in plain_text(alone, diagnose(alone))
    assert "no DataLoader" in html_page(alone, diagnose(alone))
    assert json.loads(json_text(alone, diagnose(alone)))["disease"] is False


def test_an_idle_pair_has_rows() -> None:
    pair = exam(loop_process(moving=True), idle_worker(W0, 0))
    text = plain_text(pair, diagnose(pair))
    assert len([line for line in text.splitlines() if re.match(r"\s+10[012]  ", line)]) == 3


def test_a_page_is_written_through_a_link_and_into_what_is_no_file(tmp_path: Path) -> None:
    target, link, pipe = tmp_path / "target.html", tmp_path / "link.html", tmp_path / "pipe"
    link.symlink_to(target)
    write_whole(str(link), "page")
    assert link.is_symlink() and target.read_text() == "page"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    write_whole(str(pipe), "page")  # as /dev/stdout or /dev/null, which root could replace by a file
    assert os.read(reader, 99) == b"page" and pipe.is_fifo()
    os.close(reader)
    assert sorted(each.name for each in tmp_path.iterdir()) == ["link.html", "pipe", "target.html"]
