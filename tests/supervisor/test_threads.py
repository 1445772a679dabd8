"""Workers that are threads: what processes promise, in one address space; real threads, really stuck."""

from __future__ import annotations

import os
import random
import signal
import threading
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import IterableDataset, get_worker_info

import antifreeze
from antifreeze import DataLoader
from antifreeze.errors import LoadingError, OptionError, SampleTimeout
from antifreeze.supervisor import pool, threads
from antifreeze.worker import turns
from waiting import wait_until

KINDS = [("process", 0), ("process", 2), ("thread", 1), ("thread", 3)]


class Made:
    """`sample` of each index."""

    def __init__(self, sample: Any, count: int = 20) -> None:
        self.sample, self.count = sample, count

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> Any:
        return self.sample(index)


def threaded(sample: Any, **options: Any) -> Any:
    return DataLoader(Made(sample), **{"batch_size": 4, "num_workers": 3, "workers": "thread", "keep_batches_full": False} | options)


def indices(loader: Any) -> list[int]:
    return [index for batch in loader for index in batch.tolist()]


def drawn(index: int) -> float:
    return random.random() + float(np.random.rand()) + float(torch.rand(()))


# --- the same samples -------------------------------------------------------------------------------------------------


def test_order_and_worker_info() -> None:
    seen = list(threaded(lambda index: (index, get_worker_info().id, get_worker_info().num_workers)))
    assert torch.cat([batch[0] for batch in seen]).tolist() == list(range(20))
    assert {number for batch in seen for number in batch[2].tolist()} == {3}
    assert {number for batch in seen for number in batch[1].tolist()} <= {0, 1, 2}
    assert get_worker_info() is None


def test_no_worker_info_in_the_loop() -> None:
    code = get_worker_info.__code__
    loader = threaded(lambda index: index)
    for _ in loader:
        assert get_worker_info() is None
    loader.close()
    assert get_worker_info.__code__ is code, "torch's own function is as it was"


@pytest.mark.parametrize("collate", [None, list], ids=["rows", "as they are"])
def test_random_numbers_are_the_samples_own_and_the_loops_are_untouched(collate: Any) -> None:
    runs = []
    for kind, workers in KINDS:
        random.seed(1), np.random.seed(2), torch.manual_seed(3)
        loader = DataLoader(Made(drawn), batch_size=3, num_workers=workers, workers=kind, collate_fn=collate)
        between = []
        epochs = []
        for _ in range(2):
            for batch in loader:
                epochs.append(torch.as_tensor(batch).tolist())
                between.append(drawn(0))  # the loop draws too
        runs.append((epochs, between))
    assert all(run == runs[0] for run in runs[1:])


def test_who_draws_takes_turns_and_the_report_says_so() -> None:
    loader = threaded(lambda index: random.random())
    list(loader)
    assert loader.report().taking_turns == "random"
    assert "one sample at a time" in str(loader.report())
    free = threaded(lambda index: index)
    list(free)
    assert free.report().taking_turns == ""


class Numbers(IterableDataset):  # type: ignore[type-arg]
    def __init__(self) -> None:
        self.next = 0

    def __iter__(self) -> Iterator[Any]:
        info = get_worker_info()
        first, step = (0, 1) if info is None else (info.id, info.num_workers)
        for self.next in range(first, 20, step):
            yield self.next, random.random()


def test_streams_are_split_and_each_has_a_position_of_its_own() -> None:
    runs = {}
    for kind in ("process", "thread"):
        torch.manual_seed(5)
        dataset = Numbers()
        runs[kind] = [[part.tolist() for part in batch] for batch in DataLoader(dataset, batch_size=3, num_workers=2, workers=kind)]
        assert dataset.next == 0
    assert runs["thread"] == runs["process"]


class BoundToThread(Numbers):
    """As Hugging Face streams are by the file systems they hold."""

    def __init__(self) -> None:
        super().__init__()
        self.thread = threading.get_ident()

    def __deepcopy__(self, memo: dict[int, Any]) -> Numbers:
        if threading.get_ident() != self.thread:
            raise RuntimeError("dictionary changed size during iteration")
        return Numbers()


def test_streams_are_copied_in_the_loops_thread() -> None:
    assert sum(len(batch) for batch, _ in DataLoader(BoundToThread(), batch_size=3, num_workers=4, workers="thread")) == 20


class NotToBeCopied(Numbers):
    def __deepcopy__(self, memo: dict[int, Any]) -> Numbers:
        raise TypeError("there is one of me")


def test_a_stream_that_cannot_be_copied() -> None:
    with pytest.raises(TypeError, match="there is one of me"):
        list(DataLoader(NotToBeCopied(), batch_size=3, num_workers=2, workers="thread"))


def test_the_data_set_is_the_users_own_object() -> None:
    dataset = Made(lambda index: index)
    loader = DataLoader(dataset, batch_size=4, num_workers=2, workers="thread", persistent_workers=True)
    assert indices(loader) == list(range(20))
    dataset.sample = lambda index: -index
    assert indices(loader) == [-index for index in range(20)]
    loader.close()


def test_what_does_not_pickle_is_handed_over() -> None:
    lock = threading.Lock()
    batches = list(threaded(lambda index: lock, collate_fn=lambda samples: samples))
    assert all(sample is lock for batch in batches for sample in batch)


def test_an_init_function_sees_its_worker_and_leaves_the_process_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pool, "INITS_S", 100.0)  # one that was not needed may still be coming
    seen = {}

    def init(worker_id: int) -> None:
        seen[worker_id] = (get_worker_info().id, torch.initial_seed() == get_worker_info().seed)
        random.seed(7), np.random.seed(7), torch.manual_seed(7)

    torch.manual_seed(3)
    loader = threaded(drawn, worker_init_fn=init)
    states = (random.getstate(), np.random.get_state()[2])
    first = torch.cat(list(loader))
    assert (random.getstate(), np.random.get_state()[2]) == states
    assert seen == {number: (number, True) for number in range(3)}
    torch.manual_seed(3)
    assert torch.equal(first, torch.cat(list(threaded(drawn)))), "samples are keyed on their position all the same"


# --- faults -----------------------------------------------------------------------------------------------------------


def test_an_exception_is_the_samples() -> None:
    def sample(index: int) -> int:
        if index == 5:
            raise KeyError("no such row")
        return index

    with pytest.raises(KeyError, match="sample 5") as caught:
        list(threaded(sample))
    assert "in DataLoader worker thread " in str(caught.value)
    assert indices(threaded(sample, on_bad_sample="skip")) == [index for index in range(20) if index != 5]


@pytest.mark.parametrize("ending", [SystemExit, KeyboardInterrupt, StopIteration, GeneratorExit])
def test_no_exception_of_a_sample_ends_a_thread(ending: type[BaseException]) -> None:
    def sample(index: int) -> int:
        if index == 5:
            raise ending
        return index

    loader = threaded(sample, on_bad_sample="skip")
    assert indices(loader) == [index for index in range(20) if index != 5]
    assert loader.report().restarts == 0


class LeavesTogether(Made):
    def __getitems__(self, indices: list[int]) -> list[Any]:
        return [self[index] for index in indices]


@pytest.mark.parametrize("policy", ["raise", "skip"])
def test_what_ends_a_thread_at_a_whole_batch_is_blamed_on_its_sample(policy: str) -> None:
    def sample(index: int) -> int:
        if index == 5:
            raise SystemExit(3)
        return index

    loader = DataLoader(LeavesTogether(sample, 20), batch_size=4, num_workers=2, workers="thread", on_bad_sample=policy)
    if policy == "skip":
        assert sorted(indices(loader)) == [index for index in range(20) if index != 5]
        return
    with pytest.raises(LoadingError, match=r"sample 5: .*SystemExit: 3"):
        list(loader)


def test_code_that_loops_for_ever_is_ended() -> None:
    def sample(index: int) -> int:
        while index == 5:
            pass
        return index

    loader = threaded(sample, on_bad_sample="skip", sample_timeout_s=0.8)
    assert indices(loader) == [index for index in range(20) if index != 5]
    report = loader.report()
    assert report.restarts == 1
    assert "test_threads.py" in report.bad_samples[0].failure.message


@pytest.mark.parametrize("draws", [False, True])
def test_a_call_that_does_not_return_is_left_behind(draws: bool, capfd: pytest.CaptureFixture[str]) -> None:
    release = threading.Lock()
    release.acquire()

    def sample(index: int) -> float:
        if index == 5:
            release.acquire()  # nothing can end this from outside
            release.release()
        return index + draws * random.random()

    random.seed(3)
    expected = random.random()
    random.seed(3)
    loader = threaded(sample, on_bad_sample="skip", sample_timeout_s=0.8)
    try:
        assert [int(index) for index in indices(loader)] == [index for index in range(20) if index != 5]
        assert random.random() == expected, "what it had seeded was put back"
        told = capfd.readouterr().err
        assert "cannot be ended and is left behind" in told
        assert "test_threads.py" in told
        assert any("antifreeze-worker" in thread.name for thread in threading.enumerate())
    finally:
        release.release()
    loader.close()


def test_one_that_comes_back_late_says_nothing_about_random_numbers() -> None:
    """The generators, which it had as one of the first samples, were put back while it was away: that is no use of them."""
    over = threading.Event()

    def sample(index: int) -> int:
        try:
            if index == 0:
                over.wait(60)
        except BaseException:  # the word that it is to end, when it comes back
            pass
        return index

    loader = threaded(sample, on_bad_sample="skip", sample_timeout_s=0.6)
    assert indices(loader) == [index for index in range(20) if index != 0]
    over.set()
    wait_until(lambda: not any("antifreeze-worker" in thread.name for thread in threading.enumerate()))
    assert indices(loader) == list(range(20))
    assert not loader.report().taking_turns
    loader.close()


@pytest.mark.parametrize("stuck_in", [0, 30], ids=["first batches", "later ones"])
@pytest.mark.parametrize("draws", [False, True])
def test_a_loader_inside_one_that_comes_back_late_leaves_the_random_generators_alone(draws: bool, stuck_in: int) -> None:
    over = threading.Event()

    def within(outer: int, inner: int) -> float:
        if outer == 5 and inner == stuck_in:
            over.wait(60)
        return inner + draws * random.random()

    def sample(index: int) -> int:
        return index + 0 * len(list(DataLoader(Made(lambda inner: within(index, inner), 40), 2)))

    random.seed(3)
    expected = [random.random() for _ in range(2)]
    random.seed(3)
    loader = threaded(sample, on_bad_sample="skip", sample_timeout_s=0.8)
    try:
        assert indices(loader) == [index for index in range(20) if index != 5]
        drawn = [random.random()]
    finally:
        over.set()
        loader.close()
    wait_until(lambda: not any("antifreeze-worker" in thread.name for thread in threading.enumerate()))
    assert [*drawn, random.random()] == expected, "what it puts back when it comes back would be the numbers of long ago"


def test_a_loader_inside_a_sample_that_has_not_the_floor_leaves_the_loops_numbers_alone() -> None:
    """With a generator of its own it draws nothing, so that once that is known its sample runs while the loop does."""
    inside, drawn_meanwhile = threading.Event(), threading.Event()

    def within(index: int) -> int:
        if index == 6 and inside_of[-1] == 5:
            inside.set()
            drawn_meanwhile.wait(20)
        return index

    inside_of: list[int] = []
    inner = DataLoader(Made(within, 8), 2, generator=torch.Generator())

    def sample(index: int) -> int:
        inside_of.append(index)
        return index + 0 * len(list(inner))

    random.seed(3)
    expected = [random.random() for _ in range(5)]
    random.seed(3)
    drawn = []
    with threaded(sample, num_workers=1) as loader:
        for _ in loader:
            assert inside.wait(20)
            drawn.append(random.random())
            drawn_meanwhile.set()
        assert not loader.report().taking_turns
    assert drawn == expected


class Loops(Numbers):
    def __iter__(self) -> Iterator[Any]:
        for number, _ in super().__iter__():
            while number == 11:
                time.sleep(0.01)
            yield number


@pytest.mark.parametrize("kind", ["process", "thread"])
def test_a_stream_that_loops_for_ever_ends_before_that(kind: str) -> None:
    given: dict[str, Any] = {"batch_size": 3, "num_workers": 2, "workers": kind, "on_bad_sample": "skip", "sample_timeout_s": 0.5}
    loader = DataLoader(Loops(), **given)
    assert [batch.tolist() for batch in loader] == [[0, 2, 4], [1, 3, 5], [6, 8, 10], [7, 9], [12, 14, 16], [18]]
    (bad,) = loader.report().bad_samples
    assert bad.failure.type_name == "SampleTimeout"
    assert bad.failure.index == "5 of stream 1"


class StuckSoon(Numbers):
    def __iter__(self) -> Iterator[Any]:
        yield from (0, 1)
        while True:
            time.sleep(0.01)


@pytest.mark.parametrize("kind", ["process", "thread"])
def test_an_item_of_the_first_batch_of_a_stream_is_named(kind: str) -> None:
    loader = DataLoader(StuckSoon(), batch_size=3, num_workers=1, workers=kind, sample_timeout_s=0.3)
    with pytest.raises(SampleTimeout, match="sample 2 of stream 0 took longer"):
        list(loader)
    loader.close()


def test_who_waited_for_a_stuck_sample_was_not_slow() -> None:
    release = threading.Event()

    def sample(index: int) -> float:
        if index in (5, 15):
            random.random()
            release.wait(30)
        return index + random.random()

    loader = threaded(sample, num_workers=5, on_bad_sample="skip", sample_timeout_s=0.5)
    try:
        assert [int(index) for index in indices(loader)] == [index for index in range(20) if index not in (5, 15)]
        took_s = loader._ledger.costs.fetch_ns / 1e9
        assert took_s < 0.5, "of four that waited for the first one: the second had ten times as long as that"
    finally:
        release.set()
    loader.close()


@pytest.mark.parametrize("workers", [2, 8])
def test_samples_that_draw_late_have_their_own_numbers_too(workers: int) -> None:
    def sample(index: int) -> float:
        return random.random() if index % 7 == 3 else float(index)

    runs = []
    for number, kind in [(0, "process"), *[(workers, "thread")] * 5]:
        torch.manual_seed(3)
        runs.append(torch.cat(list(DataLoader(Made(sample, 60), batch_size=4, num_workers=number, workers=kind))))
    assert all(torch.equal(run, runs[0]) for run in runs[1:])


def test_closing_does_not_wait_for_a_stuck_thread() -> None:
    release = threading.Lock()
    release.acquire()
    loader = threaded(lambda index: release.acquire() if index == 5 else index)
    iterator = iter(loader)
    next(iterator)
    loader.close()  # or it would wait for ever
    release.release()


def test_closing_does_not_wait_for_threads_that_wait_for_their_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    killed: list[str] = []
    monkeypatch.setattr(threads.WorkerThread, "kill", lambda worker: killed.append(worker.who))
    monkeypatch.setattr(threads, "ASK_S", 20.0)
    iterator = iter(threaded(drawn))
    next(iterator)
    wait_until(lambda: len(turns._waiting) > 0)
    iterator.close()
    assert not killed and not turns._waiting


def test_a_thread_whose_end_was_awaited_in_vain_is_still_there() -> None:
    """Python's own is_alive() denies it after a join() that a signal's handler has broken off."""
    goes_on, begun = threading.Event(), threading.Event()

    def sample(index: int) -> int:
        if index >= 4:  # the first ones are watched, for which the loop must wait
            begun.set()
            goes_on.wait(20)
        return index

    def rings(*_: object) -> None:
        raise KeyError("an alarm")

    before = signal.signal(signal.SIGALRM, rings)
    try:
        with threaded(sample, num_workers=1) as loader:
            iterator = iter(loader)
            assert next(iterator).tolist() == list(range(4)) and begun.wait(20)
            worker = iterator.pool.crew.workers[0]
            signal.setitimer(signal.ITIMER_REAL, 0.05)
            with pytest.raises(KeyError, match="an alarm"):
                worker.wait_gone(time.monotonic() + 20)
            assert not worker.is_gone()
            goes_on.set()
            assert indices(iterator) == list(range(4, 20))
    finally:
        goes_on.set()
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert worker.is_gone()


def test_an_init_function_that_ends_its_thread() -> None:
    def init(worker_id: int) -> None:
        raise SystemExit(3)

    with pytest.raises(antifreeze.errors.WorkerStartFailed, match="SystemExit"):
        list(threaded(lambda index: index, worker_init_fn=init))


def test_an_init_function_that_raises() -> None:
    def init(worker_id: int) -> None:
        raise ValueError("no")

    with pytest.raises(ValueError, match="worker_init_fn"):
        list(threaded(lambda index: index, worker_init_fn=init))


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_child_forked_while_threads_run() -> None:
    loader = threaded(lambda index: index)
    iterator = iter(loader)
    next(iterator)
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            code = 0 if indices(threaded(lambda index: index)) == list(range(20)) and get_worker_info() is None else 2
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    assert len(list(iterator)) == 4


def test_a_loader_inside_a_sample() -> None:
    def sample(index: int) -> float:
        inner = DataLoader(Made(drawn, 2), num_workers=index % 3, workers="thread")
        return float(sum(float(batch) for batch in inner)) * 0 + index + random.random() * 0

    assert [int(index) for index in indices(threaded(sample))] == list(range(20))


def test_several_loaders_at_once() -> None:
    one, other = threaded(drawn), threaded(lambda index: index)
    assert len(list(zip(one, other, strict=True))) == 5


def test_recycled_after_so_many_samples() -> None:
    loader = threaded(lambda index: index, recycle_worker_after=3, num_workers=1)
    assert indices(loader) == list(range(20))
    assert loader.report().restarts == 0


def test_a_late_sample_is_hedged() -> None:
    slow = threading.Event()

    def sample(index: int) -> int:
        if index == 5 and not slow.is_set():
            slow.set()
            time.sleep(1.5)
        return index

    loader = threaded(sample, hedge=True)
    assert indices(loader) == list(range(20))


# --- the door ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"workers": "fibre"}, '"process", "thread"'),
        ({"recycle_worker_after": "2GiB"}, "no memory of their own"),
        ({"multiprocessing_context": "fork"}, "starts none"),
    ],
)
def test_what_threads_cannot_do_is_said_at_once(options: dict[str, Any], words: str) -> None:
    with pytest.raises(OptionError, match=words):
        threaded(lambda index: index, **options)


def test_datapipes_are_refused() -> None:
    from torch.utils.data.datapipes.iter import IterableWrapper

    with pytest.raises(OptionError, match="DataPipe"):
        DataLoader(IterableWrapper(range(3)), num_workers=2, workers="thread")
