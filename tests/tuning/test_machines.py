"""num_workers="auto" on machines that were measured: the rates are those of docs/benchmarks.md, of every fixed number of workers on sixteen
cores and on two, and each window is off by what windows there were off by. What is asked is what the benchmark asks: how much the loop gets
through after the first seconds, with all trials and changes, beside the best of all settings."""

from __future__ import annotations

import math
import random

import pytest

from antifreeze.tuning.decide import FAR_BEHIND, Tuner
from antifreeze.tuning.setting import INLINE, Limits, Setting
from antifreeze.tuning.window import Measured

Rates = dict[int, float]  # samples/ms by the number of workers

SIXTEEN_CORES: dict[str, tuple[Rates, int]] = {
    "rows": ({0: 146, 2: 333, 4: 557, 8: 981, 14: 900, 16: 850}, 256),
    "four-leaves": ({0: 73, 2: 163, 4: 232, 8: 279, 14: 211, 16: 190}, 128),
    "small-images": ({0: 98, 2: 213, 4: 295, 8: 333, 14: 244, 16: 220}, 128),
    "rows-tensordataset": ({0: 2640, 2: 2160, 4: 1620, 8: 1190, 14: 922, 16: 900}, 256),
    "strings": ({0: 45.6, 2: 91, 4: 142, 8: 223, 14: 185, 16: 170}, 64),
    "strings, another day": ({0: 65.9, 4: 189, 8: 304, 14: 309, 16: 300}, 64),
    "rows-listed": ({0: 190, 2: 476, 4: 774, 8: 1370, 14: 1820, 16: 1860}, 256),
    "images": ({0: 14, 2: 11.3, 4: 21.6, 8: 38, 14: 54.7, 16: 59}, 64),
    "jpeg": ({0: 0.362, 2: 1.08, 4: 1.77, 8: 3.42, 14: 5.12, 16: 5.45}, 64),
    "rows-batch": ({0: 1730, 2: 1730, 4: 1920, 8: 2030, 14: 2110, 16: 2110}, 256),
    "rows-batch, another day": ({0: 2350, 4: 2000, 8: 2810, 12: 2690, 14: 2930, 16: 2900}, 256),
    "tokens": ({0: 77, 2: 154, 4: 254, 8: 452, 14: 604, 16: 600}, 64),
    "tokens, another day": ({0: 79, 2: 150, 4: 230, 8: 362, 14: 409, 16: 400}, 64),
}
TWO_CORES: dict[str, tuple[Rates, int]] = {
    "images": ({0: 15.4, 1: 9.6, 2: 18.3}, 64),
    "rows": ({0: 348, 1: 590, 2: 601}, 256),
    "tokens": ({0: 204, 1: 281, 2: 212}, 64),
    "strings": ({0: 115, 1: 135, 2: 138}, 64),
    "four-leaves": ({0: 191, 1: 297, 2: 228}, 128),
    "small-images": ({0: 249, 1: 250, 2: 255}, 128),
    "rows-tensordataset": ({0: 4400, 1: 2660, 2: 2030}, 256),
    "rows-batch": ({0: 2660, 1: 1210, 2: 1290}, 256),
    "jpeg": ({0: 0.5, 1: 0.94, 2: 1.33}, 64),
}
SLOW_READS: dict[str, Rates] = {
    "long epochs": {0: 0.098, 1: 0.1, 2: 0.2, 4: 0.39, 8: 0.78, 16: 1.55, 32: 3.15, 64: 6.32, 128: 12.4, 256: 18.9},
    "epochs of 48 batches": {0: 0.098, 1: 0.1, 2: 0.2, 4: 0.39, 8: 0.78, 16: 1.55, 32: 3.12, 64: 5.97, 128: 7.46, 256: 5.98},
}

WINDOW_S, FIRST_WINDOW_S, SHORT_WINDOW_S, CHANGE_S = 0.4, 0.2, 0.08, 0.13
START_S = 0.012
"""That starting a worker takes the loop. CHANGE_S has that of a few in it; of hundreds it is most of what a change costs."""
MACHINES = 12


def rate_of(rates: Rates, workers: int) -> float:
    """Of numbers between those that were measured, in proportion."""
    if workers in rates:
        return rates[workers]
    above = min(count for count in rates if count > workers)
    below = max((count for count in rates if 0 < count < workers), default=0)
    if not below:
        return rates[above] * workers / above
    return rates[below] + (rates[above] - rates[below]) * (workers - below) / (above - below)


class Machine:
    """A loop that only waits. Windows are off by `noise`, each for itself, and by three quarters of that for some seconds at a time."""

    def __init__(
        self, rates: Rates, batch_size: int, cores: int, seed: int, noise: float = 0.08, computing: float = 1.0, start_s: float = 0.0
    ) -> None:
        self.rates, self.batch_size, self.cores, self.computing, self.start_s = rates, batch_size, cores, computing, start_s
        self.noise, self.random = noise, random.Random(seed)
        self.tuner = Tuner(Limits(inline=True), INLINE)
        self.started = 0
        self.now_s, self.weather, self.speed = 0.0, 0.0, 1.0
        self.setting = self.tuner.home
        self.samples = 0.0

    def run_until(self, end_s: float) -> float:
        """The samples that came until then, as a part of what the best setting would have brought."""
        begun_s, self.samples = self.now_s, 0.0
        while self.now_s < end_s:
            self._window()
        return self.samples / (self.now_s - begun_s) / max(self.rates.values())

    def _window(self) -> None:
        self.weather = 0.8 * self.weather + self.random.gauss(0, 0.45 * self.noise)
        true = rate_of(self.rates, self.setting.workers)
        seen = true * self.speed * math.exp(self.weather + self.random.gauss(0, self.noise))
        is_trial = self.setting != self.tuner.home
        badly = is_trial and 1000 * seen < FAR_BEHIND * self.tuner.belief.rate(self.tuner.home)
        self._pass(SHORT_WINDOW_S if badly else WINDOW_S if self.now_s else FIRST_WINDOW_S, true)
        before, self.setting = self.setting, self.tuner.decide(self._measured(self.setting, 1000 * seen)).setting
        if self.setting != before:
            more = max(0, self.setting.workers - before.workers)
            self.started += more
            self._pass(more * self.start_s, 0.0)
            self._pass(CHANGE_S, min(true, rate_of(self.rates, self.setting.workers)))

    def _pass(self, seconds: float, rate: float) -> None:
        self.now_s += seconds
        self.samples += seconds * rate

    def _measured(self, setting: Setting, rate: float) -> Measured:
        """Of a second: workers are at work for as long as the samples take one of them, but hardly ever all the time."""
        work_s = min(max(1, setting.workers) * 0.95, 1.15 * rate / self.rates[0] / 1000) if setting.workers else 0.95
        batches = max(1, int(rate / self.batch_size))
        start_s = self.start_s / WINDOW_S if self.started else 0.0
        return Measured(
            setting, max(1, int(rate)), batches, 1.0, 0.95, work_s, work_s * self.computing, 0.0, self.cores, batch_tasks=8, start_s=start_s
        )


def mean(values: list[float]) -> float:
    return sum(values) / len(values)


def later(rates: Rates, batch_size: int, cores: int, seed: int, noise: float = 0.08) -> float:
    """After ten seconds, for as long as the benchmark measures."""
    machine = Machine(rates, batch_size, cores, seed, noise)
    machine.run_until(10.0)
    return machine.run_until(13.5)


@pytest.mark.parametrize("workload", SIXTEEN_CORES)
def test_on_sixteen_cores(workload: str) -> None:
    assert mean([later(*SIXTEEN_CORES[workload], 16, seed) for seed in range(MACHINES)]) >= 0.95


@pytest.mark.parametrize("noise", [0.04, 0.12])
def test_on_sixteen_cores_of_a_calm_and_of_a_restless_host(noise: float) -> None:
    found = {name: mean([later(*of, 16, seed, noise) for seed in range(MACHINES)]) for name, of in SIXTEEN_CORES.items()}
    assert mean(list(found.values())) >= 0.96 and min(found.values()) >= 0.92, found


@pytest.mark.parametrize("workload", TWO_CORES)
def test_on_two_cores(workload: str) -> None:
    assert mean([later(*TWO_CORES[workload], 2, seed) for seed in range(MACHINES)]) >= 0.97


@pytest.mark.parametrize("epochs", SLOW_READS)
def test_reads_that_wait(epochs: str) -> None:
    machines = [Machine(SLOW_READS[epochs], 8, 2, seed, computing=0.005, start_s=START_S) for seed in range(MACHINES)]
    assert min(machine.run_until(10.0) for machine in machines) >= 0.45
    assert mean([machine.run_until(20.0) for machine in machines]) >= 0.93
    assert mean([machine.run_until(60.0) for machine in machines]) >= 0.96


@pytest.mark.parametrize("workload", ["tokens", "strings", "rows-tensordataset"])
@pytest.mark.parametrize("speed", [0.8, 1.25])
def test_where_everything_becomes_slower_or_faster_at_once_nothing_is_lost(workload: str, speed: float) -> None:
    """Another program on the machine, say: no other setting is better for it."""
    machines = [Machine(*SIXTEEN_CORES[workload], 16, seed) for seed in range(MACHINES)]
    for machine in machines:
        machine.run_until(20.0)
        machine.speed = speed
    assert mean([machine.run_until(35.0) for machine in machines]) >= 0.95


def test_where_the_best_setting_becomes_another_one_it_is_found() -> None:
    machines = [Machine(*SIXTEEN_CORES["tokens"], 16, seed) for seed in range(MACHINES)]
    for machine in machines:
        machine.run_until(20.0)
        machine.rates = SIXTEEN_CORES["four-leaves"][0]
        machine.run_until(40.0)
    assert mean([machine.run_until(60.0) for machine in machines]) >= 0.93


def test_changes_become_rare() -> None:
    machine = Machine(*SIXTEEN_CORES["strings"], 16, seed=1)
    machine.run_until(60.0)
    changes, before = 0, machine.setting
    while machine.now_s < 120.0:
        machine._window()
        changes, before = changes + (machine.setting != before), machine.setting
    assert changes <= 12


class Pausing(Machine):
    """Stands still for most of its third window, whatever setting it is of."""

    windows = 0

    def _measured(self, setting: Setting, rate: float) -> Measured:
        self.windows += 1
        return super()._measured(setting, rate * (0.01 if self.windows == 3 else 1))


@pytest.mark.parametrize("workload", ["tokens", "jpeg", "rows"])
def test_a_single_bad_moment_is_no_word_on_a_setting(workload: str) -> None:
    machines = [Pausing(*SIXTEEN_CORES[workload], 16, seed) for seed in range(MACHINES)]
    for machine in machines:
        machine.run_until(10.0)
    assert mean([machine.run_until(30.0) for machine in machines]) >= 0.95


class Contended(Machine):
    """Another program uses the cores from the third second to the sixth. Workers get half as much done; the loop that loads alone, with
    threads that wait for each other, next to nothing."""

    def _window(self) -> None:
        alone, busy = self.rates, 3.0 <= self.now_s < 6.0
        part = 1.0 if not busy else 0.5 if self.setting.workers else 0.02
        self.rates = {workers: rate * part for workers, rate in alone.items()}
        super()._window()
        self.rates = alone


@pytest.mark.parametrize(("workload", "least"), [("rows-batch", 0.97), ("rows-tensordataset", 0.97), ("tokens", 0.95), ("jpeg", 0.95)])
def test_a_bad_time_is_over_when_it_is_over(workload: str, least: float) -> None:
    machines = [Contended(*TWO_CORES[workload], 2, seed) for seed in range(MACHINES)]
    for machine in machines:
        machine.run_until(16.0)
    assert mean([machine.run_until(40.0) for machine in machines]) >= least


def test_a_bad_time_on_sixteen_cores() -> None:
    found = {}
    for workload, of in SIXTEEN_CORES.items():
        machines = [Contended(*of, 16, seed) for seed in range(MACHINES)]
        for machine in machines:
            machine.run_until(16.0)
        found[workload] = mean([machine.run_until(40.0) for machine in machines])
    assert mean(list(found.values())) >= 0.95 and min(found.values()) >= 0.9, found
