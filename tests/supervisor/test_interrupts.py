"""Ctrl-C while workers are being ended."""

from __future__ import annotations

import gc
import itertools
import linecache
import os
import signal
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Iterator
from contextlib import nullcontext, suppress
from functools import partial
from types import FrameType
from typing import Any

import pytest
import torch
from torch.utils.data import Dataset, IterableDataset

from antifreeze import DataLoader
from antifreeze.delivery import iterator as delivery_iterator
from antifreeze.delivery.flights import Flights
from antifreeze.delivery.handing_over import HandOver
from antifreeze.delivery.iterator import LoaderIterator
from antifreeze.delivery.ledger import LoopClock
from antifreeze.delivery.local_pool import LocalPool
from antifreeze.delivery.parking import Parking
from antifreeze.delivery.position import MapDelivered
from antifreeze.signals import came_from_signal
from antifreeze.supervisor.hearing import Ears
from antifreeze.supervisor.interrupts import interrupts_held_back
from antifreeze.supervisor.pool import Pool


class SlowToEnd(Dataset[Any]):
    """A thread of the worker, which is no daemon, keeps it from ending when it is asked to."""

    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int) -> int:
        threading.Thread(target=time.sleep, args=(1000,)).start()
        return index


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_first_interrupt_at_the_end_of_an_epoch_is_not_lost() -> None:
    loader = DataLoader(SlowToEnd(), 4, num_workers=1, multiprocessing_context="fork")
    iterator = iter(loader)
    next(iterator)
    presses = threading.Timer(0.1, os.kill, (os.getpid(), signal.SIGINT))
    presses.start()
    with pytest.raises(KeyboardInterrupt):
        while next(iterator, None) is not None or presses.is_alive():
            pass
        presses.join()
    loader.close()


def test_a_first_interrupt_waits_and_a_second_one_changes_nothing() -> None:
    reached = []
    with pytest.raises(KeyboardInterrupt), interrupts_held_back():
        signal.raise_signal(signal.SIGINT)
        reached.append("after the first")
    try:
        raise KeyboardInterrupt
    except KeyboardInterrupt:
        with interrupts_held_back():
            signal.raise_signal(signal.SIGINT)
        reached.append("after the second")
    assert reached == ["after the first", "after the second"]
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def falls_into_a_handler(*_: Any) -> int | None:
    """An interrupt that comes while some exception of ours is being handled."""
    try:
        raise FileNotFoundError("/proc/of/ours")
    except FileNotFoundError:
        signal.raise_signal(signal.SIGINT)
    return None


def test_an_interrupt_is_one_traceback_wherever_it_falls(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("antifreeze.supervisor.pool.give_free_memory_back", falls_into_a_handler)
    with pytest.raises(KeyboardInterrupt) as at_start:
        iter(DataLoader(range(8), 4, num_workers=1))
    monkeypatch.undo()
    loader = DataLoader(range(64), 1, num_workers=1)
    iterator = iter(loader)
    monkeypatch.setattr(iterator._hand_over, "_look_at_memory", falls_into_a_handler)
    with pytest.raises(KeyboardInterrupt) as in_next:
        list(iterator)
    loader.close()
    for caught in (at_start, in_next):
        assert "".join(traceback.format_exception(caught.value)).count("Traceback (most recent call last)") == 1


def test_where_nobody_hears_an_exception_the_interrupt_comes_a_moment_later() -> None:
    left = []
    with pytest.raises(KeyboardInterrupt):
        with interrupts_held_back(unheard=True):
            signal.raise_signal(signal.SIGINT)
        left.append("the code that cannot be heard")
        while True:
            time.sleep(0.1)
    assert left


# --- an exception of a signal's handler within next() ---------------------------------------------------------------------


class TooLate(Exception):
    pass


def rings(*_: object) -> None:
    raise TooLate


class Rings:
    def ring(self, *_: object) -> None:
        raise TooLate

    __call__ = ring


@pytest.fixture
def alarm(request: pytest.FixtureRequest) -> Iterator[None]:
    before = signal.signal(signal.SIGUSR2, getattr(request, "param", rings))
    yield
    signal.signal(signal.SIGUSR2, before)


class Counting(IterableDataset[int]):
    def __iter__(self) -> Iterator[int]:
        return iter(range(20))


class Six(IterableDataset[int]):
    def __iter__(self) -> Iterator[int]:
        return iter(range(6))


def broken_off(place: Any, name: str, monkeypatch: pytest.MonkeyPatch, after: int) -> list[int]:
    """The alarm falls into the middle of what `place` does: it is lost with it. Once, when it is done for the time `after`."""
    rung: list[int] = []
    done = getattr(place, name)

    def lost(*given: Any, **named: Any) -> Any:
        rung.append(1)
        if len(rung) == after:
            signal.raise_signal(signal.SIGUSR2)
        return done(*given, **named)

    monkeypatch.setattr(place, name, lost)
    return rung


def go_on_to_the_end(iterator: Any) -> tuple[list[list[int]], int]:
    """The batches, and how often the alarm came in between."""
    came, broken = [], 0
    while True:
        try:
            came.append(next(iterator).tolist())
        except StopIteration:
            return came, broken
        except TooLate:
            broken += 1


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("dataset", [range(20), Counting()], ids=["map", "stream"])
@pytest.mark.parametrize("options", [{}, {"persistent_workers": True}, {"workers": "thread"}], ids=str)
@pytest.mark.parametrize(
    ("place", "name"), [(Ears, "_receive"), (Pool, "submit"), (Flights, "note_delivered"), (Flights, "go_on"), (HandOver, "give")]
)
def test_what_it_broke_off_is_done_again_and_nothing_is_lost_or_comes_twice(
    dataset: Any, options: dict[str, Any], place: Any, name: str, alarm: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    with DataLoader(dataset, 2, num_workers=1, timeout=100, **options) as loader:
        iterator = iter(loader)
        rung = broken_off(place, name, monkeypatch, after=3)
        came, broken = go_on_to_the_end(iterator)
        assert len(rung) >= 3
        assert broken == 1
        assert [index for batch in came for index in batch] == list(range(20))
        assert loader.report().epochs == 1
        assert [index for batch in loader for index in batch.tolist()] == list(range(20))


@pytest.mark.parametrize(("place", "name"), [(LocalPool, "load"), (HandOver, "give"), (Flights, "plan_next")])
def test_nor_with_auto(place: Any, name: str, alarm: None, monkeypatch: pytest.MonkeyPatch) -> None:
    with DataLoader(range(20), 2, num_workers="auto") as loader:
        iterator = iter(loader)
        rung = broken_off(place, name, monkeypatch, after=3)
        came, broken = go_on_to_the_end(iterator)
        assert len(rung) >= 3 and broken == 1
        assert [index for batch in came for index in batch] == list(range(20))
        assert [index for batch in loader for index in batch.tolist()] == list(range(20))


class Asked(Dataset[int]):
    """It rings as often as is said when it is asked for its length, or whether it gives many samples at once."""

    def __init__(self) -> None:
        self.of_length = self.of_many = 0

    def __len__(self) -> int:
        if self.of_length:
            self.of_length -= 1
            signal.raise_signal(signal.SIGUSR2)
        return 20

    @property
    def __getitems__(self) -> Any:
        if self.of_many:
            self.of_many -= 1
            signal.raise_signal(signal.SIGUSR2)
        return list


def test_what_the_data_set_is_asked_when_it_is_done_again_may_be_broken_off_too(alarm: None, monkeypatch: pytest.MonkeyPatch) -> None:
    dataset = Asked()
    loader = DataLoader(dataset, 2)
    iterator = iter(loader)
    broken_off(LocalPool, "load", monkeypatch, after=3)
    came = [next(iterator).tolist() for _ in range(2)]
    with pytest.raises(TooLate):
        next(iterator)
    dataset.of_length = dataset.of_many = 2
    rest, broken = go_on_to_the_end(iterator)
    assert broken == 4
    assert [index for batch in came + rest for index in batch] == list(range(20))


def test_an_epoch_that_was_broken_off_is_none_of_the_next_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    with DataLoader(range(20), 2, num_workers=1, persistent_workers=True, timeout=100) as loader:
        iterator = iter(loader)
        monkeypatch.setattr(Ears, "_receive", lambda *_: signal.raise_signal(signal.SIGINT))
        with pytest.raises(KeyboardInterrupt):
            next(iterator)
        monkeypatch.undo()
        assert [index for batch in loader for index in batch.tolist()] == list(range(20))


@pytest.mark.parametrize("alarm", [rings, partial(rings), Rings(), Rings().ring, signal.default_int_handler], indirect=True, ids=range(5))
def test_an_exception_of_a_handler_is_told_from_others(alarm: None) -> None:
    with pytest.raises((TooLate, KeyboardInterrupt)) as of_signal:
        signal.raise_signal(signal.SIGUSR2)
    with pytest.raises(KeyError) as of_ours:
        {}["nothing"]
    with pytest.raises(ValueError, match="told as another one") as told:
        raise ValueError("told as another one") from of_signal.value
    assert came_from_signal(of_signal.value)
    assert came_from_signal(told.value) is isinstance(of_signal.value, TooLate)
    assert not came_from_signal(of_ours.value)


# --- one exception after another --------------------------------------------------------------------------------------------


def rings_once(place: Any, name: str, monkeypatch: pytest.MonkeyPatch, *, when_done: bool = False) -> None:
    """The alarm falls when this is next called, or when it is just done."""
    done, rung = getattr(place, name), []

    def rings_first(*given: Any, **named: Any) -> Any:
        result = done(*given, **named) if when_done or rung else None
        if not rung:
            rung.append(1)
            signal.raise_signal(signal.SIGUSR2)
        return result

    monkeypatch.setattr(place, name, rings_first)


def indices(batches: Any) -> list[int]:
    return [index for batch in batches for index in batch]


def broken_off_after_two(loader: Any, monkeypatch: pytest.MonkeyPatch) -> tuple[Any, list[list[int]]]:
    iterator = iter(loader)
    came = [next(iterator).tolist() for _ in range(2)]
    rings_once(HandOver, "give_made", monkeypatch)
    with pytest.raises(TooLate):
        next(iterator)
    return iterator, came


def test_a_next_that_picks_up_and_is_broken_off_leaves_the_loader_to_its_user(alarm: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """It had left its state in the loader: the next pass began in the middle."""
    loader = DataLoader(range(20), 2)
    iterator, came = broken_off_after_two(loader, monkeypatch)
    rings_once(LoaderIterator, "_release", monkeypatch)
    with pytest.raises(TooLate):
        next(iterator)
    assert indices(batch.tolist() for batch in loader) == list(range(20))
    assert indices(came + go_on_to_the_end(iterator)[0]) == list(range(20))


def test_a_state_of_the_users_is_for_the_next_pass_and_not_for_the_one_that_goes_on(alarm: None, monkeypatch: pytest.MonkeyPatch) -> None:
    loader = DataLoader(range(20), 2)
    next(iter(loader))
    state = loader.state_dict()
    iterator, came = broken_off_after_two(loader, monkeypatch)
    loader.load_state_dict(state)
    assert indices(came + go_on_to_the_end(iterator)[0]) == list(range(20))
    assert indices(batch.tolist() for batch in loader) == list(range(2, 20))


def test_another_one_while_the_first_is_looked_at_loses_no_batch(alarm: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """It skipped all that is done about the first: the batch that was about to be handed over was lost."""
    loader = DataLoader(range(20), 2)
    iterator = iter(loader)
    came = [next(iterator).tolist() for _ in range(2)]
    rings_once(HandOver, "give_made", monkeypatch)
    rings_once(delivery_iterator, "came_from_signal", monkeypatch)
    with pytest.raises(TooLate):
        next(iterator)
    assert loader.state_dict()["delivered"]["batches"] == 2
    assert indices(came + go_on_to_the_end(iterator)[0]) == list(range(20))


def test_one_that_falls_into_the_call_that_picked_up_goes_back_no_further(alarm: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """What the loop had got was noted before it was known again: the pass began from its beginning."""
    loader = DataLoader(range(20), 2)
    iterator, came = broken_off_after_two(loader, monkeypatch)
    rings_once(MapDelivered, "from_dict", monkeypatch)
    with pytest.raises(TooLate):
        next(iterator)
    rings_once(LocalPool, "load", monkeypatch)
    with pytest.raises(TooLate):
        next(iterator)
    assert loader.state_dict()["delivered"]["batches"] == 2
    assert indices(came + go_on_to_the_end(iterator)[0]) == list(range(20))


@pytest.mark.parametrize("when_done", [False, True])
def test_workers_between_two_epochs_are_in_one_hand(when_done: bool, alarm: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """They were the iterator's and the loader's: one closed what the other went on with."""
    with DataLoader(range(20), 2, num_workers="auto") as loader:
        iterator = iter(loader)
        rings_once(Parking, "take_in", monkeypatch, when_done=when_done)
        came, broken = go_on_to_the_end(iterator)
        assert broken == 1 and indices(came) == list(range(20))
        state = loader.state_dict()
        for _ in range(2):
            assert indices(batch.tolist() for batch in loader) == list(range(20))
            loader.load_state_dict(state)
        del iterator
        gc.collect()
        assert indices(batch.tolist() for batch in loader) == list(range(20))
        assert loader.report().epochs == 4


def test_a_ring_is_handed_back_once(alarm: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where that was broken off, the iterator handed it back again as it went: by then it was another one's."""
    with DataLoader(range(20), 2) as loader:
        first = iter(loader)
        next(first)
        rings_once(DataLoader, "_return_ring", monkeypatch, when_done=True)
        with pytest.raises(TooLate):
            first.close()
        second = iter(loader)
        del first
        gc.collect()
        third = iter(loader)
        assert second._custody.ring is not third._custody.ring


@pytest.mark.parametrize("options", [{}, {"num_workers": 1, "persistent_workers": True}, {"num_workers": "auto"}], ids=str)
def test_an_iter_that_is_broken_off_has_used_up_no_state(options: dict[str, Any], alarm: None, monkeypatch: pytest.MonkeyPatch) -> None:
    with DataLoader(range(20), 2, **options) as loader:
        next(iter(loader))
        state = loader.state_dict()
        loader.load_state_dict(state)
        rings_once(LoopClock, "made", monkeypatch)
        with pytest.raises(TooLate):
            iter(loader)
        assert indices(batch.tolist() for batch in loader) == list(range(2, 20))
        assert indices(batch.tolist() for batch in loader) == list(range(20))


IMPATIENT = """
import atexit, os, signal

def cleans_up():
    for press in ("second", "third"):
        os.kill(os.getpid(), signal.SIGINT)
        print(press, flush=True)

signal.signal(signal.SIGINT, signal.default_int_handler)
atexit.register(cleans_up)
import antifreeze.supervisor.interrupts
raise KeyboardInterrupt
"""


def test_at_exit_a_second_interrupt_prints_nothing_and_a_third_ends_it() -> None:
    ended = subprocess.run([sys.executable, "-c", IMPATIENT], check=False, capture_output=True, text=True, timeout=150)
    assert ended.returncode == -signal.SIGINT
    assert ended.stdout.split() == ["second"]
    assert ended.stderr.count("Traceback (most recent call last)") == 1


# --- at every line of ours ------------------------------------------------------------------------------------------------


class FallsAt:
    """A signal whose handler raises at line number `at` of ours within a call, counted as they are run."""

    def __init__(self, at: int) -> None:
        self.at = at
        self.lines = 0
        self.entered: dict[int, set[int]] = {}  # by frame, which is not held on to: the lines of `with`

    def __enter__(self) -> None:
        sys.settrace(self._frame)

    def __exit__(self, *_: object) -> None:
        sys.settrace(None)

    def _frame(self, frame: FrameType, event: str, argument: object) -> Any:
        self.entered[id(frame)] = set()
        return self._line if "/antifreeze/" in frame.f_code.co_filename else None

    def _line(self, frame: FrameType, event: str, argument: object) -> Any:
        if event == "line" and not self.no_handler_is_run_at(frame):
            self.lines += 1
            if self.lines == self.at:
                sys.settrace(None)
                signal.raise_signal(signal.SIGUSR2)
        return self._line

    def no_handler_is_run_at(self, frame: FrameType) -> bool:
        """Python traces lines at which it runs no signal's handler, and from which it would not find its way out of a `with`: `try:`, bare
        `raise`, and the `with` itself, which is met again on the way out, before what it calls there."""
        line = linecache.getline(frame.f_code.co_filename, frame.f_lineno).strip()
        if not line.startswith("with "):
            return line in ("try:", "raise")
        lines = self.entered[id(frame)]
        met_before = frame.f_lineno in lines
        lines.add(frame.f_lineno)
        return met_before


def an_epoch_in_which_it_falls(fall: FallsAt, call: int, dataset: Any, options: dict[str, Any]) -> list[int]:
    came: list[int] = []
    states: list[tuple[dict[str, Any], int]] = []
    with DataLoader(dataset, 2, **options) as loader:
        iterator = iter(loader)
        for number in itertools.count(1):
            try:
                with fall if number == call else nullcontext():
                    came += iterator.__next__().tolist()
            except StopIteration:
                break
            except Exception as error:
                assert isinstance(error, TooLate) or isinstance(error.__cause__, TooLate)
                states.append((loader.state_dict(), len(came)))
        assert loader.report().epochs == 1
        assert [index for batch in loader for index in batch.tolist()] == list(range(6))
        for state, delivered in states:
            loader.load_state_dict(state)
            assert [index for batch in loader for index in batch.tolist()] == list(range(6))[delivered:], "after a resume"
    return came


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize(
    ("call", "dataset", "options", "step"),
    [
        (2, range(6), {"num_workers": 0}, 7),
        (4, range(6), {"num_workers": 0}, 7),
        (2, range(6), {"num_workers": 1, "timeout": 100}, 29),
        pytest.param(2, range(6), {"num_workers": 0}, 1, marks=pytest.mark.slow),
        pytest.param(2, Six(), {"num_workers": 0}, 1, marks=pytest.mark.slow),
        pytest.param(2, range(6), {"num_workers": 1, "timeout": 100}, 1, marks=pytest.mark.slow),
        pytest.param(2, Six(), {"num_workers": 1, "timeout": 100}, 1, marks=pytest.mark.slow),
        pytest.param(2, range(6), {"num_workers": 1, "persistent_workers": True}, 1, marks=pytest.mark.slow),
        pytest.param(2, range(6), {"num_workers": 1, "workers": "thread"}, 1, marks=pytest.mark.slow),
    ],
)
def test_at_whatever_line_of_ours_it_falls_no_batch_is_lost_or_comes_twice(
    call: int, dataset: Any, options: dict[str, Any], step: int, alarm: None
) -> None:
    counted = FallsAt(0)
    assert an_epoch_in_which_it_falls(counted, call, dataset, options) == list(range(6))
    last = counted.lines  # how many there are differs a little from run to run: what workers have said by then
    assert last > 100
    for at in (*range(1, last, step), *range(last - 8, last + 1)):
        fall = FallsAt(at)
        assert an_epoch_in_which_it_falls(fall, call, dataset, options) == list(range(6)), at


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("does", [pytest.param("starts", marks=pytest.mark.slow), "ends"])
def test_nothing_is_left_behind_at_whatever_line_of_ours_it_falls(does: str, alarm: None) -> None:
    """What is, the guard of all tests finds."""

    def falls(fall: FallsAt) -> None:
        with DataLoader(range(6), 2, num_workers=1, timeout=10) as loader, suppress(TooLate, RuntimeError):
            with fall if does == "starts" else nullcontext():
                iterator = iter(loader)
            next(iterator)
            with fall if does == "ends" else nullcontext():
                loader.close()

    counted = FallsAt(0)
    falls(counted)
    for at in range(1, counted.lines, 5 if does == "starts" else 31):
        falls(FallsAt(at))
    gc.collect()


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("step", [5, pytest.param(1, marks=pytest.mark.slow)])
def test_a_state_taken_when_going_on_was_broken_off_too_is_of_what_was_delivered(step: int, alarm: None) -> None:
    def shuffled() -> Any:
        return DataLoader(range(6), 2, shuffle=True, generator=torch.Generator().manual_seed(5))

    whole = [batch.tolist() for batch in shuffled()]
    fell = True
    for at in itertools.count(1, step):
        with shuffled() as loader:
            iterator = iter(loader)
            assert iterator.__next__().tolist() == whole[0]
            with pytest.raises(TooLate), FallsAt(30):
                iterator.__next__()
            fell = False
            try:
                with FallsAt(at):
                    iterator.__next__()
            except TooLate:
                fell = True
                state = loader.state_dict()
                assert [batch.tolist() for batch in iterator] == whole[1:], at
                loader.load_state_dict(state)
                assert [batch.tolist() for batch in loader] == whole[1:], at
        if not fell:
            break
    assert at > 100


def test_an_alarm_in_a_key_that_is_written_down_is_not_passed_over(alarm: None) -> None:
    """The beginning of an order is told by its keys' texts: one that has none is told otherwise, but an alarm is no such thing."""

    class Key:
        alarms = 1

        def __repr__(self) -> str:
            if Key.alarms:
                Key.alarms -= 1
                signal.raise_signal(signal.SIGUSR2)
            return "a key"

        def __index__(self) -> int:
            return 0

    class Six:
        def __len__(self) -> int:
            return 6

        def __getitem__(self, key: Any) -> int:
            return 7

    with DataLoader(Six(), 2, sampler=[Key() for _ in range(6)]) as loader:  # type: ignore[arg-type]
        iterator = iter(loader)
        with pytest.raises(TooLate):
            next(iterator)
        assert [batch.tolist() for batch in iterator] == [[7, 7]] * 3
        assert next(iter(loader)).tolist() == [7, 7]
