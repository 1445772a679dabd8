"""With how many of torch's threads the loop loads batches itself, beside workers that have one each."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

from antifreeze import DataLoader
from antifreeze.delivery.thread_use import REST_LOOKS, WATCHED_BATCHES, ThreadUse

SOURCE = torch.arange(1_000_000, dtype=torch.float32).reshape(-1, 100) / 7
CHOSEN = torch.arange(0, 10_000, 3)


class Shares(torch.Tensor):
    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        found = super().__torch_function__(func, types, args, kwargs)
        return found / found.sum() if func is torch.Tensor.__getitem__ else found


@pytest.fixture(autouse=True)
def four_threads() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(4)
    yield
    torch.set_num_threads(before)


def after_a_look() -> ThreadUse:
    """One that knows what a batch takes with one thread."""
    use = ThreadUse()
    use._contest.one_ns = 50_000.0
    return use


def threads_of(use: ThreadUse, load: Callable[[], object], times: int, alone: bool = True) -> list[int]:
    seen = []

    def batch() -> None:
        seen.append(torch.get_num_threads())
        load()

    for _ in range(times):
        use.load(batch, alone)
        assert torch.get_num_threads() == 4
    return seen


@pytest.mark.parametrize(
    ("load", "same_bits"),
    [
        pytest.param(lambda: SOURCE[CHOSEN], True, id="an index"),
        pytest.param(lambda: torch.stack(list(SOURCE[CHOSEN].unbind())), True, id="a stack"),
        pytest.param(lambda: SOURCE[CHOSEN].to(torch.float64) / 255, True, id="pictures as floats"),
        pytest.param(lambda: torch.nn.functional.pad(SOURCE, (0, 5)), True, id="padding"),
        pytest.param(lambda: [1, 2, 3], True, id="nothing of torch's"),
        pytest.param(SOURCE.sum, False, id="a sum"),
        pytest.param(lambda: SOURCE[CHOSEN] @ SOURCE[:100], False, id="a product of matrices"),
        pytest.param(lambda: SOURCE[CHOSEN] * 1j, False, id="a complex product, which is a sum"),
        pytest.param(lambda: torch.arange(0, 30_000, 0.1), False, id="a range, which adds steps"),
        pytest.param(lambda: SOURCE.clone().__setitem__(CHOSEN, SOURCE[CHOSEN]), False, id="two values for one place"),
        pytest.param(lambda: SOURCE.as_subclass(Shares)[CHOSEN], False, id="a class that does more than it is asked"),
        pytest.param(lambda: [SOURCE[row] for row in range(100)], True, id="many small calls"),
        pytest.param(SOURCE.exp, False, id="what is another function at the end of a share"),
    ],
)
def test_all_threads_where_their_number_cannot_be_seen_in_the_bits(load: Callable[[], object], same_bits: bool) -> None:
    seen = threads_of(after_a_look(), load, WATCHED_BATCHES + 3)
    assert seen == [1] * WATCHED_BATCHES + [4 if same_bits else 1] * 3


def test_beside_workers_it_takes_one() -> None:
    use = after_a_look()
    assert threads_of(use, lambda: SOURCE[CHOSEN], WATCHED_BATCHES + 1)[-1] == 4
    assert threads_of(use, lambda: SOURCE[CHOSEN], 2, alone=False) == [1, 1]


def test_every_pass_is_looked_at_again() -> None:
    use = after_a_look()
    assert threads_of(use, lambda: SOURCE[CHOSEN], WATCHED_BATCHES + 1)[-1] == 4
    use.begin_pass()
    assert threads_of(use, SOURCE.mean, 3) == [1, 1, 1]
    assert "mean" in repr(use)
    use.begin_pass()
    assert threads_of(use, lambda: SOURCE[CHOSEN], 2) == [1, 1], "it may happen again"


def test_an_error_leaves_the_threads_as_they_were() -> None:
    def bad() -> None:
        raise ValueError("no such file")

    use = after_a_look()
    for _ in range(WATCHED_BATCHES + 1):
        with pytest.raises(ValueError, match="no such file"):
            use.load(bad, alone=True)
        assert torch.get_num_threads() == 4


def test_what_failed_was_seen_too() -> None:
    def bad() -> None:
        SOURCE.sum()
        raise ValueError("no such file")

    use = after_a_look()
    for _ in range(WATCHED_BATCHES):
        with pytest.raises(ValueError, match="no such file"):
            use.load(bad, alone=True)
    assert threads_of(use, lambda: SOURCE[CHOSEN], 1) == [1]


def test_what_comes_late_has_one_thread_before_it_is_done() -> None:
    use, seen = after_a_look(), []

    def mixed() -> torch.Tensor:
        chosen = SOURCE[CHOSEN]
        seen.append(torch.get_num_threads())
        total = chosen.sum()
        seen.append(torch.get_num_threads())
        return total

    assert threads_of(use, lambda: SOURCE[CHOSEN], 7) == [1] * WATCHED_BATCHES + [4] * 3
    torch.set_num_threads(1)
    expected = mixed()
    torch.set_num_threads(4)
    assert torch.equal(use.load(mixed, alone=True), expected)
    assert seen[2:] == [4, 1] and torch.get_num_threads() == 4
    assert threads_of(use, lambda: SOURCE[CHOSEN], 1) == [1]


LARGE = 400_003
TURNS = torch.complex(SOURCE.flatten()[:LARGE], SOURCE.flatten()[-LARGE:])
PLACES = torch.arange(LARGE) * 7 % 50


def placed() -> torch.Tensor:
    found = torch.zeros(50)
    found[PLACES] = SOURCE.flatten()[:LARGE]
    return found


@pytest.mark.parametrize(
    "load",
    [
        pytest.param(lambda: SOURCE.flatten()[:LARGE].to(torch.float64) / 255, id="pictures as floats"),
        pytest.param(lambda: SOURCE.flatten()[:LARGE] * SOURCE.flatten()[-LARGE:], id="a product"),
        pytest.param(lambda: TURNS * TURNS, id="a complex product"),
        pytest.param(lambda: torch.arange(0.37, 100_000.0, 0.3), id="a range"),
        pytest.param(placed, id="many values for one place"),
    ],
)
def test_the_bits_are_those_of_one_thread(load: Callable[[], torch.Tensor]) -> None:
    torch.set_num_threads(1)
    expected = load()
    torch.set_num_threads(4)
    use = after_a_look()
    for _ in range(WATCHED_BATCHES + 2):
        assert torch.equal(use.load(load, alone=True), expected)


class WholeBatches(torch.utils.data.Dataset):  # type: ignore[type-arg]
    def __len__(self) -> int:
        return 50 * 200

    def __getitem__(self, index: int) -> int:
        return index

    def __getitems__(self, indices: list[int]) -> tuple[torch.Tensor, torch.Tensor]:
        return torch.tensor([torch.get_num_threads()]), SOURCE[torch.tensor(indices)]


def as_it_is(batch: Any) -> Any:
    return batch


def test_a_loader_that_loads_in_the_loop() -> None:
    with DataLoader(WholeBatches(), batch_size=50, num_workers="auto", collate_fn=as_it_is) as loader:
        passes = [[int(threads[0]) for threads, _ in loader]]
        while 4 not in passes[-1] and len(passes) < 100:
            passes.append([int(threads[0]) for threads, _ in loader])
    assert set(passes[0][:WATCHED_BATCHES]) == {1}
    assert 4 in passes[-1] and {seen[0] for seen in passes} == {1}


def test_batches_that_nobody_looks_at_count_as_loaded() -> None:
    use, looked_at = after_a_look(), []
    number = 0
    while number < 100:
        use.load(lambda: SOURCE[CHOSEN], alone=True)
        looked_at.append(number + 1)
        number += 1 + use.take_unwatched()
    assert looked_at == [1, 2, 3, 4, 8, 16, 32, 64]


def test_what_breaks_off_those_that_nobody_looks_at_does_not_make_the_next_look_later(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another setting, or threads that were slower, again and again: each counted all that would have followed as loaded."""
    looked_at, of_the_class = [], ThreadUse._watch

    def watch(use: ThreadUse, load: Callable[[], Any]) -> Any:
        looked_at.append(batches._num_yielded + 1)
        return of_the_class(use, load)

    monkeypatch.setattr(ThreadUse, "_watch", watch)
    with DataLoader(WholeBatches(), batch_size=50, num_workers="auto", collate_fn=as_it_is) as loader:
        batches: Any = iter(loader)
        batches._steering.auto.threads._contest.one_ns = 1e9
        for number in range(1, 150):
            next(batches)
            if number % 10 == 0:
                batches._steering._other_batches()
    assert looked_at == [1, 2, 3, 4, 8, 16, 32, 64, 128]


def test_a_signal_as_soon_as_the_threads_were_set_leaves_them_as_they_were(monkeypatch: pytest.MonkeyPatch) -> None:
    use, of_torch = after_a_look(), torch.set_num_threads

    def interrupted(threads: int) -> None:
        of_torch(threads)
        if threads == 1:
            raise KeyboardInterrupt

    monkeypatch.setattr(torch, "set_num_threads", interrupted)
    with pytest.raises(KeyboardInterrupt):
        use.load(list, alone=True)
    assert torch.get_num_threads() == 4


class MixesLate(WholeBatches):
    def __getitems__(self, indices: list[int]) -> tuple[torch.Tensor, torch.Tensor]:
        late = SOURCE.sum() if indices[0] >= 15 * 50 else torch.zeros(())
        return torch.tensor([torch.get_num_threads()]), late


def test_a_loader_whose_batches_do_more_from_the_sixteenth_on() -> None:
    """It is one of those that are looked at: it and all behind it have the bits of one thread."""
    torch.set_num_threads(1)
    expected = SOURCE.sum()
    torch.set_num_threads(4)
    with DataLoader(MixesLate(), batch_size=50, num_workers="auto", collate_fn=as_it_is) as loader:
        batches = iter(loader)
        batches._steering.auto.threads._contest.one_ns = 1e9  # type: ignore[attr-defined]
        seen = [next(batches) for _ in range(40)]
    assert [int(threads[0]) for threads, _ in seen[4:]] == [4] * 11 + [1] * 25
    assert all(torch.equal(late, expected) for _, late in seen[15:])


class Computes(torch.utils.data.Sampler):  # type: ignore[type-arg]
    """Its order depends on a sum."""

    def __init__(self) -> None:
        self.threads: list[int] = []

    def __iter__(self) -> Iterator[int]:
        for index in range(len(WholeBatches())):
            self.threads.append(torch.get_num_threads())
            yield (index + int(SOURCE.sum())) % len(WholeBatches())


def test_the_sampler_has_all_threads_and_is_no_word_on_the_batches() -> None:
    """It runs in the loop's process with any number of workers: its bits, and so the order, are the same with each."""
    sampler = Computes()
    with DataLoader(WholeBatches(), batch_size=50, sampler=sampler, num_workers="auto", collate_fn=as_it_is) as loader:
        batches = iter(loader)
        threads = [int(next(batches)[0][0]) for _ in range(WATCHED_BATCHES + 2)]
        use = batches._steering.auto.threads  # type: ignore[attr-defined]
    assert set(threads) <= {1, 4} and set(threads[:WATCHED_BATCHES]) == {1}
    assert set(sampler.threads) == {4} and "because of" not in repr(use)


def looks(use: ThreadUse, *means_ns: int) -> list[bool]:
    """Of ten batches each; whether the loop has all threads after each."""
    batches, work_ns, had = *(use._last or (0, 0)), []
    use.look(batches, work_ns)
    for mean_ns in means_ns:
        batches, work_ns = batches + 10, work_ns + 10 * mean_ns
        use.look(batches, work_ns)
        had.append(use.take_unwatched() > 0 or use._may_use_all)
    return had


def watched() -> ThreadUse:
    use = ThreadUse()
    threads_of(use, lambda: SOURCE[CHOSEN], WATCHED_BATCHES)
    use._watched = use._watched_ns = 0
    return use


def test_what_one_thread_takes_is_measured_first() -> None:
    use = watched()
    assert "to be measured" in repr(use)
    assert threads_of(use, lambda: SOURCE[CHOSEN], 1) == [1]
    assert looks(use, 60_000) == [True]


def test_where_all_threads_take_longer_it_has_one_for_ever_longer_whiles() -> None:
    """Another program needs a core: threads that wait for each other wait for that."""
    use = watched()
    assert looks(use, 60_000, 50_000, 8_000_000) == [True, True, False]
    assert looks(use, *[90_000] * REST_LOOKS) == [False] * (REST_LOOKS - 1) + [True]
    assert looks(use, 9_000_000, *[90_000] * 2 * REST_LOOKS) == [False] * 2 * REST_LOOKS + [True]
    assert looks(use, *[70_000] * 4 * REST_LOOKS) == [True] * 4 * REST_LOOKS
    assert looks(use, 9_000_000, *[90_000] * REST_LOOKS) == [False] * REST_LOOKS + [True], "that was long ago"


def test_what_was_watched_and_what_others_load_is_not_measured() -> None:
    use = watched()
    looks(use, 60_000)
    use._watched, use._watched_ns = 1, 10**9
    assert not use.look(21, 11 * 60_000 + 10 * 50_000 + 10**9) and "all threads" in repr(use)
    use.look_away()
    assert not use.look(1_000, 10**12) and "all threads" in repr(use)
