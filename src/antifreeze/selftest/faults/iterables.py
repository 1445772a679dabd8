"""Iterable data sets: each worker reads its share, and what was delivered before a death does not come again."""

from __future__ import annotations

import itertools
import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import IterableDataset, get_worker_info

from antifreeze.selftest.fault import BATCH, SAMPLES, SICK, Expectation, Outcome, fault
from antifreeze.selftest.trial import Trial, first_time, row

SOON = {"sample_timeout_s": 0.8}


class Stream(IterableDataset[Any]):
    """Shares its numbers among the workers."""

    def __init__(self, folder: Path, length: int | None = SAMPLES) -> None:
        self.folder, self.length = folder, length

    def numbers(self) -> Iterator[int]:
        info = get_worker_info()
        first, step = (info.id, info.num_workers) if info else (0, 1)
        return itertools.islice(itertools.count(first, step), None if self.length is None else len(range(first, self.length, step)))

    def __iter__(self) -> Iterator[Any]:
        for number in self.numbers():
            self.before(number)
            yield row(number)

    def before(self, number: int) -> None:
        """Where the fault is put."""


class Raises(Stream):
    def before(self, number: int) -> None:
        if number == SICK:
            raise ValueError("the stream is torn")


@fault("iterable-raises", "an iterable data set raises midway", "B1", Expectation((Outcome.ERROR,), "ValueError", "stream is torn"))
def raises(trial: Trial) -> None:
    trial.epoch(trial.loader(Raises(trial.folder)))


class Hangs(Stream):
    def before(self, number: int) -> None:
        if number == SICK:
            time.sleep(3600)


@fault(
    "iterable-hangs",
    "an iterable data set hangs midway",
    "F7",
    Expectation((Outcome.ERROR,), "LoadingError", r"iterables\.py|before"),
    options=SOON,
)
def hangs(trial: Trial) -> None:
    trial.epoch(trial.loader(Hangs(trial.folder)))


class HangsAtStart(Stream):
    def __iter__(self) -> Iterator[Any]:
        time.sleep(3600)
        return super().__iter__()


@fault(
    "iterable-hangs-at-start",
    "`iter(dataset)` never returns",
    "F7",
    Expectation((Outcome.ERROR,), "LoadingError", r"iterables\.py|__iter__"),
    options=SOON,
)
def hangs_at_start(trial: Trial) -> None:
    trial.epoch(trial.loader(HangsAtStart(trial.folder)))


class DiesOnce(Stream):
    def before(self, number: int) -> None:
        if number == SICK and first_time(self.folder):
            os.kill(os.getpid(), signal.SIGKILL)


@fault("iterable-worker-dies", "a worker dies midway: the new one replays and leaves out what was delivered", "F4, issue 3 Deaths")
def dies(trial: Trial) -> None:
    trial.epoch(trial.loader(DiesOnce(trial.folder)))


class Resumes(DiesOnce):
    """Knows where it is; a second start from the beginning would be seen."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.position = 0

    def __iter__(self) -> Iterator[Any]:
        for number in list(self.numbers())[self.position :]:
            self.before(number)
            self.position += 1
            yield row(number)
        self.position = 0

    def state_dict(self) -> dict[str, int]:
        return {"position": self.position}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.position = state["position"]


@fault("iterable-worker-with-state-dies", "the same, and the data set has a state_dict", "F4, issue 3 Deaths")
def dies_with_state(trial: Trial) -> None:
    trial.epoch(trial.loader(Resumes(trial.folder)))


class DiesAlways(Stream):
    def before(self, number: int) -> None:
        if number == SICK:
            os.kill(os.getpid(), signal.SIGKILL)


@fault(
    "iterable-kills-again",
    "the same sample kills the new worker too",
    "F4",
    Expectation((Outcome.ERROR,), "LoadingError", "SIGKILL|killed|signal 9"),
)
def dies_always(trial: Trial) -> None:
    trial.epoch(trial.loader(DiesAlways(trial.folder)))


class Queue(Stream):
    """Gives each number once, to whoever asks first, as a message queue does: a second iterator goes on where the first one was."""

    def __init__(self, folder: Path, dies: bool = True) -> None:
        super().__init__(folder)
        self.dies = dies
        (folder / "queue").write_bytes(bytes(range(SAMPLES)))

    def __iter__(self) -> Iterator[Any]:
        position = os.open(self.folder / "position", os.O_RDWR | os.O_CREAT | os.O_APPEND)
        try:
            for number in self.messages(position):
                if number == SICK and self.dies:
                    os.kill(os.getpid(), signal.SIGKILL)
                yield row(number)
        finally:
            os.close(position)

    def messages(self, position: int) -> Iterator[int]:
        queue = (self.folder / "queue").read_bytes()
        while (at := os.fstat(position).st_size) < len(queue):
            os.write(position, b"x")  # taken, and never given again
            yield queue[at]


@fault(
    "queue-worker-dies",
    "a worker that reads from a queue dies: what it took does not come again, and a replay is refused",
    "P11, issue 3 Deaths",
    Expectation((Outcome.ERROR,), "LoadingError", "does not repeat itself"),
)
def queue_dies(trial: Trial) -> None:
    trial.epoch(trial.loader(Queue(trial.folder), num_workers=1))


@fault(
    "queue-worker-dies-continue",
    'the same with lost_stream="continue": it goes on with what is left, and says so',
    "P11, issue 3 Deaths",
    Expectation(said="begins anew|began anew"),
    options={"lost_stream": "continue"},
)
def queue_continues(trial: Trial) -> None:
    delivered = [number for number in range(SAMPLES) if not SICK - SICK % BATCH <= number <= SICK]
    trial.epoch(trial.loader(Queue(trial.folder), num_workers=1), delivered)


@fault("endless-iterable", "an endless stream, and a break", "F7, P11")
def endless(trial: Trial) -> None:
    loader = trial.loader(Stream(trial.folder, None))
    trial.plan(itertools.chain(range(0, 16, 2), range(1, 16, 2)))
    trial.drain(iter(loader), 4)


class Repeats(Stream):
    def numbers(self) -> Iterator[int]:
        return iter(range(SAMPLES))


@fault(
    "every-worker-repeats",
    "every worker reads the whole stream",
    "B3, datasets#3423",
    Expectation(said="every worker|each worker|same (data|samples)|repeat"),
)
def repeats(trial: Trial) -> None:
    trial.epoch(trial.loader(Repeats(trial.folder)), list(range(SAMPLES)) * 2)


class SaysThree(Stream):
    def __len__(self) -> int:
        return 3


class SaysSixty(Stream):
    def __len__(self) -> int:
        return 60


@fault("iterable-longer-than-its-length", "`__len__` says 3, the stream has 24", "F7, pt#44108", Expectation(said="length|len"))
def longer(trial: Trial) -> None:
    loader = trial.loader(SaysThree(trial.folder))
    if len(loader) != 1:
        trial.wrong(f"len(loader) is {len(loader)}")
    trial.epoch(loader)


@fault("iterable-shorter-than-its-length", "`__len__` says 60, the stream has 24", "F7, pt#44108")
def shorter(trial: Trial) -> None:
    trial.epoch(trial.loader(SaysSixty(trial.folder)))


class Empty(Stream):
    """All samples are in the first worker's share, as with fewer shards than workers."""

    def numbers(self) -> Iterator[int]:
        info = get_worker_info()
        return iter(range(SAMPLES) if info is None or info.id == 0 else ())


@fault("worker-without-data", "fewer shards than workers: one worker has nothing to do", "FIELD 1.16, webdataset#188")
def without_data(trial: Trial) -> None:
    trial.epoch(trial.loader(Empty(trial.folder)))


class StopsEarly(Stream):
    def before(self, number: int) -> None:
        if number == SICK:
            raise StopIteration


@fault(
    "iterable-raises-stop-iteration",
    "StopIteration inside a generator",
    "F7",
    Expectation((Outcome.ERROR,), "RuntimeError", "StopIteration"),
)
def stops_early(trial: Trial) -> None:
    trial.epoch(trial.loader(StopsEarly(trial.folder)))


class LeavesQuietly(Stream):
    def before(self, number: int) -> None:
        if number == SICK and first_time(self.folder):
            os._exit(0)


@fault(
    "iterable-worker-exits-0", "a worker leaves midway with exit code 0, which is not the end of the stream", "F4, FIELD 5: Grain frozen"
)
def exits_0(trial: Trial) -> None:
    trial.epoch(trial.loader(LeavesQuietly(trial.folder)))


class NoneInStream(Stream):
    def __iter__(self) -> Iterator[Any]:
        for number in self.numbers():
            yield None if number == SICK else row(number)


@fault("iterable-yields-none", "a stream yields None", "B2, torchtitan#1290", Expectation((Outcome.ERROR,), "BadSample|TypeError", "None"))
def yields_none(trial: Trial) -> None:
    trial.epoch(trial.loader(NoneInStream(trial.folder)))


class GoesOn:
    """An iterator that can be asked for more after it raised."""

    def __init__(self, crime: Callable[[], Any]) -> None:
        self.crime = crime
        self.number = -1

    def __iter__(self) -> GoesOn:
        return self

    def __next__(self) -> Any:
        self.number += 1
        if self.number >= SAMPLES:
            raise StopIteration
        return self.crime() if self.number == SICK else row(self.number)


class OneStream(Stream):
    def __init__(self, folder: Path, crime: Callable[[], Any]) -> None:
        super().__init__(folder)
        self.crime = crime

    def __iter__(self) -> Iterator[Any]:
        return GoesOn(self.crime)


def torn() -> Any:
    raise ValueError("the stream is torn")


def killed() -> Any:
    os.kill(os.getpid(), signal.SIGKILL)


def asleep() -> Any:
    time.sleep(3600)


def left_out(name: str, what: str, error: str, cause: str, crime: Callable[[], Any]) -> None:
    """Confined to one item: with skip, exactly that one is missing."""

    def program(trial: Trial) -> None:
        trial.epoch(trial.loader(OneStream(trial.folder, crime), num_workers=1))

    fault(name, what, "issue 3 Bad samples", Expectation((Outcome.ERROR,), error, cause), confined=True)(program)


left_out("iterator-gives-none", "an iterator gives None once, and goes on", "TypeError", "None", lambda: None)
left_out("iterator-raises-once", "an iterator raises once, and goes on", "ValueError", "stream is torn", torn)
left_out(
    "iterator-gives-another-shape", "an iterator gives a sample of another shape once", "RuntimeError", "size|shape", lambda: torch.zeros(9)
)


def ended(name: str, what: str, dataset: Callable[[Path], Any]) -> None:
    """Nothing after the item can be had: all before it comes, and the end is said."""

    def program(trial: Trial) -> None:
        trial.epoch(trial.loader(dataset(trial.folder), num_workers=1), range(SICK))

    said = r"sample 13 of stream 0.*(stream 0 is\s+lost|stream 0 ends\s+here)"
    fault(name, what, "issue 3 Deaths", Expectation(said=said), options={"on_bad_sample": "skip", **SOON})(program)


class GeneratorRaises(Stream):
    def before(self, number: int) -> None:
        if number == SICK:
            torn()


ended("generator-raises-with-skip", 'a generator raises, so that it cannot go on, with on_bad_sample="skip"', GeneratorRaises)
ended("iterator-kills-with-skip", 'an item kills every worker, with on_bad_sample="skip"', lambda folder: OneStream(folder, killed))
ended("iterator-hangs-with-skip", 'an item hangs in every worker, with on_bad_sample="skip"', lambda folder: OneStream(folder, asleep))
