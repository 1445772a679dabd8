"""Errors: of the same type as torch's, with the original words and traceback; and the loader goes on as torch's does."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch.utils.data import Dataset, IterableDataset, default_collate

from .contract import (
    REPEATS,
    Case,
    Ours,
    Torchs,
    assert_same,
    assert_same_error,
    assert_same_outcome,
    drain,
    ours_only,
    rows,
    run,
    without_frames,
)
from .datasets import Count, Failing, FailingIterable, Samples, Squares

pytestmark = REPEATS


class OneWord(Exception):
    pass


class TwoWords(Exception):
    """Cannot be made again from one message."""

    def __init__(self, code: int, words: str) -> None:
        super().__init__(code, words)
        self.code = code


class WithMessage(Exception):
    """Has the field torch looks for."""

    message = "class level"

    def __init__(self, message: str) -> None:
        super().__init__(message)


class Unspeakable(Exception):
    """Refuses to be made again."""

    def __init__(self, *words: str) -> None:
        if len(words) != 2:
            raise RuntimeError("two words, please")
        super().__init__(*words)


class Mute:
    """Does not pickle."""

    def __reduce__(self) -> Any:
        raise TypeError("mute")

    def __repr__(self) -> str:
        return "mute"


def unicode_error() -> Exception:
    return UnicodeDecodeError("utf-8", b"\xff", 0, 1, "bad start of it all")


def caused() -> Exception:
    error = OneWord("outer words")
    error.__cause__ = ValueError("inner words")
    return error


ERRORS: dict[str, Callable[[], BaseException]] = {
    "ValueError": lambda: ValueError("original words"),
    "no words": ValueError,
    "KeyError": lambda: KeyError("original words"),
    "KeyError of a tuple": lambda: KeyError(("a", 1)),
    "IndexError": lambda: IndexError("original words"),
    "AssertionError": lambda: AssertionError("original words"),
    "FileNotFoundError": lambda: FileNotFoundError(2, "original words", "/no/file"),
    "UnicodeDecodeError": unicode_error,
    "own": lambda: OneWord("original words"),
    "own with two arguments": lambda: TwoWords(7, "original words"),
    "own with a message field": lambda: WithMessage("original words"),
    "own that cannot be made again": lambda: Unspeakable("original", "words"),
    "with what does not pickle": lambda: OneWord(Mute()),
    "with a cause": caused,
    "several lines": lambda: ValueError("first line\nsecond line"),
}


def steps(cls: Any, case: Case, num_workers: int) -> list[Any]:
    """Every next() to the end: batches and errors. An iterator goes on after an error."""
    dataset = case.make()
    loader = cls(dataset, num_workers=num_workers, **case.kwargs(dataset))
    told: list[Any] = []
    batches = iter(loader)
    while told[-2:] != [END, END]:
        told.append(step(batches))
        assert len(told) < 20, f"no end: {told}"
    return told


END = "StopIteration"


def step(batches: Iterator[Any]) -> Any:
    try:
        return next(batches)
    except StopIteration:
        return END
    except Exception as error:
        return without_frames(error)


def assert_same_steps(case: Case, num_workers: int) -> None:
    for number, (ours, torchs) in enumerate(zip(steps(Ours, case, num_workers), steps(Torchs, case, num_workers), strict=True)):
        if isinstance(torchs, Exception):
            assert isinstance(ours, Exception), f"step {number}: torch raised {torchs!r}, ours gave {ours!r}"
            assert_same_error(ours, torchs)
            if torchs.args != ("two words, please",):  # torch 2.4 says what went wrong when it made the error again, and not the error
                assert ("Original Traceback" in str(ours)) == ("Original Traceback" in str(torchs)), str(ours)
        else:
            assert_same(ours, torchs)


@pytest.mark.parametrize("num_workers", [0, 2])
@rows([Case(name, lambda make=make: Failing(make), lambda _: {"batch_size": 2}) for name, make in ERRORS.items()])
def test_a_sample_that_fails(case: Case, num_workers: int) -> None:
    assert_same_steps(case, num_workers)


def fail_in_collate(samples: list[Any]) -> Any:
    if len(samples) == 1:
        raise OneWord("original words")
    return default_collate(samples)


class FailingBatch(Squares):
    def __getitems__(self, indices: list[int]) -> Any:
        if 4 in indices:
            raise OneWord("original words")
        return [self[index] for index in indices]


class FailsToStart(IterableDataset):  # type: ignore[type-arg]
    def __iter__(self) -> Any:
        raise OneWord("original words")


class NotAnIterator(IterableDataset):  # type: ignore[type-arg]
    def __iter__(self) -> Any:
        return [1, 2]


class Short(Dataset):  # type: ignore[type-arg]
    """Says 9, has 5."""

    def __len__(self) -> int:
        return 9

    def __getitem__(self, index: int) -> int:
        return list(range(5))[index]


class Shapeless:
    dtype = shape = None


class NoItems(Dataset):  # type: ignore[type-arg]
    def __len__(self) -> int:
        return 3


PLACES = [
    Case("collate", lambda: Squares(5), lambda _: {"batch_size": 2, "collate_fn": fail_in_collate}),
    Case("__getitems__", Squares, lambda _: {"batch_size": 3}),
    Case("__getitems__ fails", FailingBatch, lambda _: {"batch_size": 3}),
    Case("no batches", lambda: Failing(ERRORS["own"]), lambda _: {"batch_size": None}),
    Case("first sample", lambda: Failing(ERRORS["own"]), lambda _: {"batch_sampler": [[4], [1]]}),
    Case("every sample", lambda: Failing(ERRORS["own"]), lambda _: {"batch_sampler": [[4], [4], [4]]}),
    Case("stream", lambda: FailingIterable(ERRORS["own"]), lambda _: {"batch_size": 3}),
    Case("stream without batches", lambda: FailingIterable(ERRORS["KeyError"]), lambda _: {"batch_size": None}),
    Case("index out of range", Short, lambda _: {"batch_size": 3}),
    Case("index out of range of a tensor", lambda: torch.arange(5), lambda _: {"sampler": [1, 2, 77], "batch_size": 2}),
    Case("a missing key", lambda: {0: 1, 1: 2, 3: 4}, lambda _: {"batch_size": 2}),
    Case("no __getitem__", NoItems, lambda _: {"batch_size": 2}),
    Case("ragged", lambda: Samples(5, lambda i: torch.ones(3 if i == 3 else 2)), lambda _: {"batch_size": 2}),
    Case("nested tensors", lambda: Samples(4, lambda i: torch.nested.nested_tensor([torch.ones(1 + i)])), lambda _: {"batch_size": 2}),
    Case("samples of no shape", lambda: Samples(4, lambda i: Shapeless()), lambda _: {"batch_size": 2}),
    Case("collate that takes nothing", Squares, lambda _: {"batch_size": 5, "collate_fn": lambda: None}),
]


@pytest.mark.filterwarnings("ignore:.*nested tensors")
@pytest.mark.parametrize("num_workers", [0, 2])
@rows(PLACES)
def test_the_place_of_the_failure(case: Case, num_workers: int) -> None:
    assert_same_steps(case, num_workers)


def fail_to_init(worker_id: int) -> None:
    raise OneWord(f"original words of {worker_id}")


def yielding_then_failing() -> Iterator[int]:
    yield from range(3)
    raise OneWord("original words")


def raise_own() -> Any:
    raise OneWord("original words")


class FailingLength(Squares):
    def __len__(self) -> int:
        return raise_own()


OUTSIDE = [
    Case("worker_init_fn", Squares, lambda _: {"batch_size": 2, "worker_init_fn": fail_to_init}),
    Case("sampler", Squares, lambda _: {"batch_size": 2, "sampler": yielding_then_failing()}),
    Case("batch_sampler", Squares, lambda _: {"batch_sampler": ([i] for i in yielding_then_failing())}),
    Case("length", FailingLength, lambda _: {"batch_size": 2}),
    Case("negative length", lambda: Squares(-1), lambda _: {"batch_size": 2}),
    Case("length of a fraction", lambda: Squares(2.5), lambda _: {"batch_size": 2}),
    Case("stream that does not start", FailsToStart, lambda _: {"batch_size": 2}),
    Case("stream that gives no iterator", NotAnIterator, lambda _: {"batch_size": 2}),
    Case("data set is None", lambda: None, lambda _: {"batch_size": 2}),
    Case("data set is a number", lambda: 3, lambda _: {"batch_size": 2}),
    Case("batches that are not lists", Squares, lambda _: {"batch_sampler": [3, 4]}),
    Case("collate_fn is a number", Squares, lambda _: {"batch_size": 2, "collate_fn": 3}),
    Case("collate_fn is a number, no batches", Squares, lambda _: {"batch_size": None, "collate_fn": 3}),
]


@pytest.mark.parametrize("num_workers", [0, 2])
@rows(OUTSIDE)
def test_failures_outside_of_samples(case: Case, num_workers: int) -> None:
    ours, torchs = run(Ours, case, num_workers), run(Torchs, case, num_workers)
    ours.batches, torchs.batches = [], []  # how far a sampler is read ahead of the batches is no contract
    assert_same_outcome(ours, torchs)
    if case.name in ("worker_init_fn", "stream that does not start") and num_workers and torchs.error:
        assert "Original Traceback" in str(ours.error)


@ours_only
@pytest.mark.parametrize(("size", "on_bad", "named"), [(3, "raise", "[0, 1, 2]"), (3, "skip", "[0, 1, 2]"), (None, "raise", "0")])
def test_a_batch_of_a_stream_that_fails_as_a_whole_is_named_by_its_items(size: int | None, on_bad: str, named: str) -> None:
    case = Case("", Count, lambda _: {"batch_size": size, "collate_fn": lambda _: raise_own(), "on_bad_sample": on_bad})
    ours = run(Ours, case, 1)
    assert ours.error is not None
    assert f"samples {named} of stream 0" in str(ours.error)


def test_a_sample_that_says_stop_without_workers() -> None:
    """torch's loop ends there, in silence; the loader cannot tell it from its own end."""
    assert_same_steps(Case("", lambda: Failing(lambda: StopIteration("original words")), lambda _: {"batch_size": 2}), 0)


@ours_only
def test_a_sample_that_says_stop_does_not_end_the_epoch_of_workers() -> None:
    """With torch it does, in silence, and the rest of the data is lost."""
    with pytest.raises(RuntimeError, match="original words"):
        drain(Ours(Failing(lambda: StopIteration("original words")), batch_size=2, num_workers=2))


def test_the_workers_traceback_is_told() -> None:
    ours = run(Ours, Case("", lambda: Failing(ERRORS["own"]), lambda _: {"batch_size": 2}), 2)
    assert type(ours.error) is OneWord
    for words in (
        "Caught OneWord in DataLoader worker process",
        "Original Traceback (most recent call last)",
        "in __getitem__",
        "original words",
    ):
        assert words in str(ours.error)


def test_a_key_error_is_readable() -> None:
    ours = run(Ours, Case("", lambda: Failing(ERRORS["KeyError"]), lambda _: {"batch_size": 2}), 2)
    assert type(ours.error) is KeyError
    assert "\\n" not in str(ours.error)
    assert len(str(ours.error).splitlines()) > 3


def test_without_workers_the_very_exception_comes_through() -> None:
    error = OneWord("original words")
    with pytest.raises(OneWord) as raised:
        drain(Ours(Failing(lambda: error), batch_size=2))
    assert raised.value is error


@pytest.mark.parametrize(("num_workers", "persistent"), [(0, False), (2, False), (2, True)])
def test_after_an_error_the_loader_can_be_used_again(num_workers: int, persistent: bool) -> None:
    loader = Ours(Failing(ERRORS["own"]), batch_size=2, num_workers=num_workers, persistent_workers=persistent)
    for _ in range(2):
        with pytest.raises(OneWord):
            drain(loader)
    if not persistent:
        loader.dataset.__class__ = Squares
        loader.dataset.n, loader.dataset.scale = 4, 1.0
        assert_same(drain(loader), drain(Torchs(Squares(4), batch_size=2)))


@ours_only
def test_an_exception_of_a_class_that_does_not_pickle() -> None:
    """torch waits for ever. The class may be gone, its name and words may not."""

    class Local(Exception):
        pass

    with pytest.raises(Exception, match="original words") as raised:
        drain(Ours(Failing(lambda: Local("original words")), batch_size=2, num_workers=2))
    assert "Local" in str(raised.value)
    assert "Original Traceback" in str(raised.value)


def open_generator(samples: list[Any]) -> Any:
    return (sample for sample in samples)


def holds_a_lambda(samples: list[Any]) -> Any:
    return {"batch": samples, "what": lambda: 0}


def not_a_leaf(samples: list[Any]) -> Any:
    return torch.ones(2, requires_grad=True) * 2


@ours_only
@pytest.mark.parametrize("collate_fn", [open_generator, holds_a_lambda, not_a_leaf])
def test_a_batch_that_cannot_leave_its_worker(collate_fn: Any) -> None:
    """torch waits for ever."""
    from antifreeze.errors import BatchNotPicklable

    loader = Ours(Squares(), batch_size=2, num_workers=2, collate_fn=collate_fn)
    with pytest.raises(BatchNotPicklable, match=collate_fn.__name__):
        drain(loader)
    loader.close()


NAMED: dict[str, Callable[[int], Any]] = {
    "None": lambda i: None if i == 4242 else torch.ones(2),
    "another shape": lambda i: torch.ones(3 if i == 4242 else 2),
    "another length": lambda i: [1] * (3 if i == 4242 else 2),
    "another type": lambda i: "word" if i == 4242 else 1,
    "an odd object": lambda i: object() if i == 4242 else torch.ones(2),
    "a missing key": lambda i: {"a": 1} if i == 4242 else {"a": 1, "b": 2},
    "fails by itself": lambda i: raise_own() if i == 4242 else i,
    "out of range": lambda i: list(range(10))[i],
}


@ours_only
@pytest.mark.parametrize("num_workers", [0, 2])
@rows([Case(name, lambda sample=sample: Samples(10**4, sample), lambda _: {"batch_size": 3}) for name, sample in NAMED.items()])
def test_the_bad_sample_is_named(case: Case, num_workers: int) -> None:
    """In the message, a note of it, or (Python 3.10 has no notes) its causes; a stream of the same data is not asked, it has no index."""
    dataset = case.make()
    loader = Ours(dataset, num_workers=num_workers, sampler=[1, 2, 4242, 3], **case.kwargs(dataset))
    with pytest.raises(Exception) as raised:  # noqa: PT011, RUF100  # which one is the contract of test_the_place_of_the_failure
        drain(loader)
    said, link = "", raised.value
    while link is not None:
        said += "".join(traceback.format_exception_only(link))
        link = link.__cause__ or link.__context__
    assert "4242" in said
    if case.name == "None":
        assert isinstance(raised.value, TypeError)
    loader.close()


@ours_only
def test_a_batch_larger_than_its_budget() -> None:
    from antifreeze.errors import BatchTooLarge

    dataset = Samples(8, lambda i: torch.zeros(2**20))
    loader = Ours(dataset, batch_size=4, num_workers=2, memory_budget="1MiB")
    with pytest.raises(BatchTooLarge, match="memory_budget"):
        drain(loader)
    dataset.sample = lambda i: torch.zeros(2)
    assert [len(batch) for batch in loader] == [4, 4]


@ours_only
@pytest.mark.parametrize(
    ("kwargs", "name"),
    [
        ({"memory_budget": "much"}, "memory_budget"),
        ({"sample_timeout_s": -1}, "sample_timeout_s"),
        ({"on_bad_sample": "hide"}, "on_bad_sample"),
    ],
)
def test_our_own_arguments_are_checked_at_the_door(kwargs: dict[str, Any], name: str) -> None:
    from antifreeze.errors import OptionError

    with pytest.raises(OptionError, match=name):
        Ours(Squares(), **kwargs)


class FailsAt(Dataset[Any]):
    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> int:
        if index == 5:
            raise OSError("no such sample")
        return index


@ours_only
@pytest.mark.parametrize("num_workers", [2, "auto"])
def test_what_was_handled_where_a_worker_was_forked_is_not_told_with_its_error(num_workers: Any) -> None:
    """By the program around the loop, or by "auto", which had tried the sample in the loop before."""
    loader = Ours(FailsAt(), batch_size=4, num_workers=num_workers)
    try:
        raise KeyError("of the program")
    except KeyError:
        with loader, pytest.raises(OSError, match="no such sample") as raised:
            list(loader)
    assert "During handling" not in str(raised.value)
    assert str(raised.value).count("Traceback") == 1
