"""antifreeze.trace: the file is what trace viewers read, and what torch's profiler wrote goes into it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import defaultdict
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import Dataset

import antifreeze
from antifreeze import DataLoader, OptionError, TraceError, spans
from antifreeze.spans import Recorder

ALIGNED_US = 10_000_000  # two clocks, read at different moments; apart they would be by years, or by the machine's age


class Rows(Dataset[torch.Tensor]):
    def __len__(self) -> int:
        return 32

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.full((64,), float(index))


def run(**arguments: Any) -> None:
    with DataLoader(Rows(), batch_size=4, **arguments) as loader:
        for batch in loader:
            batch.sum()


def events_of(path: Path) -> list[dict[str, Any]]:
    """Reads a trace as a viewer does, and checks what one relies on."""
    document = json.loads(path.read_text())
    assert isinstance(document["traceEvents"], list)
    tracks: dict[Any, list[tuple[int, int]]] = defaultdict(list)
    for event in document["traceEvents"]:
        assert isinstance(event["name"], str)
        assert event["ph"] in "XMiBEsfCbe"
        assert {"pid", "tid"} <= set(event)
        if event["ph"] != "M":
            assert isinstance(event["ts"], (int, float))
        if event["ph"] == "X":
            assert event["dur"] >= 0
            if event.get("cat") == "antifreeze":
                begin = int(
                    event["ts"] * 1000
                )  # nanoseconds of a float: torch counts microseconds from long ago, so the last digit is lost
                tracks[event["pid"], event["tid"]].append((begin, begin + int(event["dur"] * 1000)))
    for track in tracks.values():
        track.sort(key=lambda span: (span[0], -span[1]))
        for (_, end), (begin, inner_end) in pairwise(track):  # one after the other, or one inside the other: a viewer draws no other
            assert begin >= end or inner_end <= end
    return list(document["traceEvents"])


def named(events: list[dict[str, Any]], name: str, kind: str = "antifreeze") -> list[dict[str, Any]]:
    return [event for event in events if event["name"] == f"antifreeze: {name}" and event.get("cat") == kind]


def test_the_loop_and_its_workers(tmp_path: Path) -> None:
    with antifreeze.trace(tmp_path / "out.json"):
        run(num_workers=2)
        run(num_workers=1, collate_fn=torch.stack)
    assert spans.active is None
    events = events_of(tmp_path / "out.json")
    assert len(named(events, "hand over")) == 16
    assert len(named(events, "next batch")) == 18  # and the two that find the end
    assert {event["pid"] for event in named(events, "wait for workers")} == {os.getpid()}
    workers = {event["pid"] for event in named(events, "fetch")}
    assert os.getpid() not in workers
    assert 2 <= len(workers) <= 3
    assert sum(event["args"]["rows"] for event in events if event["name"].startswith("antifreeze: batch")) == 64
    assert len(named(events, "collate")) == 8
    names = {event["args"]["name"] for event in events if event["ph"] == "M"}
    assert {"antifreeze: the loop", "antifreeze worker 0"} <= names
    loop = named(events, "next batch")
    began, ended = loop[0]["ts"] - ALIGNED_US, loop[-1]["ts"] + loop[-1]["dur"]
    assert all(began <= event["ts"] <= ended for event in named(events, "fetch")), "all processes are on one clock"


def test_workers_that_are_threads_are_threads_of_the_loops_process(tmp_path: Path) -> None:
    with antifreeze.trace(tmp_path / "out.json"):
        run(num_workers=2, workers="thread")
    events = events_of(tmp_path / "out.json")
    assert {event["pid"] for event in events} == {os.getpid()}
    names = {event["tid"]: event["args"]["name"] for event in events if event["ph"] == "M" and event["name"] == "thread_name"}
    assert sorted(names.values()) == ["antifreeze worker 0", "antifreeze worker 1", "antifreeze: the loop"]
    assert {names[event["tid"]] for event in named(events, "antifreeze: fetch")} <= {"antifreeze worker 0", "antifreeze worker 1"}


def test_without_workers(tmp_path: Path) -> None:
    trace = antifreeze.trace(tmp_path / "out.json").start()
    assert "0 spans so far" in repr(trace)
    run(num_workers=0)
    trace.stop()
    trace.stop()
    assert len(named(events_of(tmp_path / "out.json"), "load")) == 8
    run(num_workers=0)
    assert len(named(events_of(tmp_path / "out.json"), "load")) == 8


@pytest.mark.parametrize("as_file", [True, False])
def test_merged_with_what_torchs_profiler_recorded(as_file: bool, tmp_path: Path) -> None:
    with antifreeze.trace(tmp_path / "out.json") as trace:
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profiler:
            run(num_workers=1)
        if as_file:
            profiler.export_chrome_trace(str(tmp_path / "torch.json"))
        trace.merge(tmp_path / "torch.json" if as_file else profiler)
    events = events_of(tmp_path / "out.json")
    assert [event for event in events if event["name"] == "aten::sum"]
    ours, torchs = named(events, "next batch"), named(events, "next batch", "user_annotation")
    assert len(ours) == len(torchs) == 9
    assert all(abs(one["ts"] - other["ts"]) < ALIGNED_US for one, other in zip(ours, torchs, strict=True))
    assert len(named(events, "wait for workers", "user_annotation")) == 8
    assert named(events, "fetch")


def test_a_profiler_alone_sees_the_stages_and_without_one_nothing_is_recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profiler:
        run(num_workers=1)
    assert {"antifreeze: next batch", "antifreeze: wait for workers", "antifreeze: hand over"} <= {
        event.key for event in profiler.key_averages()
    }
    for module in ("iterator", "stages"):
        monkeypatch.setattr(f"antifreeze.delivery.{module}.Stage", None)  # whoever opens a stage now fails
    run(num_workers=1)
    run(num_workers=0)


def test_a_worker_that_ended_is_an_instant(tmp_path: Path) -> None:
    with antifreeze.trace(tmp_path / "out.json"), DataLoader(Rows(), batch_size=4, num_workers=1, recycle_worker_after=8) as loader:
        list(loader)
    instants = [event for event in events_of(tmp_path / "out.json") if event["ph"] == "i"]
    assert "antifreeze: worker ended" in {event["name"] for event in instants}


def test_what_cannot_be_is_said(tmp_path: Path) -> None:
    with pytest.raises(OptionError, match=r"cannot be written to .*nowhere.*: No such file"):
        antifreeze.trace(tmp_path / "nowhere" / "out.json").start()
    (tmp_path / "junk.json").write_text("[1]")
    with antifreeze.trace(tmp_path / "out.json") as trace:
        with pytest.raises(TraceError, match="recorded already"):
            antifreeze.trace(tmp_path / "other.json").start()
        with pytest.raises(OptionError, match="no list of traceEvents"):
            trace.merge(tmp_path / "junk.json")
        with pytest.raises(OptionError, match=r"no trace of torch's profiler: .*No such file"):
            trace.merge(tmp_path / "nothing.json")
        with pytest.raises(OptionError, match="no trace of torch's profiler"):
            trace.merge(3.5)
    assert not (tmp_path / "other.json").exists()
    with pytest.raises(TraceError, match="has ended"):
        trace.merge(tmp_path / "junk.json")
    assert events_of(tmp_path / "out.json") == []


def test_an_exception_in_the_loop_still_leaves_a_trace(tmp_path: Path) -> None:
    with pytest.raises(ZeroDivisionError), antifreeze.trace(tmp_path / "out.json"):
        run(num_workers=0)
        raise ZeroDivisionError
    assert len(named(events_of(tmp_path / "out.json"), "load")) == 8


def test_stages_that_follow_each_other_stand_apart() -> None:
    recorder = Recorder()
    recorder.task(7, 0, 3, 1000, {"fetch": 500, "collate": 0, "write": 1}, rows=4, cpu_ns=5)
    task, fetch, write = recorder.spans
    assert (task.began_ns, task.took_ns, fetch.began_ns, write.began_ns, write.took_ns) == (1000, 501, 1000, 1500, 1)
    assert fetch.took_ns is not None and fetch.began_ns + fetch.took_ns < write.began_ns


def test_memory_is_bounded_and_what_is_left_out_is_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spans, "MOST", 3)
    recorder = Recorder()
    for number in range(5):
        recorder.add(1, number, "x", 0, 1)
    assert (len(recorder.spans), recorder.left_out) == (3, 2)


FORGOTTEN = """
import os, sys, torch, antifreeze
from torch.utils.data import TensorDataset
antifreeze.trace(sys.argv[1]).start()
list(antifreeze.DataLoader(TensorDataset(torch.arange(4.0))))
child = os.fork()
if child == 0:
    sys.exit(0)  # runs its exit functions, and must not write
os.waitpid(child, 0)
assert os.path.getsize(sys.argv[1]) == 0
"""


def test_a_trace_that_nobody_stopped_is_written_at_the_end_and_only_by_its_own_process(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", FORGOTTEN, tmp_path / "out.json"], capture_output=True, text=True, timeout=150, check=False
    )
    assert done.returncode == 0, done.stderr
    assert len(named(events_of(tmp_path / "out.json"), "load")) == 4
