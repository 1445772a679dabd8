"""What is read off the byte code of a `__getitem__`; where it does anything but pick rows, nothing is."""

from __future__ import annotations

import builtins
from collections.abc import Callable
from typing import Any

import pytest
import torch

from antifreeze.worker.sample_code import picks_of

_READ: list[tuple[Any, tuple[str, ...]]] = []
_NOT_READ: list[Any] = []


def reads(*attributes: str) -> Callable[[Any], Any]:
    def note(function: Any) -> Any:
        _READ.append((function, attributes))
        return function

    return note


def says_nothing(function: Any) -> Any:
    _NOT_READ.append(function)
    return function


class Picking:
    @reads("x")
    def one_row(self: Any, i: int) -> Any:
        return self.x[i]

    @reads("x", "y")
    def two_rows(self: Any, index: int) -> Any:
        return self.x[index], self.y[index]

    @reads("x", "y")
    def tensors(self: Any, i: int) -> Any:
        return torch.from_numpy(self.x[i]), int(self.y[i])

    @reads("x", "y")
    def a_dict(self: Any, i: int) -> Any:
        return {"x": torch.tensor(self.x[i], dtype=torch.float32), "y": self.y[i]}

    @reads("x")
    def a_dict_of_one(self: Any, i: int) -> Any:
        return {"x": self.x[i]}

    @reads("y", "x")
    def a_key_twice(self: Any, i: int) -> Any:
        return {"x": self.x[i], "y": self.x[i], "x": self.y[i]}  # noqa: F601

    @reads("x", "y", "x")
    def locals_and_nesting(self: Any, i: int) -> Any:
        x = self.x[i]
        y = torch.as_tensor(self.y[i], dtype=torch.long)
        return [x, (y, x)]

    @reads("x", "y")
    def unpacked(self: Any, i: int) -> Any:
        image, label = self.x[i], self.y[i]
        return image.float(), float(label)

    @reads("y", "x", "z")
    def unpacked_crosswise(self: Any, i: int) -> Any:
        a, b, c = self.x[i], self.y[i], self.z[i]
        return b, a, c

    @reads("x", "y")
    def methods(self: Any, i: int) -> Any:
        return {"x": self.x[i].clone(), "y": {"z": self.y[i].item()}}

    @says_nothing
    def another_row(self: Any, i: int) -> Any:
        return self.x[i + 1]

    @says_nothing
    def arithmetic(self: Any, i: int) -> Any:
        return self.x[i] * 2

    @says_nothing
    def a_branch(self: Any, i: int) -> Any:
        if self.first:
            return self.x[i]
        return self.y[i]

    @says_nothing
    def the_index_itself(self: Any, i: int) -> Any:
        return self.x[i], i

    @says_nothing
    def a_net(self: Any, i: int) -> Any:
        try:
            return self.x[i]
        except IndexError:
            return self.x[0]

    @says_nothing
    def a_method_of_its_own(self: Any, i: int) -> Any:
        return self.transform(self.x[i])

    @says_nothing
    def an_effect(self: Any, i: int) -> Any:
        self.last = i
        return self.x[i]

    @says_nothing
    def another_effect(self: Any, i: int) -> Any:
        self.seen[i] = 1
        return self.x[i]

    @says_nothing
    def a_function_of_the_module(self: Any, i: int) -> Any:
        return reads(self.x[i])

    @says_nothing
    def an_effect_without_a_value(self: Any, i: int) -> Any:
        print(self.x[i])
        return self.x[i]

    @says_nothing
    def two_arguments(self: Any, i: int) -> Any:
        return int(self.x[i], self.y[i])

    @says_nothing
    def another_keyword(self: Any, i: int) -> Any:
        return torch.tensor(self.x[i], requires_grad=True)

    @says_nothing
    def a_dtype_of_the_data_set(self: Any, i: int) -> Any:
        return torch.tensor(self.x[i], dtype=self.dtype)

    @says_nothing
    def more_arguments(self: Any, i: int, more: int = 0) -> Any:
        return self.x[i]

    @says_nothing
    def any_arguments(self: Any, i: int, *more: int) -> Any:
        return self.x[i]

    @says_nothing
    async def a_coroutine(self: Any, i: int) -> Any:
        return self.x[i]

    @says_nothing
    def a_generator(self: Any, i: int) -> Any:
        yield self.x[i]

    @says_nothing
    def part_of_a_row(self: Any, i: int) -> Any:
        return self.x[i][0]

    @says_nothing
    def a_row_by_another(self: Any, i: int) -> Any:
        return self.x[self.y[i]]

    @says_nothing
    def nothing_at_all(self: Any, i: int) -> Any:
        return ()

    @says_nothing
    def a_comprehension(self: Any, i: int) -> Any:
        return [part for part in self.x[i]]  # noqa: C416

    @says_nothing
    def a_condition(self: Any, i: int) -> Any:
        assert i >= 0
        return self.x[i]

    @says_nothing
    def a_deleted_local(self: Any, i: int) -> Any:
        x = self.x[i]
        del self.x
        return x

    @says_nothing
    def keys_that_are_rows(self: Any, i: int) -> Any:
        return {self.x[i]: self.y[i]}


def closure() -> Any:
    table = [1]

    def __getitem__(self: Any, i: int) -> Any:
        return table[i]

    return __getitem__


@pytest.mark.parametrize(("function", "attributes"), _READ, ids=[function.__name__ for function, _ in _READ])
def test_read(function: Any, attributes: tuple[str, ...]) -> None:
    picks = picks_of(function)
    assert picks is not None and picks.attributes == attributes
    assert picks.still_means(function)


@pytest.mark.parametrize(
    "function", [*_NOT_READ, closure(), len, None, Picking], ids=lambda function: getattr(function, "__name__", "none")
)
def test_not_read(function: Any) -> None:
    assert picks_of(function) is None


def test_a_name_that_means_something_else_by_now(monkeypatch: pytest.MonkeyPatch) -> None:
    picks = picks_of(Picking.tensors)
    assert picks is not None and dict(picks.names) == {"torch": torch, "int": builtins.int}
    monkeypatch.setitem(globals(), "int", round)
    assert not picks.still_means(Picking.tensors)
    assert picks_of(Picking.tensors) is None


def test_another_function_in_its_place() -> None:
    picks = picks_of(Picking.two_rows)
    assert picks is not None and not picks.still_means(Picking.one_row) and not picks.still_means(None)


def test_what_was_read_is_read_once_and_again_where_a_name_means_something_else(monkeypatch: pytest.MonkeyPatch) -> None:
    picks = picks_of(Picking.tensors)
    assert picks is not None and picks_of(Picking.tensors) is picks
    monkeypatch.setitem(globals(), "int", round)
    assert picks_of(Picking.tensors) is None
    monkeypatch.undo()
    assert picks_of(Picking.tensors) == picks


def test_functions_that_look_alike_are_told_apart() -> None:
    """Their byte code is the same; what its names mean is not."""
    code = "def get(self, i):\n    return float(self.x[i])"
    ours: dict[str, Any] = {}
    theirs: dict[str, Any] = {"float": lambda value: value * 2}
    for names in (ours, theirs):
        exec(code, names)
    for _ in range(2):
        assert picks_of(ours["get"]) is not None
        assert picks_of(theirs["get"]) is None
