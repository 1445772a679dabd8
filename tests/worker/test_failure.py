"""An exception always arrives: by its own type where that can be had, with the worker's traceback in any case."""

from __future__ import annotations

import pickle
from typing import Any

import pytest

from antifreeze.errors import LoadingError, SampleTimeout
from antifreeze.worker.failure import Failure


class TwoArguments(Exception):
    def __init__(self, code: int, text: str) -> None:
        super().__init__(code, text)


class WithMessage(Exception):
    """As torch treats it: a class with a `message` is made with message=…"""

    message = "a class attribute"

    def __init__(self, *, message: str) -> None:
        super().__init__(message)


class Stubborn(Exception):
    def __init__(self, *arguments: Any) -> None:
        if arguments and "Traceback" in str(arguments[0]):
            raise RuntimeError("not again")
        super().__init__(*arguments)


class Mute(Exception):
    def __str__(self) -> str:
        raise ValueError("no text")


class Ending(StopIteration):
    pass


class Keyed(KeyError):
    pass


def failure_of(error: BaseException, **where: Any) -> Failure:
    """As it is after its way through a pipe."""
    try:
        raise error
    except BaseException as raised:
        return pickle.loads(pickle.dumps(Failure.of(raised, **{"stage": "__getitem__", "worker": 3} | where)))


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (ValueError("bad value"), ValueError),
        (RuntimeError(), RuntimeError),
        (OSError("disk"), OSError),
        (FileNotFoundError(2, "No such file", "x.jpg"), FileNotFoundError),
        (KeyError("key"), KeyError),
        (Keyed("key"), Keyed),
        (AssertionError("a\nb"), AssertionError),
        (UnicodeDecodeError("utf8", b"x", 0, 1, "odd"), LoadingError),  # cannot be made from a text alone
        (TwoArguments(4, "text"), LoadingError),
        (Stubborn("once"), LoadingError),
        (WithMessage(message="text"), WithMessage),
        (Mute(), Mute),
        (StopIteration(3), LoadingError),  # would end the user's loop silently
        (Ending(), LoadingError),
        (pickle.PicklingError("x"), pickle.PicklingError),
    ],
    ids=lambda value: value.__name__ if isinstance(value, type) else repr(value)[:30] if not isinstance(value, Mute) else "Mute",
)
def test_it_arrives_as_what_it_was_where_that_can_be_made_again(error: BaseException, kind: type[BaseException]) -> None:
    arrived = failure_of(error, index=17, row=2).to_exception()
    assert type(arrived) is kind
    text = arrived.args[0] if not isinstance(arrived, Mute) else Exception.__str__(arrived)
    assert text.startswith(f"Caught {type(error).__name__} in DataLoader worker process 3.\nOriginal ")
    assert "Traceback (most recent call last)" in text
    assert "in failure_of" in text
    assert text.endswith("antifreeze: this was sample 17, row 2 of its batch, in __getitem__")


def test_a_key_error_can_be_read() -> None:
    """str() of a KeyError is the repr of its argument, where every line break would be a backslash and an n."""
    text = str(failure_of(KeyError("label")).to_exception())
    assert "KeyError: 'label'" in text.splitlines()
    assert "\\n" not in text


def test_a_class_made_inside_of_a_function_is_found_again_in_a_forked_workers_parent() -> None:
    class Local(Exception):
        pass

    failure = failure_of(Local("here"))
    assert failure.type_pickle is None
    assert type(failure.to_exception()) is Local


def test_of_two_classes_that_look_alike_none_is_taken() -> None:
    def make() -> type[Exception]:
        class Twin(Exception):
            pass

        return Twin

    first, second = make(), make()
    assert first is not second
    arrived = failure_of(first("which?")).to_exception()
    assert type(arrived) is LoadingError
    assert "Twin: which?" in str(arrived)


def test_a_class_that_the_parent_does_not_have_arrives_as_a_loading_error() -> None:
    known = failure_of(ValueError("text"))
    unknown = Failure(**vars(known) | {"type_pickle": pickle.dumps(ValueError).replace(b"ValueError", b"NoSuchName")})
    arrived = unknown.to_exception()
    assert type(arrived) is LoadingError
    assert "ValueError: text" in str(arrived)


def test_the_cause_is_part_of_the_text() -> None:
    try:
        try:
            raise OSError("disk")
        except OSError as disk:
            raise ValueError("decode") from disk
    except ValueError as error:
        failure = Failure.of(error, stage="__getitem__", worker=0)
    text = str(failure.to_exception())
    assert text.index("OSError: disk") < text.index("direct cause") < text.index("ValueError: decode")


@pytest.mark.parametrize(
    ("where", "says"),
    [
        ({"index": 17, "row": 2}, "this was sample 17, row 2 of its batch, in __getitem__"),
        ({"index": "a.jpg"}, "this was sample 'a.jpg', in __getitem__"),
        ({"stage": "collate"}, "this was in collate"),
        ({"stage": "collate", "explanation": "samples [1, 2]"}, "this was in collate\nantifreeze: samples [1, 2]"),
    ],
)
def test_it_says_where_it_was(where: dict[str, Any], says: str) -> None:
    assert str(failure_of(ValueError("x"), **where).to_exception()).endswith(f"antifreeze: {says}")


def test_without_workers_there_is_no_worker_in_the_text() -> None:
    assert str(failure_of(ValueError("x"), worker=None).to_exception()).startswith("Caught ValueError.\nOriginal Traceback")


def test_what_happened_to_a_worker_is_told_in_our_own_words() -> None:
    failure = Failure.without_traceback(
        SampleTimeout, "sample 5 took too long\n  more", stage="__getitem__", worker=1, index=5, row=0, position=9
    )
    arrived = failure.to_exception()
    assert (type(arrived), str(arrived)) == (SampleTimeout, "sample 5 took too long\n  more")
    assert failure.describe() == "sample 5: SampleTimeout: sample 5 took too long (in __getitem__)"


@pytest.mark.parametrize(
    ("error", "where", "says"),
    [
        (ValueError("one\ntwo"), {"index": 4}, "sample 4: ValueError: one (in __getitem__)"),
        (ValueError("one"), {"stage": "collate"}, "a batch: ValueError: one (in collate)"),
        (Mute(), {"index": "k"}, "sample 'k': Mute: <its text cannot be shown> (in __getitem__)"),
    ],
    ids=["sample", "batch", "mute"],
)
def test_it_describes_itself_in_one_line(error: BaseException, where: dict[str, Any], says: str) -> None:
    assert failure_of(error, **where).describe() == says


def test_what_is_known_of_the_sample_travels_with_it() -> None:
    failure = failure_of(ValueError("x"), index=(1, "a"), row=3, position=40)
    assert (failure.index, failure.row, failure.position, failure.worker, failure.type_name) == ("(1, 'a')", 3, 40, 3, "ValueError")
