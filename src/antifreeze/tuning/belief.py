"""What is believed of the speed of every setting, from windows with some of them. PURE.

    windows ──note──▶ an average for each setting that was tried ──compare──▶ how far another one may be ahead of home, and how sure that is

A window says how fast a setting is, give or take a twentieth, or a tenth on a busy machine. Three things are known beforehand and make
few windows tell much (a Gaussian process over the logarithm of the rate, as it is called):
1. Neighbouring counts are alike: 14 workers go about as fast as 15. So windows with one tell of the others, the less the further away.
2. The weather is the same for all: where home becomes slower and nothing was changed, so has everything else.
3. What was measured long ago says less, long being a part of all there was: so in a steady world looking again becomes ever rarer.
   And it may have been a bad time of the machine: what was far behind is due again after a while, each time twice as long.
Of what lies far from all that was tried nothing is known, and it may be as good as the best one, or far better.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from antifreeze.tuning.setting import INLINE, Setting

NOISE, LEAST_NOISE, MOST_NOISE, NOISE_GAIN = 0.06, 0.02, 0.15, 0.1
"""Of one window, as a part of its rate: what is believed at first, and what home's windows make of it."""
SPREAD, ALIKE_OCTAVES, OWN = 0.6, 1.5, 0.03
"""Rates differ so much among counts; twice as many workers are still this much alike (in doublings); and what a count has of its own."""
SPREAD_INLINE = 2.0
"""Of loading in the loop, which no number of workers tells anything about."""
AGES, AT_LEAST_WINDOWS = 0.15, 100
"""What all there was so far, and that many windows at least, may have changed."""
MOST_WEIGHT = 40.0
"""Of an average, in windows: it forgets what is older."""
UNLIKE, SETTLED = 0.4, 2.5
"""So far apart no two windows of a setting are, but for a bad moment; unless it was measured so often."""
APART = 8
"""Windows between two looks at a setting that are not of the same bad time."""
UNSURE = 0.5
"""Of how far home is off all of a sudden, the part that other settings may be off by besides."""
WEATHER_GAIN = 0.2
"""Of what a window of home is off by, the part that is taken for the weather, where home is well known."""
_DEVIATION = math.sqrt(math.pi / 2)
"""The standard deviation of what is off by 1 on average."""


class Prospect(NamedTuple):
    """How far a setting is believed to be ahead of home, as a logarithm; and how far one more window of it may move that belief (the
    standard deviation)."""

    lead: float
    doubt: float

    def ahead_by(self, more: float) -> Prospect:
        return Prospect(self.lead + more, self.doubt)

    @property
    def gain(self) -> float:
        """What one more window is expected to bring, if the setting is kept only where it then is ahead."""
        sureness = self.lead / self.doubt
        return max(0.0, self.lead * _below(sureness) + self.doubt * math.exp(-sureness * sureness / 2) / math.sqrt(2 * math.pi))

    @property
    def loss(self) -> float:
        """What that window is expected to cost, where it is not."""
        return max(0.0, self.gain - self.lead)


@dataclass
class _Average:
    log_rate: float  # in fair weather
    weight: float
    at_window: int
    looks: int = 1  # at different times
    unsure: float = 0.0  # the variance of what may have changed since


class Belief:
    def __init__(self) -> None:
        self.windows = 0
        self._tried: dict[Setting, _Average] = {}
        self._weather = 0.0
        self._noise = NOISE

    def __repr__(self) -> str:
        tried = sorted(self._tried, key=lambda setting: -self._tried[setting].log_rate)
        return f"<Belief after {self.windows} windows: {', '.join(f'{each}: {self.rate(each):.4g}/s' for each in tried)}>"

    def __contains__(self, setting: Setting) -> bool:
        return setting in self._tried

    @property
    def tried(self) -> Sequence[Setting]:
        return list(self._tried)

    def rate(self, setting: Setting) -> float:
        """Of one that was tried, by its own windows, in the weather of now."""
        return math.exp(self._tried[setting].log_rate + self._weather)

    def weight(self, setting: Setting) -> float:
        """Windows of now that say as much as its average."""
        return self._noise**2 / self._doubt(setting) if setting in self._tried else 0.0

    def note(self, setting: Setting, rate: float, at_home: bool, says: float = 1.0) -> None:
        """`says`: as much as so many windows."""
        self.windows += 1
        log_rate = math.log(max(rate, 1e-9)) - self._weather
        weight = self.weight(setting) + says
        average = self._tried.setdefault(setting, _Average(log_rate, weight, self.windows))
        is_look = self.windows - average.at_window >= APART
        if average.weight < SETTLED and abs(log_rate - average.log_rate) > UNLIKE:
            log_rate = average.log_rate = max(log_rate, average.log_rate)  # the other one was a bad moment
        elif is_look and log_rate - average.log_rate > UNLIKE:
            average.log_rate, weight = log_rate, says  # those were bad times, and they are over
        average.looks += is_look
        average.weight, average.at_window, average.unsure = min(weight, MOST_WEIGHT), self.windows, 0.0
        off = log_rate - average.log_rate
        average.log_rate += says * off / average.weight
        if at_home:
            self._weather += WEATHER_GAIN * (off - says * off / average.weight)
            if weight > 2:
                self._noise += NOISE_GAIN * (min(abs(off) * _DEVIATION, MOST_NOISE) - self._noise)
                self._noise = max(self._noise, LEAST_NOISE)

    def change(self, home: Setting, rate: float, unsure: bool) -> None:
        """Home goes so fast all of a sudden. So does everything else, as far as is known; where `unsure`, it may also be the work that has
        changed, and the more so the further home is off."""
        off = math.log(max(rate, 1e-9)) - self._weather - self._tried[home].log_rate
        self._weather += off
        for setting, average in self._tried.items():
            if unsure and setting != home:
                average.unsure += (UNSURE * off) ** 2

    def is_due_again(self, setting: Setting) -> bool:
        """Whether what was seen of it may have been a bad time that is over: each look that says the same makes the next one later."""
        average = self._tried.get(setting)
        return average is not None and self.windows - average.at_window >= APART * 2.0 ** min(average.looks, 40)

    def compare_unseen(self, home: Setting, other: Setting) -> Prospect:
        """That one with home, as if it had never been tried."""
        return self._compare(home, [other], [each for each in self._tried if each != other])[other]

    def compare(self, home: Setting, others: Sequence[Setting]) -> dict[Setting, Prospect]:
        """Each of the `others` with home, which was tried."""
        return self._compare(home, others, list(self._tried))

    def _compare(self, home: Setting, others: Sequence[Setting], tried: Sequence[Setting]) -> dict[Setting, Prospect]:
        asked = [home, *others]
        means = np.array([self._tried[each].log_rate for each in tried])
        best = means.max()
        towards = _alike(asked, tried)
        share = np.linalg.solve(_alike(tried, tried) + np.diag([self._doubt(each) for each in tried]), towards.T).T
        leads = share @ (means - best)
        spread = _alike(asked, asked) - share @ towards.T
        doubts = np.sqrt(np.maximum(np.diag(spread) + spread[0, 0] - 2 * spread[0], 1e-8))
        moves = doubts * doubts / np.hypot(doubts, self._noise)
        return {each: Prospect(float(leads[at] - leads[0]), float(moves[at])) for at, each in enumerate(asked) if at}

    def _doubt(self, setting: Setting) -> float:
        """The variance of what its windows say."""
        average = self._tried[setting]
        age = (self.windows - average.at_window) / (self.windows + AT_LEAST_WINDOWS)
        return self._noise**2 / average.weight + (AGES * age) ** 2 + average.unsure


def _alike(some: Sequence[Setting], others: Sequence[Setting]) -> npt.NDArray[np.float64]:
    """The covariance of each with each."""
    return np.array([[_covariance(one, other) for other in others] for one in some])


def _covariance(one: Setting, other: Setting) -> float:
    if one.kind is not other.kind:
        return 0.0
    if one == INLINE:
        return SPREAD_INLINE**2
    apart = math.sqrt(3) * abs(math.log2(one.workers / other.workers)) / ALIKE_OCTAVES
    return SPREAD**2 * (1 + apart) * math.exp(-apart) + OWN**2 * (one == other)


def _below(sureness: float) -> float:
    """The part of a normal distribution below it."""
    return (1 + math.erf(sureness / math.sqrt(2))) / 2
