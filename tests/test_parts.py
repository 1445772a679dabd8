"""What an object holds: by name, and each once."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from antifreeze.parts import Reach, named_parts


@pytest.mark.parametrize(
    ("value", "parts"),
    [
        ({"a": 1, 2: 3}, [("['a']", 1), ("[2]", 3)]),
        ([5, 6], [("[0]", 5), ("[1]", 6)]),
        ((5,), [("[0]", 5)]),
        ({5}, []),
        (frozenset({5}), []),
        (SimpleNamespace(reader=7), [(".reader", 7)]),
        ("text", []),
        (8, []),
    ],
)
def test_parts_have_the_name_that_leads_to_them(value: Any, parts: list[tuple[str, Any]]) -> None:
    assert named_parts(value) == parts


@pytest.mark.parametrize("value", [range(9), dict.fromkeys(range(9)), SimpleNamespace(**{f"a{number}": 0 for number in range(9)})])
def test_the_first_parts_are_enough(value: Any) -> None:
    value = list(value) if isinstance(value, range) else value
    assert named_parts(value, most=2) == named_parts(value)[:2]


def reached(root: Any, leaves: tuple[type, ...] = (int, str), most: int = 100) -> list[Any]:
    reach = Reach(root, leaves, most)
    for value in reach.found:
        reach.add([part for _, part in named_parts(value)])
    return reach.found


def test_the_nearest_come_first_and_each_once() -> None:
    deep: list[Any] = [1, "leaf"]
    near: list[Any] = [deep, deep]
    root: list[Any] = [near, (near, deep)]
    deep.append(root)
    found = reached(root)
    assert [id(value) for value in found] == [id(value) for value in (root, near, root[1], deep)]


def test_leaves_of_a_kind_of_their_own_are_leaves() -> None:
    class Text(str):
        __slots__ = ()

    assert reached([Text("a"), True, 2.5]) == [[Text("a"), True, 2.5], 2.5]


def test_no_more_are_reached_than_shall_be() -> None:
    root = [[number] for number in range(9)]
    assert reached(root, most=4) == [root, *root[:3]]
