"""How many workers, and of which kind: what was measured in, what to do next out. Pure: no process, no clock, no torch.

    Measured (one window with one setting) ──▶ Tuner.decide ──▶ Decision (the setting for the next window, and why)

    home ──waits for data──▶ trial of another setting ──faster──▶ that one is home now
                                       └──not faster──▶ home again, and the other rests

1. What counts is how many samples a second the loop gets through, its own work included: workers that take the loop's core away,
   or cost more than they bring, show there. Where the loop does not wait, fewer workers that do the same are better.
2. One setting is tried at a time, for one window, and for a second one where it did better (unless samples wait for something outside and
   it did far better: that is no noise); one that goes badly, for no longer than it takes to see that. One that was not better rests, each
   time twice as long; one that was far behind twice is tried again only when everything has changed. So on a steady machine the changes
   become ever rarer.
3. A decision never leaves its Limits: samples that compute get a core each, and the loop one where it needs it; samples that wait for
   something outside get more; memory bounds both.
4. Where the loop does not wait, nothing is tried but fewer workers. Where it waits for workers that are not busy, fewer are tried too:
   handing over is what takes the time.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass, field
from enum import Enum

WAITING_MATTERS = 0.05
BETTER = 1.04
"""Another setting must bring this much, or it is noise."""
AS_GOOD = 0.98
"""Enough for fewer workers where the loop does not wait."""
WORSE = 0.9
"""A count that did less than this says the same of those behind it."""
AS_GOOD_AT_BEST = 0.9
"""Loading in the loop is not tried where even at its best it could not reach this much: while it lasts, nothing is loaded ahead."""
FAR_BEHIND, HOPELESS = 0.75, 0.4
CHANGED = 1.5
"""A rate so many times larger or smaller than it was says that the work itself has changed."""
CLEARLY_BETTER = 1.5
"""Of samples that wait for something outside: no second window is needed to believe it."""
MOST_PROCESSES, MOST_THREADS = 64, 256
WAITS_OUTSIDE = 0.5
"""Below this share of computing, samples wait for something that more workers wait for at the same time."""
LEAST_COMPUTING = 0.005
"""A share that is measured as less is taken as this."""
WORTH_A_THREAD_S = 0.001
"""A sample that takes less than this waits for nothing outside worth speaking of."""
NO_CORE = 0.1
HAND_OVER_S = 150e-6
"""About what handing a batch from a worker to the loop costs both of them: a batch that loads faster is loaded by the loop, and
workers are tried only where there are cores for SOME, twice as many where there are plenty, and stay only where they bring as much as
WORTH_WORKERS."""
SOME, WORTH_WORKERS = 4, 1.15
QUICK_BATCH_S = 0.002
"""A batch that loads in less is made by the loop too, while it would wait: what workers have ready meanwhile does not wait for long."""
LOOP_NEEDS_CORE = 0.3
BUSY_ENOUGH = 0.7
REST, LONGEST_REST = 8, 512
AVERAGED_WINDOWS = 4
"""In the rate of home: a setting is not compared with a single window."""
SECOND_CHANCE = 2
"""A machine has bad moments: nothing is given up after a single window."""


class Kind(Enum):
    """Where samples are loaded."""

    INLINE = "inline"
    PROCESS = "process"
    THREAD = "thread"

    @property
    def plural(self) -> str:
        return "processes" if self is Kind.PROCESS else f"{self.value}s"


@dataclass(frozen=True)
class Setting:
    kind: Kind
    workers: int = 0

    def __str__(self) -> str:
        if self.kind is Kind.INLINE:
            return "no workers"
        plural = "" if self.workers == 1 else "es" if self.kind is Kind.PROCESS else "s"
        return f"{self.workers} worker {self.kind.value}{plural}"


INLINE = Setting(Kind.INLINE)


def kind_for(sample_s: float, cpu_s: float, draws: bool) -> tuple[Kind, str]:
    """Of workers for a data set that threads may share, and why: a sample takes `sample_s`, `cpu_s` of it computing, and `draws` numbers
    from the process's generators, which threads would have to do one after the other."""
    if draws:
        return Kind.PROCESS, "samples draw random numbers, which threads can only do one at a time"
    share = min(1.0, cpu_s / sample_s) if sample_s > 0 else 1.0
    if sample_s < WORTH_A_THREAD_S:
        return Kind.PROCESS, f"a sample takes {sample_s * 1e6:.0f} µs"
    if share >= WAITS_OUTSIDE:
        return Kind.PROCESS, f"a sample computes {share:.0%} of its time, and threads might keep the GIL from each other and the loop"
    return Kind.THREAD, f"a sample waits {1 - share:.0%} of its time, which threads do as well for less"


@dataclass(frozen=True)
class Limits:
    """What may be chosen: `inline` where nothing forbids loading in the user's process; `most` workers have a place."""

    inline: bool
    most: int = MOST_PROCESSES
    kinds: tuple[Kind, ...] = (Kind.PROCESS,)


@dataclass(frozen=True)
class Measured:
    """One window with one setting; seconds are sums. `elapsed_s` is the loop's time, in next() (`waited_s`) and in its own code;
    `work_s` what loading took, `cpu_s` of it computing, `queued_s` without a core."""

    setting: Setting
    samples: int
    batches: int
    elapsed_s: float
    waited_s: float
    work_s: float
    cpu_s: float
    queued_s: float
    cores: int
    shared: bool = False  # others of this process need cores too, and have theirs
    batch_tasks: int = 1  # among how many workers one batch can be split
    batch_bytes: int = 0
    budget_bytes: int | None = None
    worker_bytes: int = 0  # of one worker, its own
    available_bytes: int | None = None

    @property
    def rate(self) -> float:
        return self.samples / max(self.elapsed_s, 1e-9)

    @property
    def waits(self) -> float:
        return min(1.0, self.waited_s / max(self.elapsed_s, 1e-9))

    @property
    def computing(self) -> float:
        """The share of its time that a sample needs a core for."""
        return min(1.0, (self.cpu_s + self.queued_s) / self.work_s) if self.work_s > 0 else 1.0

    @property
    def without_core(self) -> float:
        return min(1.0, self.queued_s / self.work_s) if self.work_s > 0 else 0.0


@dataclass(frozen=True)
class Decision:
    """`depth`: batches that may be in flight, where memory sets a bound to them; None as many as it takes."""

    setting: Setting
    why: str
    depth: int | None = None
    is_trial: bool = False


@dataclass
class _Known:
    rate: float
    waits: float = 0.0
    windows: int = 1  # in the average
    tries: int = 0
    rests: int = 0  # windows until it may be tried again


@dataclass
class Tuner:
    """What was learnt so far about one loader. `home` is the best setting known."""

    limits: Limits
    home: Setting
    known: dict[Setting, _Known] = field(default_factory=dict)
    _trial: Setting | None = None
    _first_rate: float | None = None  # of a trial that went well and is confirmed now
    why: str = ""  # it is home
    _odd_windows: int = 0
    _steady_for: int = 0
    _patience: int = REST

    def decide(self, seen: Measured) -> Decision:
        """After a window; what was seen is of the setting that was decided on last, or it is passed over."""
        self._rest_all()
        self._stay_within(seen)
        if self._trial is not None and seen.setting == self._trial:
            decision = self._judge(seen)
        elif seen.setting == self.home:
            self._trial = None
            self._note_home(seen)
            decision = self._look_around(seen)
        else:
            self._trial = None
            decision = Decision(self.home, self.why or "nothing else is known yet")
        return Decision(decision.setting, decision.why, depth_within(seen), decision.is_trial)

    def goes_badly(self, setting: Setting, rate: float) -> bool:
        """Whether that much is seen of a trial already: while it lasts, the loop has less."""
        return setting == self._trial and self._first_rate is None and rate < FAR_BEHIND * self.known[self.home].rate

    def _stay_within(self, seen: Measured) -> None:
        fit = most_workers(seen, self.limits.most) if seen.shared else fitting_workers(seen, self.limits.most)
        if self.home.workers > fit:
            self.home, self._trial = Setting(self.home.kind, fit), None
            what = "other loaders need cores too" if seen.shared else "no more fit into the memory there is"
            self.why = what

    def cannot(self, setting: Setting) -> None:
        """It could not be had (a worker that does not start): not tried again before long, nor anything with more workers."""
        fewer = setting.workers - 1
        self.limits = Limits(self.limits.inline, max(1, min(self.limits.most, fewer)), () if fewer < 1 else self.limits.kinds)
        self._trial = None

    # --- learning ---

    def _rest_all(self) -> None:
        for known in self.known.values():
            known.rests = max(0, known.rests - 1)

    def _note_home(self, seen: Measured) -> None:
        known = self.known.setdefault(self.home, _Known(seen.rate))
        self._steady_for += 1
        odd = not known.rate / CHANGED <= seen.rate <= known.rate * CHANGED
        self._odd_windows = self._odd_windows + 1 if odd else 0
        if self._odd_windows >= 2 and self._steady_for >= self._patience:
            self.known = {self.home: _Known(seen.rate)}
            self._odd_windows = self._steady_for = 0
            self._patience = min(LONGEST_REST, 2 * self._patience)
        known = self.known[self.home]
        known.windows = min(known.windows + 1, AVERAGED_WINDOWS)
        known.rate, known.waits = known.rate + (seen.rate - known.rate) / known.windows, seen.waits

    def _judge(self, seen: Measured) -> Decision:
        """The end of a trial."""
        trial, home = seen.setting, self.known[self.home]
        rate = seen.rate if self._first_rate is None else (self._first_rate + seen.rate) / 2
        times = rate / max(home.rate, 1e-9)
        enough = AS_GOOD if trial.workers < self.home.workers and seen.waits < WAITING_MATTERS else BETTER
        if self.home.kind is Kind.INLINE and _per_batch_s(seen) < HAND_OVER_S:
            enough = WORTH_WORKERS
        sure = seen.computing < WAITS_OUTSIDE and times >= CLEARLY_BETTER
        if times >= enough and self._first_rate is None and not sure:
            self._first_rate = seen.rate
            return Decision(trial, "it was better for one window", is_trial=True)
        known = self.known.setdefault(trial, _Known(rate))
        known.rate, known.waits, known.windows = rate, seen.waits, 1 + (self._first_rate is not None)
        self._trial = self._first_rate = None
        if times >= enough:
            before, self.home = self.home, trial
            waited = f"the loop waited for data {home.waits:.0%} of the time with {before}"
            self.why = (
                f"{waited} and goes {f'{times:.2f}× as fast' if times >= BETTER else 'no slower'} with this, waiting {seen.waits:.0%}"
            )
            known.tries = 0
            home.tries, home.rests = home.tries + 1, self._rest_of(home)
            return self._look_around(seen)
        known.tries, known.rests = known.tries + 1, self._rest_of(known)
        self.why = self.why or f"{trial} did {times:.2f}× as much"
        return Decision(self.home, self.why)

    def _rest_of(self, known: _Known) -> int:
        return int(min(LONGEST_REST, REST * 2**known.tries))

    # --- choosing ---

    def _look_around(self, seen: Measured) -> Decision:
        """At home: the next setting to try, if any."""
        for setting, why in self._candidates(seen):
            if setting != self.home and self._may_try(setting):
                if self.home not in self.known:
                    self.known[self.home] = _Known(seen.rate, seen.waits)
                self._trial, self._first_rate = setting, None
                return Decision(setting, why, is_trial=True)
        if not self.why:
            self.why = _because(seen, _as_it_is(seen))
        return Decision(self.home, self.why)

    def _may_try(self, setting: Setting) -> bool:
        known = self.known.get(setting)
        if known is None:
            return True
        of_home = known.rate / max(self.known[self.home].rate, 1e-9)
        return known.rests == 0 and (of_home >= FAR_BEHIND or (of_home >= HOPELESS and known.tries < SECOND_CHANCE))

    def _candidates(self, seen: Measured) -> list[tuple[Setting, str]]:
        home = self.home
        most = self._most(seen)
        if home.kind is Kind.INLINE:
            return self._from_inline(seen, most)
        needed = max(1, math.ceil(seen.work_s / max(seen.elapsed_s, 1e-9) / BUSY_ENOUGH))
        fewer = [(Setting(home.kind, needed), _because(seen, f"{needed} could load as much"))] if needed < home.workers else []
        if seen.waits < WAITING_MATTERS:
            return fewer
        found = [(Setting(home.kind, count), _because(seen, why)) for count, why in self._beside(seen, most, needed)]
        if self.limits.inline and inline_rate(seen) >= AS_GOOD_AT_BEST * seen.rate:
            found.append((INLINE, _because(seen, "handing over may cost more than it brings")))
        return found

    def _beside(self, seen: Measured, most: int, needed: int) -> list[tuple[int, str]]:
        """Counts to try where the loop waits: large steps first, and none behind one that was worse, since more of the same is worse
        still. Fewer of workers that compute: where they lack cores, or are not busy and handing over is what takes the time."""
        workers = self.home.workers
        up = [(min(most, count), "there is room for more") for count in _steps_up(workers, seen)]
        down: list[tuple[int, str]] = []
        if seen.computing >= WAITS_OUTSIDE:
            lack = seen.without_core >= NO_CORE or workers > seen.cores
            why = "the workers lack cores" if lack else "handing over takes more of it than loading"
            half, quarter_less, eighth_less = workers // 2, workers - -(-workers // 4), workers - -(-workers // 8)
            steps = (quarter_less, half, eighth_less) if lack else (half, quarter_less, eighth_less)
            down = [(count, why) for count in steps if lack or needed < workers]
        found = [each for pair in itertools.zip_longest(up, down) for each in pair if each is not None]
        return [(count, why) for count, why in found if count > 0 and count != workers and not self._is_behind_a_worse_one(count)]

    def _is_behind_a_worse_one(self, count: int) -> bool:
        home = self.home
        enough = WORSE * self.known[home].rate if home in self.known else 0.0
        low, high = sorted((count, home.workers))
        between = [known for setting, known in self.known.items() if setting.kind is home.kind and low < setting.workers < high]
        return any(known.rate < enough for known in between)

    def _from_inline(self, seen: Measured, most: int) -> list[tuple[Setting, str]]:
        if most < 1 or not self.limits.kinds or seen.waits < WAITING_MATTERS:
            return []
        if _per_batch_s(seen) < HAND_OVER_S:
            some = ([min(most // 2, SOME)] if most >= SOME else []) + ([2 * SOME] if most >= 3 * SOME else [])
            return [(Setting(kind, count), _because(seen, "there are cores to spare")) for kind in self.limits.kinds for count in some]
        guess = _guess(seen, most)
        why = _because(seen, "workers load beside it")
        return [(Setting(kind, count), why) for kind in self.limits.kinds for count in self._counts(kind, guess, most)]

    def _counts(self, kind: Kind, guess: int, most: int) -> list[int]:
        """The guess, its half, one; and then those beside the best of them, where that was not far behind."""
        counts = [guess, max(1, guess // 2), 1]
        rates = {setting.workers: known.rate for setting, known in self.known.items() if setting.kind is kind}
        best = max(rates, key=rates.__getitem__, default=0)
        if rates and rates[best] >= FAR_BEHIND * self.known[self.home].rate:
            step = max(1, best // 4)
            counts += [max(1, min(most, best - step)), min(most, best + step)]  # there may be room for fewer than there was
        return list(dict.fromkeys(counts))

    def _most(self, seen: Measured) -> int:
        """Workers that there are cores and memory for."""
        most = most_workers(seen, self.limits.most)
        return most if self.limits.kinds else 0


def most_workers(seen: Measured, places: int) -> int:
    """That there are cores, memory and places for; at least 1."""
    if seen.computing >= WAITS_OUTSIDE:
        by_cores = seen.cores - (_loop_share(seen) >= LOOP_NEEDS_CORE)
    else:
        by_cores = int(seen.cores / max(seen.computing, LEAST_COMPUTING))
    return max(1, min(by_cores, fitting_workers(seen, places)))


def fitting_workers(seen: Measured, places: int) -> int:
    """That there is memory for; at least 1. More of them than parts of batches in flight would have nothing to do."""
    most, depth = places, depth_within(seen)
    if depth is not None:
        most = min(most, depth * max(1, seen.batch_tasks))
    if seen.available_bytes is not None and seen.worker_bytes:
        more = seen.available_bytes // 2 // seen.worker_bytes
        most = min(most, max(seen.setting.workers, 1) + more)
    return max(1, most)


def depth_within(seen: Measured) -> int | None:
    """Batches that memory_budget allows besides the one the loop holds; at least 1."""
    if seen.budget_bytes is None or not seen.batch_bytes:
        return None
    return max(1, seen.budget_bytes // seen.batch_bytes - 1)


def inline_rate(seen: Measured) -> float:
    """Samples a second if the loop loaded them itself, with nothing handed over and no core to wait for."""
    loop_s = seen.elapsed_s - seen.waited_s
    return seen.samples / max(loop_s + seen.work_s - seen.queued_s, 1e-9)


def loop_helps_beside(seen: Measured) -> int:
    """Beside up to so many workers the loop, while it waits for a batch, had better make another one itself: where batches are quick and
    compute, there is a core for it, it has time left from handing over theirs, and no bound is set to how many are in memory."""
    batch_s = (seen.work_s - seen.queued_s) / max(1, seen.batches)
    if batch_s > QUICK_BATCH_S or seen.computing < WAITS_OUTSIDE or seen.budget_bytes is not None:
        return 0
    return min(seen.cores - 1, int(BUSY_ENOUGH * batch_s / max(HAND_OVER_S, 1e-9)))


def _loop_share(seen: Measured) -> float:
    """How much of its time the loop would be at its own work, if all cores loaded for it."""
    loop_s = seen.elapsed_s - seen.waited_s
    return loop_s / max(loop_s, seen.work_s / max(1, seen.cores), 1e-9)


def _guess(seen: Measured, most: int) -> int:
    """As many as would load a batch in the time the loop needs for one; of those that wait outside, not all at once."""
    loop_s = seen.elapsed_s - seen.waited_s
    needed = most if loop_s * most <= seen.work_s else math.ceil(seen.work_s / loop_s)
    if seen.computing < WAITS_OUTSIDE:
        needed = min(needed, max(8, 2 * seen.cores))
    return max(1, min(most, needed))


def _steps_up(workers: int, seen: Measured) -> tuple[int, ...]:
    """Samples that wait outside may need very many; the smaller steps are for where the larger ones were too much."""
    if seen.computing < WAITS_OUTSIDE:
        return 4 * workers, 2 * workers
    return 2 * workers, workers + max(1, workers // 4), workers + max(1, workers // 8)


def _per_batch_s(seen: Measured) -> float:
    return seen.work_s / max(1, seen.batches)


def _as_it_is(seen: Measured) -> str:
    if seen.setting.kind is Kind.INLINE and _per_batch_s(seen) < HAND_OVER_S:
        return f"a batch takes {_per_batch_s(seen) * 1e6:.0f} µs to load, and handing one over takes longer"
    return "nothing else promises more"


def _because(seen: Measured, more: str) -> str:
    return f"the loop waited for data {seen.waits:.0%} of the time and {more}"
