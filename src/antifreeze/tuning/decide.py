"""How many workers, and of which kind: what was measured in, what to do next out. Pure: no process, no clock, no torch.

    Measured (one window with one setting) ──▶ Tuner.decide ──▶ Decision (the setting for the next window, and why)

    home ──something may be better──▶ trial of it, a window at a time ──is better, as far as is known──▶ that one is home now
                                                  └──not, or not worth another window──▶ home again

1. What counts is how many samples a second the loop gets through, its own work included: workers that take the loop's core away,
   or cost more than they bring, show there. More workers must bring a little for each doubling; where the loop does not wait, they must
   bring more, so fewer that do the same are better.
2. Home is what is believed to be the best of all that was tried (belief.py). One other setting is tried at a time, and only where
   what it may bring, over as long as it has run so far, is more than what trying it costs, the starting of workers included. So what is
   nearly as good is looked at again now and then, what was far behind hardly ever, and on a steady machine the changes become ever
   rarer. A trial that goes badly lasts no longer than it takes to see that.
3. A decision never leaves its Limits: samples that compute get a core each, and the loop one where it needs it; samples that wait for
   something outside get more; memory bounds both.
4. Where the loop does not wait, nothing is tried but fewer workers.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace

from antifreeze.tuning.belief import Belief, Prospect
from antifreeze.tuning.setting import INLINE, WAITS_OUTSIDE, Limits, Setting
from antifreeze.tuning.window import Measured, depth_within, first_guess, fitting_workers, inline_rate, most_workers, why_as_it_is

WAITING_MATTERS = 0.05
PRICE, PRICE_IN_VAIN = 0.003, 0.02
"""What a doubling of the workers must bring at least, and where the loop does not wait."""
AHEAD = 0.005
"""So far ahead more workers must be believed to be besides: changing costs something too."""
WORTH_A_TRIAL = 0.003
"""What a trial may bring at least."""
LEAN = 0.1
"""What a doubling of workers that are busy is expected to bring, before any was tried."""
LOOKS_AHEAD = 20
"""Windows: what comes after is worth a trial even where it has just begun."""
CHANGING = 1.3
"""Windows that a trial takes, with getting there and back."""
STARTING = 2.0
"""What the forks for a trial take counts so many times: beforehand, what a trial may bring looks better than it is. (On the machines of
tests/tuning/test_machines.py with short epochs of slow reads, 0.93 of the best setting became 0.98 with it.)"""
AS_GOOD_AT_BEST = 0.9
"""Loading in the loop is not tried where even at its best it could not reach this much: while it lasts, nothing is loaded ahead."""
FAR_BEHIND, FAR_AHEAD = 0.75, 2.0
CHANGED = 1.5
"""A rate so many times larger or smaller than it was, twice in a row, says that the machine, or the work itself, has changed."""
SOME = 4
"""Workers for batches that are loaded faster than they are handed over, where there are cores to spare; twice as many where there are
plenty."""
HARDLY = 1e-4
"""Of a window: what the very first batch says, which may have opened everything that the others find open; and the first window of a trial
that is STOOD_STILL behind, in which the machine may have been busy with something else. A second one is believed."""
STOOD_STILL = 0.5
BAD_TIME = 0.03
"""How likely it is that another program kept a setting from being what it is, whenever it was looked at."""
NO_CORE = 0.1
PATIENCE, MOST_PATIENCE = 8, 512


Chances = list[tuple[float, Prospect]]
"""What may be the case, and how likely it is."""


@dataclass(frozen=True)
class Decision:
    """`depth`: batches that may be in flight, where memory sets a bound to them; None as many as it takes."""

    setting: Setting
    why: str
    depth: int | None = None
    is_trial: bool = False


@dataclass
class Tuner:
    """What was learnt so far about one loader. `home` is the best setting known."""

    limits: Limits
    home: Setting
    belief: Belief = field(default_factory=Belief)
    why: str = ""  # it is home
    _trial: Setting | None = None
    _waits: dict[Setting, float] = field(default_factory=dict)  # the loop, in the last window with each that was tried
    _odd_windows: int = 0
    _steady_for: int = 0
    _patience: int = PATIENCE

    def decide(self, seen: Measured) -> Decision:
        """After a window; what was seen is of the setting that was decided on last, or it is passed over."""
        self._stay_within(seen)
        if seen.setting not in (self.home, self._trial):
            self._trial = None
            return Decision(self.home, self.why or "nothing else is known yet", depth_within(seen))
        self._waits[seen.setting] = seen.waits
        if seen.setting == self.home:
            self._note_home(seen)
        else:
            self.belief.note(seen.setting, seen.rate, at_home=False, says=HARDLY if self._may_be_a_bad_moment(seen) else 1.0)
            self._settle(seen)
        decision = self._look_around(seen)
        self._trial = decision.setting if decision.is_trial else None
        return decision

    def goes_badly(self, setting: Setting, rate: float) -> bool:
        """Whether that much is seen of a trial already: while it lasts, the loop has less."""
        return setting == self._trial and self.home in self.belief and rate < FAR_BEHIND * self.belief.rate(self.home)

    def goes_well(self, setting: Setting, rate: float) -> bool:
        """So that there is nothing to wait for."""
        return setting == self._trial and self.home in self.belief and rate > FAR_AHEAD * self.belief.rate(self.home)

    def end_trial(self) -> Decision | None:
        """Nothing can be seen of it; None where none is under way. What is not known of it is not known."""
        if self._trial is None:
            return None
        self._trial = None
        return Decision(self.home, self.why or "nothing else is known yet")

    def cannot(self, setting: Setting) -> None:
        """It could not be had (a worker that does not start): not tried again, nor anything with more workers."""
        fewer = setting.workers - 1
        self.limits = Limits(self.limits.inline, max(1, min(self.limits.most, fewer)), () if fewer < 1 else self.limits.kinds)
        self._trial = None
        if self.home.workers > self.limits.most:
            self.home, self.why = Setting(self.home.kind, self.limits.most), f"{setting} could not be had"

    def _stay_within(self, seen: Measured) -> None:
        """Memory that workers of home have, or gave back for a trial, is not asked for again: of what is left only half would count."""
        fitting = most_workers if seen.shared else fitting_workers
        fit = fitting(replace(seen, available_bytes=None), self.limits.most)
        if self._trial is not None and self._trial.workers > fit:
            self._trial = None
        if self.home.workers > fit:
            self.home, self._trial = Setting(self.home.kind, fit), None
            self.why = "other loaders need cores too" if seen.shared else "no more fit into the memory there is"

    # --- learning ---

    def _may_be_a_bad_moment(self, seen: Measured) -> bool:
        return seen.setting not in self.belief and seen.rate < STOOD_STILL * self.belief.rate(self.home)

    def _note_home(self, seen: Measured) -> None:
        known = self.belief.rate(self.home) if self.home in self.belief else seen.rate
        self.belief.note(self.home, seen.rate, at_home=True, says=1.0 if self.belief.windows or seen.batches > 1 else HARDLY)
        self._steady_for += 1
        odd = not known / CHANGED <= seen.rate <= known * CHANGED
        self._odd_windows = self._odd_windows + 1 if odd else 0
        if self._odd_windows >= 2:
            unsure = self._steady_for >= self._patience
            self.belief.change(self.home, seen.rate, unsure)
            self._odd_windows = 0
            if unsure:
                self._steady_for, self._patience = 0, min(MOST_PATIENCE, 2 * self._patience)

    def _settle(self, seen: Measured) -> None:
        """The setting that was tried may be the better one."""
        trial, before = seen.setting, self.home
        lead = self.belief.compare(before, [trial])[trial].lead
        if lead < self._price(trial):
            self.why = self.why or f"{trial} did {math.exp(lead):.2f}× as much"
            return
        times = f"{math.exp(lead):.2f}× as fast" if lead >= AHEAD else "no slower"
        waited = f"the loop waited for data {self._waits[before]:.0%} of the time with {before}"
        self.why = f"{waited} and goes {times} with this, waiting {seen.waits:.0%}"
        self.home = trial

    def _price(self, setting: Setting) -> float:
        """What it must be ahead of home by; where fewer workers need not be as fast, less than 0. More are in vain where the loop does not
        wait with the fewer of the two, whichever of them is home: else what is worth a trial would never be worth keeping, for ever."""
        doublings = math.log2((1 + setting.workers) / (1 + self.home.workers))
        in_vain = self._waits[min(setting, self.home, key=lambda each: each.workers)] < WAITING_MATTERS
        return doublings * (PRICE_IN_VAIN if in_vain else PRICE) + AHEAD * (doublings > 0)

    # --- choosing ---

    def _look_around(self, seen: Measured) -> Decision:
        """The next setting to try, if any is worth it; a trial goes on, or ends at home."""
        candidates = {setting: why for setting, why in self._candidates(seen) if setting != self.home}
        if seen.setting != self.home:
            less_known = self.belief.weight(seen.setting) < self.belief.weight(self.home)
            candidates = {seen.setting: "it may be better"} if less_known else {}
        prospects = self.belief.compare(self.home, list(candidates)) if candidates else {}
        worths = {
            setting: self._worth(self._chances(seen, setting, prospect)) - self._starting(seen, setting)
            for setting, prospect in prospects.items()
        }
        best = max(worths, key=worths.__getitem__, default=None)
        if best is not None and worths[best] > 0:
            return Decision(best, candidates[best], depth_within(seen), is_trial=True)
        self.why = self.why or _because(seen, why_as_it_is(seen))
        return Decision(self.home, self.why, depth_within(seen))

    def _chances(self, seen: Measured, setting: Setting, prospect: Prospect) -> Chances:
        """Of a trial: by what was measured; and, where that is long enough ago, if the machine was just busy with something else then."""
        if setting not in self.belief:
            return [(1.0, prospect.ahead_by(self._hope(seen, setting)))]
        measured = prospect.ahead_by(-self._price(setting))
        if not self.belief.is_due_again(setting):
            return [(1.0, measured)]
        unseen = self.belief.compare_unseen(self.home, setting).ahead_by(self._hope(seen, setting))
        return [(1.0 - BAD_TIME, measured), (BAD_TIME, unseen)]

    def _hope(self, seen: Measured, setting: Setting) -> float:
        """What speaks for a setting before its first window: where workers are busy and have cores, more of them promise more."""
        if setting.kind is not self.home.kind or _are_too_many(self.home.workers, seen):
            return 0.0
        return LEAN * math.log2(setting.workers / self.home.workers)

    def _worth(self, chances: Chances) -> float:
        """Of a trial: what it may bring over as long as there was something to measure so far, less what it costs."""
        gain = sum(part * prospect.gain for part, prospect in chances)
        loss = sum(part * prospect.loss for part, prospect in chances)
        return gain * (LOOKS_AHEAD + self.belief.windows) - min(loss, 1.0) * CHANGING if gain >= WORTH_A_TRIAL else 0.0

    def _starting(self, seen: Measured, setting: Setting) -> float:
        """Windows in which the loop stands still while workers are started, for the trial or, where they are fewer, after it."""
        if setting in (seen.setting, INLINE):
            return 0.0
        return STARTING * abs(setting.workers - self.home.workers) * seen.start_s / max(seen.elapsed_s, 1e-9)

    def _candidates(self, seen: Measured) -> list[tuple[Setting, str]]:
        home, most = self.home, most_workers(seen, self.limits.most)
        if seen.waits < WAITING_MATTERS:
            needed = seen.busy_workers
            return [(Setting(home.kind, needed), _because(seen, f"{needed} could load as much"))] if needed < home.workers else []
        if home == INLINE:
            return [(setting, _because(seen, "workers load beside it")) for setting in self._from_inline(seen, most)]
        found = [
            (Setting(home.kind, count), _because(seen, _why_more_or_fewer(seen, count))) for count in _beside(home.workers, seen, most)
        ]
        if self.limits.inline and inline_rate(seen) >= AS_GOOD_AT_BEST * seen.rate:
            found.append((INLINE, _because(seen, "handing over may cost more than it brings")))
        return found

    def _from_inline(self, seen: Measured, most: int) -> list[Setting]:
        """A guess; then its half, one, and those beside the best of them."""
        guess = first_guess(seen, most)
        guesses = [guess, max(1, guess // 2), 1]
        if seen.is_handed_over_slower:
            guesses = [min(most // 2, SOME)] * (most >= SOME) + [2 * SOME] * (most >= 3 * SOME)
        found = []
        for kind in self.limits.kinds:
            tried = [setting for setting in self.belief.tried if setting.kind is kind]
            counts = guesses + _beside(max(tried, key=self.belief.rate).workers, seen, most) if tried else guesses[:1]
            found += [Setting(kind, count) for count in counts]
        return found


def _beside(workers: int, seen: Measured, most: int) -> list[int]:
    """Counts to try next to so many, the most promising side first: large steps, and the smaller ones for where those are too much.
    Samples that wait outside may need very many more; half of workers that are busy will not load as much."""
    if seen.computing < WAITS_OUTSIDE:
        up, down = [4 * workers, 2 * workers], [workers // 2]
    else:
        quarter, eighth = max(1, workers // 4), max(1, workers // 8)
        up, down = [2 * workers, workers + quarter, workers + eighth], [workers - quarter, workers - eighth]
    if _are_too_many(workers, seen):
        steps = [workers // 2, *down, *up]
    else:
        steps = [*up, *down]
    return list(dict.fromkeys(max(1, min(most, count)) for count in steps))


def _are_too_many(workers: int, seen: Measured) -> bool:
    """As it seems: they lack cores, or are not busy."""
    return seen.computing >= WAITS_OUTSIDE and (_lack_cores(seen) or seen.busy_workers < workers)


def _lack_cores(seen: Measured) -> bool:
    return seen.without_core >= NO_CORE or seen.setting.workers > seen.cores


def _why_more_or_fewer(seen: Measured, count: int) -> str:
    workers = seen.setting.workers
    if count > workers:
        return "there is room for more"
    if _lack_cores(seen):
        return "the workers lack cores"
    return "handing over takes more of it than loading" if seen.busy_workers < workers else "fewer may do as much"


def _because(seen: Measured, more: str) -> str:
    return f"the loop waited for data {seen.waits:.0%} of the time and {more}"
