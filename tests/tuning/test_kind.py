"""workers="auto": what the first samples do, and which kind of workers follows from it."""

from __future__ import annotations

import random
import signal
import threading
import time
from typing import Any

import numpy as np
import pytest
import torch

from antifreeze import DataLoader
from antifreeze.options import WorkerKind
from antifreeze.tuning.probe import MOST_SAMPLES, probe
from antifreeze.tuning.setting import Kind, kind_for
from antifreeze.worker import turns as floor
from antifreeze.worker.journal import ROW_WORDS, JournalRow
from antifreeze.worker.turns import Of, Turn, Turns, Usage


@pytest.mark.parametrize(
    ("sample_s", "cpu_s", "draws", "kind"),
    [
        (0.010, 0.0001, False, Kind.THREAD),
        (0.010, 0.004, False, Kind.THREAD),
        (0.010, 0.006, False, Kind.PROCESS),  # computes
        (0.010, 0.0001, True, Kind.PROCESS),  # would take turns
        (0.0001, 0.0, False, Kind.PROCESS),  # so little to wait for
        (0.0, 0.0, False, Kind.PROCESS),
    ],
)
def test_kind_for(sample_s: float, cpu_s: float, draws: bool, kind: Kind) -> None:
    chosen, why = kind_for(sample_s, cpu_s, draws)
    assert chosen is kind
    assert why


class Samples:
    """Remembers in which threads it was asked."""

    def __init__(self, sample: Any, count: int = 24) -> None:
        self.sample, self.count = sample, count
        self.asked: list[str] = []

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> Any:
        self.asked.append(threading.current_thread().name)
        return self.sample(index)


def waiting(index: int) -> int:
    time.sleep(0.005)
    return index


def drawing(index: int) -> float:
    time.sleep(0.005)
    return random.random() + np.random.rand() + float(torch.rand(()))


def test_a_probe_sees_waiting_and_drawing_and_leaves_the_generators_as_they_were() -> None:
    seen = probe(Samples(waiting))
    assert seen is not None and not seen.draws
    assert 1 <= seen.samples <= MOST_SAMPLES
    before = (random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state().tolist())
    seen = probe(Samples(drawing))
    assert seen is not None and seen.draws
    assert (random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state().tolist()) == before


def test_a_probe_within_a_sample_of_a_thread_has_the_generators_for_itself() -> None:
    """While another thread has the floor, a loader inside a sample asks what its data set does. It put back, in the middle of the other
    sample, what that one had drawn from."""
    turns, probing, drawn = Turns(Usage()), threading.Event(), threading.Event()
    probed: list[Any] = []

    def quiet(index: int) -> int:
        probing.set()
        drawn.wait(10)
        return index

    def inside() -> None:
        asking.enter_thread()
        probed.append(probe(Samples(quiet)))

    asking = new_turn(turns)
    asker = threading.Thread(target=inside, daemon=True)

    def draw_beside_it() -> list[float]:
        asker.start()
        while asking not in floor._waiting and not probing.is_set():
            time.sleep(0.001)
        first = random.random()
        drawn.set()
        if probing.is_set():
            asker.join(10)
        return [first, random.random()]

    turns.open()
    alone = turns.take(new_turn(turns), 7, lambda: [random.random(), random.random()], Of.SAMPLE, True)
    assert turns.take(new_turn(turns), 7, draw_beside_it, Of.SAMPLE, True) == alone
    asker.join(10)
    assert turns.try_close(10.0)
    assert probed and not probed[0].draws


def new_turn(turns: Turns) -> Turn:
    return Turn(turns, JournalRow(memoryview(bytearray(8 * ROW_WORDS)).cast("q")))


class Alarm(TimeoutError):
    """As most alarms are."""


def test_an_alarm_within_a_probe_is_the_users() -> None:
    def ring(number: int, frame: Any) -> None:
        raise Alarm

    before = signal.signal(signal.SIGUSR1, ring)
    try:
        with pytest.raises(Alarm):
            probe(Samples(lambda index: signal.raise_signal(signal.SIGUSR1)))
    finally:
        signal.signal(signal.SIGUSR1, before)


@pytest.mark.parametrize("dataset", [{"a": 1}, [], Samples(lambda index: 1 / 0)], ids=["keys", "empty", "bad"])
def test_a_probe_that_tells_nothing(dataset: Any) -> None:
    assert probe(dataset) is None


def test_samples_that_wait_are_loaded_by_threads() -> None:
    dataset = Samples(waiting)
    with DataLoader(dataset, batch_size=4, num_workers=2, workers="auto") as loader:
        assert [int(index) for batch in loader for index in batch] == list(range(24))
        assert loader._own_options.workers is WorkerKind.THREAD
    assert any("antifreeze-worker" in name for name in dataset.asked)


@pytest.mark.parametrize(
    ("sample", "options"),
    [
        (drawing, {}),
        (lambda index: index, {}),
        (waiting, {"on_bad_sample": "skip"}),
        (waiting, {"sample_timeout_s": 5}),
        (waiting, {"worker_init_fn": print}),
    ],
    ids=["draws", "is quick", "skips", "has a deadline", "is prepared"],
)
def test_all_else_by_processes(sample: Any, options: dict[str, Any]) -> None:
    with DataLoader(Samples(sample), batch_size=4, num_workers=1, workers="auto", **options) as loader:
        assert len(list(loader)) == 6
        assert loader._own_options.workers is WorkerKind.PROCESS


def test_with_auto_the_report_says_the_kind_and_why() -> None:
    with DataLoader(Samples(waiting), batch_size=4, num_workers="auto", workers="auto") as loader:
        assert [int(index) for batch in loader for index in batch] == list(range(24))
        assert "workers would be threads: a sample waits" in loader.report().decided[0]


def test_the_bytes_are_those_of_any_other_kind() -> None:
    def batches(**options: Any) -> list[Any]:
        torch.manual_seed(3)
        with DataLoader(Samples(drawing), batch_size=4, shuffle=True, **options) as loader:
            return [batch.tolist() for batch in loader]

    assert batches(num_workers=2, workers="auto") == batches(num_workers=2) == batches()
