"""What is believed of settings that were tried, and of those beside them."""

from __future__ import annotations

import math

import pytest

from antifreeze.tuning.belief import APART, Belief, Prospect
from antifreeze.tuning.setting import INLINE, Kind, Setting


def processes(count: int) -> Setting:
    return Setting(Kind.PROCESS, count)


def belief_of(rates: dict[Setting, float], windows: int = 3, home: Setting | None = None) -> Belief:
    belief = Belief()
    for _ in range(windows):
        for setting, rate in rates.items():
            belief.note(setting, rate, at_home=setting == home)
    return belief


def test_of_what_was_tried_the_windows_tell() -> None:
    belief = belief_of({processes(8): 1000.0, processes(2): 500.0})
    assert belief.compare(processes(8), [processes(2)])[processes(2)].lead == pytest.approx(math.log(0.5), abs=0.05)
    assert belief.rate(processes(2)) == pytest.approx(500)
    assert processes(2) in belief and processes(4) not in belief and set(belief.tried) == {processes(2), processes(8)}
    assert repr(belief) == "<Belief after 6 windows: 8 worker processes: 1000/s, 2 worker processes: 500/s>"


def test_neighbours_are_alike_and_what_is_far_is_unknown() -> None:
    belief = belief_of({processes(16): 1000.0, processes(8): 500.0})
    found = belief.compare(processes(16), [processes(15), processes(12), processes(9), processes(2), INLINE])
    assert found[processes(15)].lead > found[processes(12)].lead > found[processes(9)].lead > math.log(0.5)
    assert found[processes(15)].doubt < found[processes(12)].doubt < found[processes(2)].doubt < found[INLINE].doubt
    assert found[INLINE].lead == pytest.approx(0.0, abs=0.01), "it may be as good as the best"


def test_the_weather_is_the_same_for_all() -> None:
    home, other = processes(8), processes(4)
    belief = belief_of({home: 1000.0, other: 900.0}, windows=30, home=home)
    before = belief.compare(home, [other])[other].lead
    for _ in range(40):
        belief.note(home, 800.0, at_home=True)
    assert belief.rate(home) == pytest.approx(800, rel=0.02)
    assert belief.compare(home, [other])[other].lead == pytest.approx(before, abs=0.08), "and not by the 0.22 that home has become slower"


def test_windows_make_sure_and_time_makes_doubt() -> None:
    home, other = processes(8), processes(4)
    few, many = belief_of({home: 1000.0, other: 1000.0}, 2), belief_of({home: 1000.0, other: 1000.0}, 12)
    assert many.compare(home, [other])[other].doubt < few.compare(home, [other])[other].doubt
    sure, weight = many.compare(home, [other])[other].doubt, many.weight(other)
    for _ in range(30):
        many.note(home, 1000.0, at_home=True)
    assert many.compare(home, [other])[other].doubt > sure and many.weight(other) < weight
    assert many.weight(processes(5)) == 0


def test_a_restless_machine_is_doubted_more() -> None:
    home, other = processes(8), processes(4)
    calm, restless = Belief(), Belief()
    for number in range(20):
        for belief, off in (calm, 0.01), (restless, 0.15):
            belief.note(home, 1000.0 * (1 + (off if number % 2 else -off)), at_home=True)
            belief.note(other, 1000.0, at_home=False)
    assert calm.compare(home, [other])[other].doubt < restless.compare(home, [other])[other].doubt


@pytest.mark.parametrize("unsure", [False, True])
def test_where_home_is_slower_all_of_a_sudden_so_is_everything_else(unsure: bool) -> None:
    home, other = processes(8), processes(2)
    belief = belief_of({home: 1000.0, other: 500.0})
    before = belief.compare(home, [other])[other]
    belief.change(home, 100.0, unsure)
    after = belief.compare(home, [other])[other]
    assert belief.rate(home) == pytest.approx(100) and belief.rate(other) == pytest.approx(50)
    if unsure:
        assert after.gain > 0.05, "it may be the work that has changed"
    else:
        assert (after.lead, after.doubt) == (pytest.approx(before.lead), pytest.approx(before.doubt))


def test_what_was_far_behind_in_a_bad_time_is_what_it_is_after_it() -> None:
    home, other = processes(8), processes(4)
    belief = Belief()
    for _ in range(10):
        belief.note(other, 20.0, at_home=False)
    for number in range(4 * APART):
        belief.note(home, 1000.0, at_home=True)
        assert belief.is_due_again(other) == (number + 1 >= 2 * APART)
    belief.note(other, 1500.0, at_home=False)
    assert belief.rate(other) == pytest.approx(1500)
    assert not belief.is_due_again(other)


def test_each_look_that_says_the_same_makes_the_next_one_later() -> None:
    home, other = processes(8), processes(4)
    belief, pauses = belief_of({home: 1000.0, other: 400.0}), []
    for _ in range(4):
        begun = belief.windows
        while not belief.is_due_again(other):
            belief.note(home, 1000.0, at_home=True)
        pauses.append(belief.windows - begun)
        belief.note(other, 400.0, at_home=False)
    assert pauses[1:] == [4 * APART, 8 * APART, 16 * APART]
    unseen = belief.compare_unseen(home, other)
    assert unseen.gain > 0.05 > belief.compare(home, [other])[other].gain


@pytest.mark.parametrize(
    ("lead", "doubt", "gain"), [(0.0, 0.1, 0.0399), (0.3, 1e-4, 0.3), (-0.3, 1e-4, 0.0), (0.1, 0.1, 0.1083), (-0.1, 0.1, 0.0083)]
)
def test_what_a_trial_may_bring_and_cost(lead: float, doubt: float, gain: float) -> None:
    prospect = Prospect(lead, doubt)
    assert prospect.gain == pytest.approx(gain, abs=1e-4)
    assert prospect.loss == pytest.approx(gain - lead, abs=1e-4), "what it brings less what it costs is how far it is ahead"


def test_rates_of_zero_are_no_error() -> None:
    belief = belief_of({processes(8): 0.0, INLINE: 0.0})
    assert belief.compare(processes(8), [INLINE])[INLINE].lead == pytest.approx(0.0, abs=0.1)
