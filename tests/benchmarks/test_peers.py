"""The harness of benchmarks/peers.py without any peer: ratios, tables, refusals, and what it says where nothing is installed."""

from __future__ import annotations

import json
import subprocess
import sys
import xml.etree.ElementTree
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
BENCHMARKS = ROOT / "benchmarks"


@pytest.fixture
def parts(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The modules of the harness, which lie beside its command."""
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    import peer_bench
    import peer_chart
    import peer_child
    import peer_environments
    import peer_journal
    import peer_report
    import runs
    from peers import NAMES, contract

    return {
        "bench": peer_bench,
        "chart": peer_chart,
        "child": peer_child,
        "environments": peer_environments,
        "journal": peer_journal,
        "report": peer_report,
        "runs": runs,
        "contract": contract,
        "names": NAMES,
    }


def result(parts: Any, rate: float) -> Any:
    return parts["child"].PeerResult(1000, rate, rate / 2, 0.05, 0.01, 0.5, "float32[256, 16]")


def line(parts: Any, title: str, *rates: float | None, setting: str = "2 workers") -> Any:
    report = parts["report"]
    rounds = [report.Round(result(parts, rate) if rate else None, "" if rate else "it broke", number) for number, rate in enumerate(rates)]
    return report.Line(title, setting, rounds)


@pytest.mark.parametrize("behind", [[], ["(raylet) something ended"], ["", "{not JSON"]])
def test_what_a_library_prints_behind_the_result_is_passed_over(parts: Any, behind: list[str]) -> None:
    measured = result(parts, 500)
    assert parts["bench"].result_in(["a word before", json.dumps(asdict(measured)), *behind]) == measured
    assert parts["bench"].result_in(behind) is None


def test_a_ratio_is_the_median_of_the_ratios_within_a_round(parts: Any) -> None:
    base, other = line(parts, "base", 100, 200, 400), line(parts, "other", 300, 400, 3200)

    assert parts["report"].ratio_to(other, base) == 3.0


def test_rounds_that_failed_do_not_count(parts: Any) -> None:
    base, other = line(parts, "base", 100, 200, None), line(parts, "other", None, 400, 900)

    assert parts["report"].ratio_to(other, base) == 2.0
    assert parts["report"].ratio_to(line(parts, "never", None, None), base) is None


def test_the_table_has_the_fastest_first_and_the_reason_of_those_who_cannot(parts: Any) -> None:
    base = line(parts, "torch DataLoader, 2 workers", 100, 100)
    refused = replace(line(parts, "WebDataset"), setting="", reason="no rows by index")
    broken = line(parts, "Ray Data", None, None)

    text = parts["report"].table([base, refused, broken, line(parts, "antifreeze, 2 workers", 350, 350)], base, markdown=False)

    rows = text.splitlines()[2:]
    assert rows[0].startswith("antifreeze, 2 workers")
    assert "3.50×" in rows[0]
    assert rows[1].startswith("torch DataLoader, 2 workers")
    assert any(row.startswith("WebDataset") and "no rows by index" in row for row in rows[2:])
    assert any(row.startswith("Ray Data") and "failed: it broke" in row for row in rows[2:])


def test_within_a_round_the_measure_that_was_taken_closest_counts(parts: Any) -> None:
    report = parts["report"]
    base = report.Line("base", "", [report.Round(result(parts, 100), "", 0, 10.0), report.Round(result(parts, 200), "", 0, 5000.0)])
    later = report.Line("later", "", [report.Round(result(parts, 400), "", 0, 4990.0)])

    assert report.ratio_to(later, base) == 2.0


def record(parts: Any, title: str, number: int, rate: float | None = 100.0, look: str = "rate", **more: Any) -> Any:
    journal = parts["journal"]
    found = result(parts, rate) if rate and look == "rate" else None
    return journal.Record(journal.Look(look), title, "2 workers", number, 10.0, found, **more)


def test_what_was_kept_is_read_again_and_a_line_that_was_cut_off_is_passed_over(parts: Any, tmp_path: Path) -> None:
    kept = [record(parts, "base", 0), record(parts, "fast", 0, look="right", said="12 batches right")]
    journal = parts["journal"].Journal(tmp_path)
    for each in kept:
        journal.add("rows", each)
    with (tmp_path / "rows.jsonl").open("a") as file:
        file.write('{"look": "rate", "title": "ba')

    assert parts["journal"].Journal(tmp_path).of("rows") == kept
    assert parts["journal"].Journal(tmp_path).of("tokens") == []


def test_the_rounds_of_several_runs_follow_each_other(parts: Any, tmp_path: Path) -> None:
    for name, rates in (("first", [("base", 100.0), ("fast", 300.0)]), ("second", [("base", 50.0), ("slow", 25.0)])):
        journal = parts["journal"].Journal(tmp_path / name)
        for title, rate in rates:
            journal.add("rows", record(parts, title, 0, rate))

    records = parts["journal"].read_all([tmp_path / "first", tmp_path / "second"], "rows")
    found = {each.title: each for each in parts["bench"].lines_of(records, [])}

    assert parts["report"].ratio_to(found["fast"], found["base"]) == 3.0
    assert parts["report"].ratio_to(found["slow"], found["base"]) == 0.5
    assert found["base"].rate == 75.0


def test_a_row_whose_batches_are_wrong_has_no_figure(parts: Any) -> None:
    records = [
        record(parts, "base", 0),
        record(parts, "wrong", 0, 900.0),
        record(parts, "wrong", 0, look="right", error="row 3 has no label"),
    ]

    base, wrong = parts["bench"].lines_of(records, [])

    assert "wrong batches: row 3 has no label" in parts["report"].table([base, wrong], base, markdown=False)
    assert parts["report"].best([base, wrong]) is base


class Untouched:
    """In the place of a bench: notes who would be measured."""

    def __init__(self, parts: Any) -> None:
        self.parts, self.asked = parts, []

    def measure(self, task: Any, contender: Any, setting: Any, look: Any, number: int) -> Any:
        self.asked.append((contender.entry.title, look.value, number))
        import time

        journal = self.parts["journal"]
        rate = 10.0 if contender.entry.title == "slow" else 100.0
        return journal.Record(look, contender.entry.title, setting.name, number, time.time(), result(self.parts, rate))


def test_a_run_that_was_interrupted_goes_on_with_a_fresh_measure_and_who_is_far_behind_is_measured_once(parts: Any, tmp_path: Path) -> None:
    contract, look = parts["contract"], parts["journal"].Look
    task, peer = contract.TASKS["rows"], contract.Peer("torch", "torch", ())
    settings = (contract.Setting("2 workers"),)
    titles = ("torch DataLoader, 2 workers", "fast", "slow")
    contenders = [parts["bench"].Contender("torch_loader", peer, contract.Entry(title, settings)) for title in titles]
    journal = parts["journal"].Journal(tmp_path)
    for title in titles[:2]:
        journal.add("rows", record(parts, title, 0))  # long ago
    bench = Untouched(parts)

    parts["bench"].Rounds(bench, journal, task, contenders, {}).run(look.RATE, 2)

    assert bench.asked == [
        (titles[0], "rate", 0),
        ("slow", "rate", 0),
        (titles[0], "rate", 1),
        ("fast", "rate", 1),
    ]


def test_what_was_disturbed_is_measured_again_and_counts_only_where_there_is_no_better_one(parts: Any) -> None:
    disturbed, calm = result(parts, 50.0), result(parts, 100.0)
    disturbed = replace(disturbed, others_cores=1.5)
    records = [replace(record(parts, "fast", 0), result=each) for each in (disturbed, calm)]

    assert [line.rate for line in parts["bench"].lines_of(records, [])] == [100.0]
    assert [line.rate for line in parts["bench"].lines_of(records[:1], [])] == [50.0]


def test_a_wrapper_may_hold_a_measurement_back_and_is_no_part_of_it(parts: Any, tmp_path: Path) -> None:
    wrapper = tmp_path / "wrap.sh"
    wrapper.write_text('#!/bin/sh\nsleep 0.6\n"$@"\n')
    wrapper.chmod(0o700)
    code = "import os; print('ready', flush=True); print(os.getsid(0) == os.getpid(), flush=True)"

    ended = parts["runs"].run_process([sys.executable, "-c", code], {}, False, limit_s=30, wrap=[str(wrapper)])
    stuck = parts["runs"].run_process([sys.executable, "-c", "import time; time.sleep(60)"], {}, False, limit_s=0.2, wrap=[str(wrapper)])

    assert (ended.lines, ended.error) == (["True"], "")
    assert stuck.lines == []


def test_a_wrapper_that_does_not_let_go_is_named(parts: Any) -> None:
    ended = parts["runs"].run_process([sys.executable, "-c", "1"], {}, False, wrap=["false"])

    assert ended.error == "false never let it begin"


@pytest.mark.parametrize(
    ("task", "spoil"),
    [
        ("rows", lambda batch: batch[1].__setitem__(0, (batch[1][0] + 1) % 10)),
        ("rows", lambda batch: batch[0].__setitem__((3, 2), 5.0)),
        ("reads-32", lambda batch: batch[0].__setitem__((1, 7), batch[0][1, 7] + 1)),
        ("tokens", lambda batch: batch[1].__setitem__(0, batch[1][0] - 1)),
    ],
    ids=["label", "value", "byte", "length"],
)
def test_wrong_samples_are_found(parts: Any, task: str, spoil: Any) -> None:
    from peers.right import Checker
    from peers.samples import data_set, whole_batch

    task = replace(parts["contract"].TASKS[task], samples=600, batch_size=8)
    batch = whole_batch(task, data_set(task))(range(8))
    leaves = [parts["child"].to_numpy(leaf).copy() for leaf in parts["child"].leaves(batch)]

    Checker(task).look(leaves)
    spoil(leaves)
    with pytest.raises(ValueError, match=r"label|no row|not what was read|no sample"):
        Checker(task).look(leaves)


@pytest.mark.parametrize(
    ("ours", "peer", "kept"), [(400.0, 200.0, "yes"), (340.0, 200.0, "NO"), (400.0, 500.0, "NO")], ids=["kept", "too slow", "behind a peer"]
)
def test_a_promise_is_kept_only_ahead_of_every_peer_and_of_the_factor(parts: Any, ours: float, peer: float, kept: str) -> None:
    base = line(parts, "torch DataLoader, 2 workers", 100.0)
    lines = [base, line(parts, "tf.data", peer, setting="AUTOTUNE"), line(parts, "antifreeze, auto", ours, setting="auto")]

    found = parts["report"].verdict(parts["contract"].TASKS["rows"], lines, base)

    assert found[0] == "rows"
    assert found[-1] == kept
    assert found[3] == parts["report"].ratio(ours / 100)
    assert found[5] == "tf.data: AUTOTUNE"


@pytest.mark.parametrize(
    ("ours", "peer", "kept"),
    [(3170.0, 3180.0, "level, at the limit"), (3181.0, 3180.0, "yes"), (3000.0, 3180.0, "NO"), (3000.0, 2900.0, "yes")],
)
def test_where_only_so_many_reads_can_be_those_who_do_them_all_are_level(parts: Any, ours: float, peer: float, kept: str) -> None:
    base = line(parts, "torch DataLoader, 2 workers", 198.0)
    lines = [base, line(parts, "HF datasets", peer), line(parts, "antifreeze, threads", ours), line(parts, "antifreeze, auto", 9e3)]

    found = parts["report"].verdict(parts["contract"].TASKS["reads-32"], lines, base)

    assert (found[4], found[-1]) == ("ahead", kept)


def test_the_chart_has_ours_torchs_and_the_fastest_of_the_others(parts: Any) -> None:
    tasks, base = parts["contract"].TASKS, line(parts, "torch DataLoader, 2 workers", 200.0)
    others = [line(parts, name, rate) for name, rate in (("A, slow way", 210.0), ("A", 900.0), ("B", 800.0), ("C", 700.0), ("D", 600.0))]
    ours = [line(parts, "antifreeze, threads", 1600.0), line(parts, "antifreeze, auto", 9000.0, setting="auto")]
    hidden = [line(parts, "E", 500.0), line(parts, "F, in stored order", 99_000.0), replace(line(parts, "G", 99_000.0), wrong="row 3")]
    lines = [base, *others, *ours, *hidden, line(parts, "torch DataLoader, best", 300.0)]

    bars = parts["chart"].bars_of(tasks["reads-32"], lines)
    drawn = parts["chart"].chart({"reads-32": lines, "rows": [ours[0]]}, tasks, "A & B, 2 cores")

    assert [(bar.label, bar.times) for bar in bars] == [
        ("antifreeze", 8.0),  # not with as many reads as it likes
        ("A", 4.5),
        ("B", 4.0),
        ("C", 3.5),
        ("D", 3.0),
        ("torch, its best setting", 1.5),
        ("torch, 2 workers", 1.0),
    ]
    assert parts["chart"].limit_of(tasks["reads-32"], lines) == 16.0
    assert parts["chart"].limit_of(tasks["rows"], lines) is None
    assert xml.etree.ElementTree.fromstring(drawn).tag.endswith("svg")
    assert drawn.count('class="title"') == 1, "rows has nothing to be compared with"
    assert "A &amp; B, 2 cores" in drawn


def test_the_steady_part_of_an_epoch_begins_after_its_first_tenth(parts: Any) -> None:
    window = parts["child"].Window(2)
    for now_s in (1.0, 2.0, 3.0, 5.0):
        window.add(10, now_s)
    window.next_epoch()
    for now_s in (50.0, 51.0, 52.0):
        window.add(10, now_s)
    window.next_epoch()

    assert window.samples == 70
    assert window.steady_samples == 30
    assert window.steady_s == pytest.approx(4.0)


@pytest.mark.parametrize("first", range(8))
@pytest.mark.parametrize("last", range(8))
def test_of_waves_of_batches_none_is_cut_in_two(parts: Any, first: int, last: int) -> None:
    window = parts["child"].Window(8)
    come_at_s = [wave + 0.001 * batch for wave in range(9) for batch in range(8)]

    for now_s in come_at_s[first : len(come_at_s) - last]:
        window.add(10, now_s)

    assert window.steady_s >= 4.9
    assert window.steady_samples / window.steady_s == pytest.approx(80, rel=0.002)


def test_a_batch_of_another_shape_is_not_measured(parts: Any) -> None:
    import numpy as np

    task = parts["contract"].TASKS["rows"]
    parts["child"].complain_if_wrong(task, (np.zeros((256, 16)), np.zeros(256)))
    with pytest.raises(ValueError, match=r"the first batch of rows is float64\[16, 256\].*should have the shape \[256, 16\]"):
        parts["child"].complain_if_wrong(task, np.zeros((16, 256)))


def test_a_peer_that_is_not_installed_is_a_sentence(parts: Any, tmp_path: Path) -> None:
    peer = parts["contract"].Peer("grain", "Grain", ("grain==0.2.18",))
    environments = parts["environments"].Environments(tmp_path)

    assert environments.missing(peer) == "not installed here: python benchmarks/peers.py --install --peers grain"

    (tmp_path / "grain.refused").write_text("No matching distribution found for grain==0.2.18")
    assert environments.missing(peer) == "could not be installed; pip said: No matching distribution found for grain==0.2.18"


def test_pips_errors_are_what_is_kept_of_a_refusal(parts: Any) -> None:
    said = "Collecting x\nERROR: Could not find a version\nERROR: No matching distribution found for x\n\n[notice] a new pip\n"

    assert parts["environments"].last_words(said) == "Could not find a version No matching distribution found for x"
    assert parts["environments"].last_words("") == "nothing"


def test_every_peer_says_for_every_task_how_it_runs_or_why_not(parts: Any) -> None:
    contract = parts["contract"]
    for name in parts["names"]:
        module = contract.load_peer(name)
        for task in contract.TASKS.values():
            entries = module.entries(task)
            if isinstance(entries, contract.Refusal):
                assert len(entries.reason) > 20
                continue
            titles = [entry.title for entry in entries]
            assert len(set(titles)) == len(titles)
            for entry in entries:
                names = [setting.name for setting in entry.settings]
                assert names
                assert len(set(names)) == len(names)
                json.dumps([setting.options for setting in entry.settings])


def test_the_command_without_any_environment_says_so_and_ends(tmp_path: Path) -> None:
    command = [
        sys.executable,
        "benchmarks/peers.py",
        "--home",
        str(tmp_path),
        "--workloads",
        "rows",
        "--peers",
        "torch,grain",
        "--rounds",
        "1",
    ]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=150, check=False)

    assert done.returncode == 0, done.stderr
    assert "not installed here: python benchmarks/peers.py --install --peers grain" in done.stdout


def test_an_unknown_peer_or_workload_is_refused() -> None:
    for given, said in (
        (["--peers", "ffcv"], "no peer 'ffcv'; there are torch,"),
        (["--workloads", "x"], "no workload 'x'; there are rows,"),
        (["--from", "nowhere"], "no folder nowhere: --from reads what --save FOLDER kept"),
    ):
        done = subprocess.run(
            [sys.executable, "benchmarks/peers.py", *given], cwd=ROOT, capture_output=True, text=True, timeout=150, check=False
        )

        assert done.returncode == 2
        assert said in done.stderr
