"""Contracts by property: whatever the arguments, the structure of a sample, or the plan, ours gives what torch gives."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from hypothesis import HealthCheck, Phase, example, given, settings
from hypothesis import strategies as st

from .contract import REPEATS, Case, Ours, Torchs, assert_same_outcome, run
from .datasets import Pair, Samples, Sharded, Squares

pytestmark = REPEATS

Make = Callable[[int], Any]
QUIET = {"deadline": None, "derandomize": True, "database": None, "suppress_health_check": list(HealthCheck)}
in_parent = settings(max_examples=150, **QUIET)
in_workers = settings(max_examples=8, phases=[Phase.explicit, Phase.generate], **QUIET)  # shrinking would start thousands of workers


def number(i: int, salt: int) -> int:
    return (i * 2654435761 + salt * 40503) % 251


TENSOR_DTYPES = [
    torch.float32,
    torch.float64,
    torch.float16,
    torch.bfloat16,
    torch.int64,
    torch.int32,
    torch.uint8,
    torch.bool,
    torch.complex64,
]
NUMPY_DTYPES = ["float32", "float64", "float16", "int64", "int16", "uint8", "bool", "complex128"]
shapes = st.lists(st.integers(0, 3), max_size=3).map(tuple)
salts = st.integers(0, 9)


def tensor_leaf(dtype: torch.dtype, shape: tuple[int, ...], salt: int) -> Make:
    return lambda i: (torch.arange(int(np.prod(shape)), dtype=torch.float64) + number(i, salt)).to(dtype).reshape(shape)


def numpy_leaf(dtype: str, shape: tuple[int, ...], salt: int) -> Make:
    return lambda i: (np.arange(int(np.prod(shape))) + number(i, salt)).astype(dtype).reshape(shape)


def python_leaf(kind: type, salt: int) -> Make:
    return lambda i: kind(number(i, salt))


leaves = st.one_of(
    st.builds(tensor_leaf, st.sampled_from(TENSOR_DTYPES), shapes, salts),
    st.builds(numpy_leaf, st.sampled_from(NUMPY_DTYPES), shapes, salts),
    st.builds(python_leaf, st.sampled_from([int, float, bool, str, np.float32, np.int64, np.uint8, np.bool_]), salts),
)


def sequence_of(kind: Callable[[Any], Any], parts: list[Make]) -> Make:
    return lambda i: kind([part(i) for part in parts])


def mapping_of(kind: Callable[[Any], Any], parts: dict[str, Make]) -> Make:
    return lambda i: kind({key: part(i) for key, part in parts.items()})


def pair_of(left: Make, right: Make) -> Make:
    return lambda i: Pair(left(i), right(i))


structures = st.recursive(
    leaves,
    lambda inner: st.one_of(
        st.builds(sequence_of, st.sampled_from([tuple, list]), st.lists(inner, max_size=3)),
        st.builds(mapping_of, st.sampled_from([dict, OrderedDict]), st.dictionaries(st.sampled_from("abcd"), inner, max_size=3)),
        st.builds(pair_of, inner, inner),
    ),
    max_leaves=5,
)


def check_structure(make: Make, n: int, size: int, num_workers: int) -> None:
    case = Case("", lambda: Samples(n, make), lambda _: {"batch_size": size})
    assert_same_outcome(run(Ours, case, num_workers), run(Torchs, case, num_workers))


@in_parent
@given(structures, st.integers(0, 9), st.integers(1, 4))
def test_any_structure(make: Make, n: int, size: int) -> None:
    check_structure(make, n, size, num_workers=0)


@in_workers
@given(structures, st.integers(1, 9), st.integers(1, 4))
def test_any_structure_in_workers(make: Make, n: int, size: int) -> None:
    check_structure(make, n, size, num_workers=2)


@st.composite
def arguments(draw: st.DrawFn) -> dict[str, Any]:
    given: dict[str, Any] = {"batch_size": draw(st.one_of(st.none(), st.integers(1, 12)))}
    given["drop_last"] = given["batch_size"] is not None and draw(st.booleans())
    given["shuffle"] = draw(st.booleans())
    if draw(st.booleans()):
        given["generator"] = draw(st.integers(0, 2**32))
    return given


def check_arguments(given: dict[str, Any], n: int, num_workers: int, **more: Any) -> None:
    seed = given.pop("generator", None)

    def fresh(_: Any) -> dict[str, Any]:
        return {**given, **more, **({} if seed is None else {"generator": torch.Generator().manual_seed(seed)})}

    case = Case("", lambda: Squares(n), fresh, epochs=2)
    assert_same_outcome(run(Ours, case, num_workers), run(Torchs, case, num_workers))


@in_parent
@given(arguments(), st.integers(0, 40))
@example({"batch_size": 4, "drop_last": True, "shuffle": True}, 0)
def test_any_arguments(given: dict[str, Any], n: int) -> None:
    check_arguments(given, n, 0)


@in_workers
@given(arguments(), st.integers(0, 40), st.integers(1, 3), st.integers(1, 4), st.booleans())
def test_any_arguments_in_workers(given: dict[str, Any], n: int, num_workers: int, ahead: int, persistent: bool) -> None:
    check_arguments(given, n, num_workers, prefetch_factor=ahead, persistent_workers=persistent)


plans = st.lists(st.lists(st.integers(-10, 9), min_size=1, max_size=6), max_size=8)


@in_parent
@given(plans)
def test_any_plan(plan: list[list[int]]) -> None:
    case = Case("", lambda: list(range(10)), lambda _: {"batch_sampler": plan})
    assert_same_outcome(run(Ours, case, 0), run(Torchs, case, 0))


@in_workers
@given(plans, st.integers(1, 3))
def test_any_plan_in_workers(plan: list[list[int]], num_workers: int) -> None:
    case = Case("", lambda: list(range(10)), lambda _: {"batch_sampler": plan}, epochs=2)
    assert_same_outcome(run(Ours, case, num_workers), run(Torchs, case, num_workers))


@in_workers
@given(st.integers(0, 20), st.one_of(st.none(), st.integers(1, 5)), st.integers(1, 3), st.integers(1, 3))
def test_any_stream_in_workers(n: int, size: int | None, num_workers: int, ahead: int) -> None:
    case = Case("", lambda: Sharded(n), lambda _: {"batch_size": size, "prefetch_factor": ahead}, epochs=2)
    assert_same_outcome(run(Ours, case, num_workers), run(Torchs, case, num_workers))
