"""The floor among threads: ThreadEnded may meet a thread anywhere, and whoever waits for the floor gets it all the same."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

from antifreeze.gate import Gate
from antifreeze.worker import turns as floor
from antifreeze.worker.failure import ThreadEnded
from antifreeze.worker.journal import ROW_WORDS, JournalRow
from antifreeze.worker.thread_seeds import ThreadSeeds
from antifreeze.worker.turns import FALSE_ALARMS, Of, Turn, Turns, Usage


class Numbers:
    """A generator of the process, which ThreadEnded meets while it is put back."""

    def __init__(self) -> None:
        self.state = 0
        self.interruptions = 0

    def mark(self) -> int:
        return self.state

    def moved_since(self, mark: int) -> bool:
        return self.state != mark

    def save(self) -> int:
        return self.state

    def restore(self, state: int) -> None:
        if self.interruptions:
            self.interruptions -= 1
            raise ThreadEnded
        self.state = state

    salt = 0

    def seed(self, seed: int) -> None:
        self.state = seed

    def deal(self, hand: bytes) -> None:
        """On top of its seed, which is all that this one shows."""


class UnsaidOnce(Gate):
    """ThreadEnded meets whoever gives the floor, just before it says so."""

    def __init__(self) -> None:
        super().__init__()
        self.unsaid = 1

    def open(self) -> None:
        if self.unsaid:
            self.unsaid -= 1
            raise ThreadEnded
        super().open()


def _turns() -> tuple[Turns, Numbers]:
    usage, numbers = Usage(), Numbers()
    generators: list[Any] = [numbers]
    usage.generators = generators
    return Turns(usage), numbers


def _turn(turns: Turns) -> Turn:
    return Turn(turns, JournalRow(memoryview(bytearray(8 * ROW_WORDS)).cast("q")))


def _takes(turns: Turns, turn: Turn, numbers: Numbers, seen: list[int]) -> threading.Thread:
    thread = threading.Thread(target=lambda: seen.append(turns.take(turn, 7, numbers.save, Of.SAMPLE, True)), daemon=True)
    thread.start()
    return thread


def test_a_thread_ended_while_it_leaves_the_floor_does_not_keep_it() -> None:
    turns, numbers = _turns()
    ended, seen = _turn(turns), list[int]()
    turns.open()
    numbers.interruptions = 1
    with pytest.raises(ThreadEnded):
        turns.take(ended, 5, lambda: None, Of.SAMPLE, True)
    turns.give_up(ended)
    assert numbers.state == 0  # put back
    other = _takes(turns, _turn(turns), numbers, seen)
    other.join(10)
    assert seen == [7]
    assert turns.try_close(0.0)


@pytest.mark.parametrize("fails", [False, True])
def test_a_sample_in_which_the_loop_goes_on_is_run_again_with_its_own_numbers(fails: bool) -> None:
    turns, numbers = _turns()
    turn, begun, goes_on, seen, drawn = _turn(turns), threading.Event(), threading.Event(), list[int](), list[int]()

    def sample() -> int:
        begun.set()
        goes_on.wait(10)
        drawn.append(numbers.state)
        numbers.state += 1
        if fails and drawn[-1] != 7:
            raise ValueError("numbers that are not the sample's")
        return drawn[-1]

    turns.open()
    thread = threading.Thread(target=lambda: seen.append(turns.take(turn, 7, sample, Of.SAMPLE, True)), daemon=True)
    thread.start()
    assert begun.wait(10)
    turns.close()  # an alarm: the loop goes on at once, with its own numbers
    assert numbers.state == 0
    goes_on.set()
    for _ in range(1000):  # until it waits for the floor again
        if drawn and turn in floor._waiting:
            break
        thread.join(0.01)
    numbers.state = 100  # the loop draws
    turns.open()
    thread.join(10)
    assert drawn == [0, 7] and seen == [7] and turns.try_close(1.0) and numbers.state == 100


def _until(is_so: Callable[[], bool]) -> None:
    deadline_s = time.monotonic() + 10
    while not is_so():
        assert time.monotonic() < deadline_s
        time.sleep(0.001)


def test_who_has_the_floor_beside_one_that_has_lost_it_has_its_own_numbers() -> None:
    """Of another loader; the loser draws while the other one's sample runs."""
    turns, numbers = _turns()
    others, _ = _turns()
    others.usage.generators = turns.usage.generators
    loses, has_it = _turn(turns), _turn(others)
    begun, goes_on, has_drawn, drawn, seen = threading.Event(), threading.Event(), threading.Event(), list[int](), list[int]()

    def loser() -> None:
        begun.set()
        goes_on.wait(10)
        numbers.state += 1
        has_drawn.set()

    def other() -> int:
        goes_on.set()
        assert has_drawn.wait(10)
        drawn.append(numbers.state)
        numbers.state += 1
        return drawn[-1]

    turns.open()
    thread = threading.Thread(target=lambda: turns.take(loses, 5, loser, Of.SAMPLE, True), daemon=True)
    thread.start()
    assert begun.wait(10)
    turns.close()  # an alarm
    others.open()
    another = threading.Thread(target=lambda: seen.append(others.take(has_it, 7, other, Of.SAMPLE, True)), daemon=True)
    another.start()
    another.join(10)
    assert drawn == [8, 7] and seen == [7]
    others.close()
    turns.open()  # the loser, once more
    thread.join(10)
    assert not thread.is_alive() and not floor.losers
    turns.close()


def test_what_the_loop_loads_itself_waits_for_one_that_has_lost_the_floor() -> None:
    turns, _ = _turns()
    turn, begun, goes_on, ended = _turn(turns), threading.Event(), threading.Event(), list[bool]()

    def sample() -> None:
        begun.set()
        goes_on.wait(10)

    def takes() -> None:
        turns.take(turn, 5, sample, Of.SAMPLE, True)

    turns.open()
    thread = threading.Thread(target=takes, daemon=True)
    thread.start()
    assert begun.wait(10)
    turns.close()
    loads = threading.Thread(target=lambda: (floor.wait_for_losers(), ended.append(goes_on.is_set())), daemon=True)
    loads.start()
    loads.join(0.05)
    goes_on.set()
    loads.join(10)
    assert ended == [True]
    turns.open()
    thread.join(10)
    turns.close()


def test_a_floor_that_was_lost_before_its_thread_knew_of_it_is_waited_for_again() -> None:
    turns, numbers = _turns()
    turn, may_know, seen = _turn(turns), threading.Event(), list[Any]()

    class KnownLate(Gate):
        def wait(self, limit_s: float) -> bool:
            return super().wait(limit_s) and may_know.wait(10)

    turn.granted = KnownLate()
    turns.open()
    thread = _takes(turns, turn, numbers, seen)
    _until(lambda: floor._floor.holder is turn)
    turns.close()
    may_know.set()
    _until(lambda: turn in floor._waiting)
    assert seen == [] and numbers.state == 0
    turns.open()
    thread.join(10)
    assert seen == [7]
    turns.close()


def test_what_has_lost_the_floor_just_before_it_is_seeded_leaves_the_loops_numbers_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    turns, numbers = _turns()
    turn, seen, enter, alarms = _turn(turns), list[int](), floor._enter, [1]

    def is_interrupted_then(turn: Turn, of: Of, looks: bool) -> bool:
        entered = enter(turn, of, looks)
        if alarms:
            alarms.pop()
            turns.close()
        return entered

    monkeypatch.setattr(floor, "_enter", is_interrupted_then)
    turns.open()
    thread = _takes(turns, turn, numbers, seen)
    _until(lambda: not alarms and turn in floor._waiting)
    assert seen == [] and numbers.state == 0
    turns.open()
    thread.join(10)
    assert seen == [7]
    turns.close()


def test_the_floor_given_by_a_thread_that_ended_before_it_said_so_is_taken() -> None:
    turns, numbers = _turns()
    ended, waiting, seen = _turn(turns), _turn(turns), list[int]()
    waiting.granted = UnsaidOnce()
    turns.open()

    others: list[threading.Thread] = []

    def another_comes() -> None:
        others.append(_takes(turns, waiting, numbers, seen))
        while waiting not in floor._waiting:
            pass

    with pytest.raises(ThreadEnded):
        turns.take(ended, 5, another_comes, Of.SAMPLE, True)
    turns.give_up(ended)
    others[0].join(10)
    assert seen == [7]
    turns.close()


class SlowlyTaken(floor._Floor):
    """A worker that sees that nobody has it takes a moment before it takes it, unless the loop has its answer first."""

    def __init__(self) -> None:
        self.seen, self.answered = threading.Event(), threading.Event()
        super().__init__()

    @property
    def holder(self) -> Turn | None:
        if threading.current_thread() is not threading.main_thread() and self._holder is None:
            self.seen.set()
            self.answered.wait(0.3)
        return self._holder

    @holder.setter
    def holder(self, turn: Turn | None) -> None:
        self._holder = turn


def test_no_turn_is_given_after_the_loop_was_told_that_there_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    slowly = SlowlyTaken()
    monkeypatch.setattr(floor, "_floor", slowly)
    turns, _ = _turns()
    goes_on, seen = threading.Event(), list[bool]()
    turns.open()
    taker = threading.Thread(target=lambda: turns.take(_turn(turns), 7, lambda: seen.append(goes_on.wait(10)), Of.SAMPLE, True))
    taker.start()
    assert slowly.seen.wait(10)
    nobody_left = turns.try_close(0.0)
    slowly.answered.set()
    goes_on.set()
    taker.join(10)
    assert not (nobody_left and seen), "a sample has seeded the generators while the loop used them"
    assert turns.try_close(10)


def test_a_thread_that_was_told_to_end_waits_for_no_floor() -> None:
    """Neither when it is told while it waits, nor when another sample of its event loop comes to ask."""
    turns, _ = _turns()
    turn, asked = _turn(turns), list[str]()

    def asks_twice() -> None:
        for _ in range(2):
            with pytest.raises(ThreadEnded):
                turns.take(turn, 7, lambda: asked.append("had it"), Of.SAMPLE, True)
            asked.append("ended")

    thread = threading.Thread(target=asks_twice, daemon=True)
    thread.start()
    while turn not in floor._waiting:
        assert thread.is_alive()
    turns.end(turn)
    thread.join(10)
    assert asked == ["ended", "ended"] and turn not in floor._waiting


def test_one_that_has_the_floor_keeps_it_until_it_has_ended() -> None:
    turns, numbers = _turns()
    turn, seen = _turn(turns), list[bool]()
    turns.open()

    def told() -> None:
        turns.end(turn)
        numbers.state = 99
        seen.append(floor._floor.holder is turn)

    turns.take(turn, 7, told, Of.SAMPLE, True)
    assert seen == [True] and numbers.state != 99
    turns.close()


# --- a data set that draws later than its first samples --------------------------------------------------------------


def _seeds(turns: Turns) -> ThreadSeeds:
    return ThreadSeeds(0, 0, turns, JournalRow(memoryview(bytearray(8 * ROW_WORDS)).cast("q")))


def _draws(numbers: Numbers, seen: list[int]) -> None:
    seen.append(numbers.state)
    numbers.state += 1


def test_who_waited_while_the_others_warmed_up_is_watched_too() -> None:
    turns, numbers = _turns()
    seeds, seen = _seeds(turns), list[int]()
    waits = threading.Thread(target=lambda: seeds.for_each(0, 1, lambda number: _draws(numbers, seen)), daemon=True)

    def others_warm_up() -> None:
        waits.start()
        while seeds.turn not in floor._waiting:
            pass
        turns.usage.warm_up_left[Of.SAMPLE] = 0

    turns.open()
    turns.take(_turn(turns), 5, others_warm_up, Of.BATCH, False)
    waits.join(10)
    turns.close()
    assert len(seen) == 2, "its numbers were not its own, and it was loaded again"
    assert seen[1] != 0


def test_what_had_the_floor_while_others_drew_freely_is_loaded_once_more() -> None:
    turns, numbers = _turns()
    turns.usage.warm_up_left = dict.fromkeys(Of, 0)
    begun, may_draw, has_drawn = threading.Event(), threading.Event(), threading.Event()
    calls: list[int] = []

    def late(number: int) -> None:
        begun.set()
        may_draw.wait(10)
        numbers.state += 1
        has_drawn.set()

    def sample() -> int:
        calls.append(1)
        may_draw.set()
        has_drawn.wait(10)
        numbers.state += 1
        return numbers.state

    seeds = _seeds(turns)
    free = threading.Thread(target=lambda: seeds.for_each(0, 1, late), daemon=True)
    turns.open()
    free.start()
    assert begun.wait(10)
    among_others = turns.take(_turn(turns), 7, sample, Of.SAMPLE, True)
    free.join(10)
    assert len(calls) == 2
    assert among_others == turns.take(_turn(turns), 7, sample, Of.SAMPLE, True), "the same numbers as alone"
    turns.close()


def test_before_anybody_has_looked_no_alarm_is_false() -> None:
    usage = Usage()
    assert all(usage.is_worth_a_look() for _ in range(10 * FALSE_ALARMS)), "as many threads as there may be"
    for _ in range(FALSE_ALARMS):
        usage.was_looked_at()
    assert sum(usage.is_worth_a_look() for _ in range(64)) == 7, "ever more rarely"
    usage.used.append(usage.generators[0])
    assert all(usage.is_worth_a_look() for _ in range(10))


def test_what_was_waited_for_the_floor_is_known() -> None:
    turns, _ = _turns()
    seeds = _seeds(turns)
    waits = threading.Thread(target=lambda: seeds.for_each(0, 1, lambda number: None), daemon=True)

    def slow() -> None:
        waits.start()
        while seeds.turn not in floor._waiting:
            pass
        threading.Event().wait(0.05)

    turns.open()
    turns.take(_turn(turns), 5, slow, Of.SAMPLE, True)
    waits.join(10)
    turns.close()
    waited_ns, to_collate_ns = seeds.take_waits_ns()
    assert waited_ns > 40_000_000
    assert to_collate_ns == 0
    assert seeds.take_waits_ns() == (0, 0)
