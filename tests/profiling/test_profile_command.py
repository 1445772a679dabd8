"""`antifreeze profile` on real small data sets: what it prints, keeps and draws; its sentences and exit codes. No time is asserted."""

from __future__ import annotations

import json
import re
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "doctor"))

from browser import browser, find_browser

from antifreeze.cli import main
from antifreeze.profiling import measure

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="forks and /proc")

MODULE = """
import os, signal, time, traceback
import numpy as np, torch
from torch.utils.data import DataLoader, Dataset, IterableDataset, get_worker_info

class Small(Dataset):
    def __len__(self): return 200
    def __getitem__(self, i): return torch.full((16,), float(i)), i
class Sleepy(Small):
    def __getitem__(self, i):
        time.sleep(0.002)
        return super().__getitem__(i)
class Waits(Small):
    def __getitem__(self, i):
        time.sleep(0.005)
        return super().__getitem__(i)
class OneAtATime(Small):
    inside = 0
    def __getitem__(self, i):
        OneAtATime.inside += 1
        if OneAtATime.inside > 1: os._exit(7)
        time.sleep(0.01)
        OneAtATime.inside -= 1
        return super().__getitem__(i)
class Bad(Small):
    def __getitem__(self, i):
        if i % 3 == 0: raise KeyError(f"no picture {i}")
        return super().__getitem__(i)
class Never(Small):
    def __getitem__(self, i): time.sleep(1000)
class Kills(Small):
    def __getitem__(self, i): os._exit(3)
def is_tried():
    return any(frame.name == "run_trial" for frame in traceback.extract_stack())
class DiesInTheLoop(Small):
    def __getitem__(self, i):
        if is_tried() and get_worker_info() is None: os.kill(os.getpid(), signal.SIGSEGV)
        return super().__getitem__(i)
class FreezesInTheLoop(Small):
    def __getitem__(self, i):
        if is_tried() and get_worker_info() is None: time.sleep(1000)
        return super().__getitem__(i)
class Ragged(Small):
    def __getitem__(self, i): return torch.zeros(i + 1)
class Empty(Small):
    def __len__(self): return 0
class Unknown(Small):
    def __len__(self): raise RuntimeError("not counted yet")
class Once(IterableDataset):
    def __init__(self): self.items = iter([torch.zeros(2)] * 200)
    def __iter__(self): return self.items
class Stream(IterableDataset):
    def __iter__(self):
        info = get_worker_info()
        first, step = (info.id, info.num_workers) if info else (0, 1)
        return iter(torch.tensor([float(n)]) for n in range(first, 300, step))
def collate(samples): return [s[1] for s in samples]

unknown, once, waits, one_at_a_time = Unknown(), Once(), Waits(), OneAtATime()
dies_in_the_loop, freezes_in_the_loop = DiesInTheLoop(), FreezesInTheLoop()
small, sleepy, bad, never, kills, ragged, empty, stream, number = Small(), Sleepy(), Bad(), Never(), Kills(), Ragged(), Empty(), Stream(), 3
loader = DataLoader(small, batch_size=8, num_workers=1, collate_fn=collate, drop_last=True)
def step(batch): time.sleep(0.001)
def bad_step(batch): raise RuntimeError("no model")
"""
SCRIPT = """
import sys
from torch.utils.data import DataLoader
from data_for_profile import Small
assert __name__ == "__main__"
def train():
    warm = DataLoader(Small(), batch_size=4)
    next(iter(warm))
    train_loader = DataLoader(Small(), batch_size=16, shuffle=True)
    for batch in train_loader:
        sys.exit("the loop was entered")
train()
"""
QUICK = ["--seconds", "60", "--max-workers", "1"]  # never used up: see `folder`


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    (tmp_path / "data_for_profile.py").write_text(MODULE)
    (tmp_path / "train.py").write_text(SCRIPT)
    (tmp_path / "breaks_for_profile.py").write_text("raise RuntimeError('at import')\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    monkeypatch.setattr(measure, "SHARES", 600)  # short trials within a budget that is not used up
    yield tmp_path
    sys.modules.pop("data_for_profile", None)


def test_text_has_the_line_to_paste_and_every_part(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["profile", "data_for_profile:sleepy", *QUICK, "--step-ms", "5"]) == 0
    out, err = capsys.readouterr()
    assert re.search(r"loader = antifreeze\.DataLoader\(dataset, batch_size=32, shuffle=True, num_workers=\d", out)
    for part in ("the model will", "samples (", "slowest", "the GIL is", "collate", "pickle", "◀ the bottleneck",
                 "throughput over workers", "◀ recommended", "first batch", "torch's loader with no workers", "batch size"):  # fmt: skip
        assert part in out, part
    assert re.search(r"1 worker, batches of \d+: [\d,]+ samples/s", err)  # progress, one line for each trial


def test_when_the_time_is_over_the_rest_is_left_out_and_named(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A second is over when the samples are measured; none, one and two workers are tried all the same, and torch's own loader."""
    assert main(["profile", "data_for_profile:waits", "--seconds", "1", "--batch-size", "1", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [(trial["kind"], trial["workers"]) for trial in found["trials"]] == [("inline", 0), ("process", 1), ("process", 2)]
    assert found["present"]["rate"] > 0 and found["depths"] == found["sizes"] == []
    (note,) = [note for note in found["notes"] if "suffice" in note]
    assert note.startswith("--seconds 1 did not suffice for more than 2 workers,") and "threads" in note and "batch sizes" in note


def test_a_loader_keeps_its_arguments(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["profile", "data_for_profile:loader", *QUICK, "--step", "data_for_profile:step", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["schema"] == "antifreeze-profile/1"
    assert (found["batch_size"], found["present_workers"], found["present"]["workers"]) == (8, 1, 1)
    assert found["arguments"] == [["collate_fn", "collate"], ["drop_last", "True"]]
    assert "collate_fn=collate, drop_last=True" in found["recommendation"]["line"]
    assert found["samples"]["path"] == "parcel"
    assert found["step_s"] >= 0.001 and found["with_steps"][0]["waited_share"] is not None
    assert [trial["kind"] for trial in found["trials"]] == ["inline", "process", "thread"]
    assert found["trials"][1]["worker_pss"] > 1_000_000
    assert all(trial["rate"] > 0 for trial in found["trials"])


@pytest.mark.slow
def test_threads_have_their_own_curve(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--seconds", "60", "--max-workers", "4", "--batch-size", "1"]
    assert main(["profile", "data_for_profile:waits", *words, "--json", "--html", "page.html"]) == 0
    found = json.loads(capsys.readouterr().out)
    kinds = {kind: [trial["workers"] for trial in found["trials"] if trial["kind"] == kind] for kind in ("inline", "process", "thread")}
    assert kinds["inline"] == [0] and kinds["process"][:3] == [1, 2, 3] and kinds["thread"] == [1, 2, 4]
    rates = {(trial["kind"], trial["workers"]): trial["rate"] for trial in found["trials"]}
    assert rates["thread", 4] > 0.8 * rates["inline", 0]  # four wait beside each other: near 4 × where nothing else runs
    page = (folder / "page.html").read_text(encoding="utf-8")
    assert "</i>threads</span>" in page and "</i>processes</span>" in page
    advice = found["recommendation"]
    assert (advice["kind"] == "thread") == ('workers="thread"' in advice["line"]) == any("thread-safe" in hint for hint in advice["hints"])


@pytest.mark.slow
def test_a_data_set_that_threads_crash_is_measured_without_them(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["profile", "data_for_profile:one_at_a_time", "--seconds", "60", "--max-workers", "2", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert {trial["kind"] for trial in found["trials"]} == {"inline", "process"}
    (note,) = [note for note in found["notes"] if "threads" in note]
    assert note.endswith("data_for_profile:one_at_a_time cannot be loaded with 2 threads: it died (exit code 7)")


@pytest.mark.slow
def test_profiles_of_different_counts_are_compared_where_both_have_one(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["profile", "data_for_profile:small", "--seconds", "60", "--max-workers", "2", "--save", "old.json"]) == 0
    capsys.readouterr()
    assert main(["profile", "data_for_profile:small", *QUICK, "--compare", "old.json"]) == 0
    out = capsys.readouterr().out
    assert "not compared, since both must have it: only in the earlier one: 2 workers, 2 threads" in out
    assert "2 workers" not in out.partition("compared with the earlier profile")[2].partition("not compared")[0]


def test_a_stream_is_measured_too(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["profile", "data_for_profile:stream", *QUICK, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["length"] is None and len(found["samples"]["times"]) > 100


def test_a_script_is_run_as_far_as_its_loader(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["profile", "train.py", "--loader", "train_loader", *QUICK, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["target"], found["batch_size"], found["arguments"]) == ("train.py train_loader", 16, [["shuffle", "True"]])


def test_save_and_compare_and_page(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["profile", "data_for_profile:small", *QUICK, "--save", "old.json"]) == 0
    assert main(["profile", "data_for_profile:small", *QUICK, "--compare", "old.json", "--html", "page.html"]) == 0
    out = capsys.readouterr().out
    assert "compared with the earlier profile" in out and re.search(r"sample size .* same", out)
    page = (folder / "page.html").read_text(encoding="utf-8")
    assert "<script" not in page and re.findall(r'<[^>]*(?:src|href)="?([^" >]*)', page) == ["data:,"]
    for words in ("samples per second", "megabytes (MB)", "time per sample, in steps", "Compared with"):
        assert words in page


def test_bad_samples_can_be_left_out(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["profile", "data_for_profile:bad", *QUICK, "--skip-bad", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["samples"]["failed"] > 0


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["data_for_profile:number"], "int is no data set"),
        (["data_for_profile:absent"], "has no 'absent'"),
        (["absent_for_profile:x"], "does not import: ModuleNotFoundError"),
        (["breaks_for_profile:x"], "RuntimeError: at import"),
        (["data_for_profile"], "expected MODULE:OBJECT"),
        (["data_for_profile:bad"], "KeyError: 'no picture"),
        (["data_for_profile:never"], "cannot be measured: it did not answer within"),
        (["data_for_profile:kills"], "it died (exit code 3)"),
        (["data_for_profile:dies_in_the_loop"], "no workers: it died (SIGSEGV), at "),
        (["data_for_profile:freezes_in_the_loop"], "no workers: it did not answer within "),
        (["data_for_profile:ragged"], "samples do not make a batch"),
        (["data_for_profile:empty"], "gave no sample"),
        (["data_for_profile:unknown"], "the length of data_for_profile:unknown is not known: RuntimeError: not counted yet"),
        (["data_for_profile:once"], "a stream that can be read once cannot be measured"),
        (["data_for_profile:small", "--step", "data_for_profile:number"], "is no function of a batch"),
        (["data_for_profile:small", "--step", "data_for_profile:bad_step"], "the step raises RuntimeError: no model"),
        (["data_for_profile:small", "--step", "data_for_profile:step", "--step-ms", "3"], "say the same twice"),
        (["data_for_profile:small", "--compare", "absent.json"], "absent.json cannot be read"),
        (["data_for_profile:small", "--compare", "train.py"], "it is no JSON"),
        (["data_for_profile:never", "--save", "absent/x.json"], "measurements could not be written to absent/x.json: there is no folder"),
        (["data_for_profile:never", "--html", "."], "the page could not be written to .: it is a folder"),
        (["train.py"], "give --loader NAME"),
        (
            ["train.py", "--loader", "test_loader"],
            "(SystemExit the loop was entered) before it iterated a loader called 'test_loader'; it iterated ",
        ),
        (["absent.py", "--loader", "x"], "there is no such file"),
        (["data_for_profile:small", "--loader", "x"], "is for a script"),
    ],
)
def test_bad_input_is_2_and_a_sentence(
    words: list[str], sentence: str, folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    if "never" in words[0]:
        monkeypatch.setattr("antifreeze.profiling.sampling.SAMPLE_LIMIT_S", 0.3)
        monkeypatch.setattr("antifreeze.profiling.sampling.OTHERS_S", 0.3)
    if "freezes" in words[0]:
        monkeypatch.setattr("antifreeze.profiling.apart.SAMPLE_LIMIT_S", 0.3)
    assert main(["profile", *words, *QUICK]) == 2
    assert sentence in capsys.readouterr().err


@pytest.mark.parametrize("words", [["--step-ms", "-1"], ["--seconds", "x"], ["--batch-size", "0"], ["--max-workers", "many"]])
def test_wrong_numbers_are_refused(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as left:
        main(["profile", "m:x", *words])
    assert left.value.code == 2
    assert "expected" in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.skipif(find_browser() is None, reason="no chromium here: apt-get install chromium")
def test_the_page_in_a_real_browser(folder: Path) -> None:
    """Opened from disk: no complaint, no request, no sideways scrolling on a phone, no text over another's, dark and light."""
    assert main(["profile", "data_for_profile:sleepy", *QUICK, "--step-ms", "5", "--html", "page.html"]) == 0
    page, backgrounds = folder / "page.html", set()
    with browser() as window:
        for width, dark in ((1000, False), (390, True), (320, False)):
            window.open(page, width=width, height=844, dark=dark)
            assert window.complaints() == []
            assert window.requests() == [page.as_uri()]
            assert window.evaluate("document.documentElement.scrollWidth") <= width
            assert window.evaluate("document.querySelectorAll('svg').length") >= 4
            assert window.evaluate(OVERLAPS) == []
            backgrounds.add(window.evaluate("getComputedStyle(document.body).backgroundColor"))
    assert len(backgrounds) == 2
    shutil.rmtree(folder)


OVERLAPS = """
[...document.querySelectorAll('svg')].flatMap(svg => {
  const texts = [...svg.querySelectorAll('text')].map(t => [t.textContent, t.getBoundingClientRect()]);
  return texts.flatMap(([a, p], i) => texts.slice(i + 1).filter(([b, q]) =>
    p.left < q.right - 1 && q.left < p.right - 1 && p.top < q.bottom - 2 && q.top < p.bottom - 2).map(([b]) => a + ' / ' + b));
})
"""
