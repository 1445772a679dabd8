"""Samples become rows and rows a batch: exactly what torch's default_collate makes of them, or Irregular."""

from __future__ import annotations

import pickle
from collections import OrderedDict, namedtuple
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst
from torch.utils.data import default_collate

from antifreeze.slots.layout import ALIGNMENT, Irregular, LeafKind, RowLayout, learn, transpose, write_column, write_sample

from .same import assert_same

calm = settings(deadline=None, derandomize=True, database=None, max_examples=120, suppress_health_check=list(HealthCheck))


class Pair(NamedTuple):
    left: Any
    right: Any


def through_rows(layout: RowLayout, samples: list[Any]) -> Any:
    """As the workers and the parent do it, by way of one buffer: all samples together, and each by itself."""
    rows = len(samples)
    buffer, other = (bytearray(max(1, layout.offsets(rows)[-1])) for _ in range(2))
    irregular: list[Irregular] = []
    try:
        for leaf, column, parts in zip(layout.leaves, layout.columns(buffer, rows), transpose(layout, samples), strict=True):
            write_column(leaf, column, parts)
    except Irregular as error:
        irregular.append(error)
    try:
        for row, sample in enumerate(samples):
            write_sample(layout, layout.columns(other, rows), row, sample)
    except Irregular as error:
        irregular.append(error)
    assert len(irregular) in (0, 2), irregular
    if irregular:
        raise irregular[0]
    assert buffer == other
    return layout.assemble(layout.columns(buffer, rows))


# --- what default_collate makes of it ---------------------------------------------------------------------------------

DTYPES = ["bool", "uint8", "int8", "int16", "uint16", "int32", "uint32", "int64", "uint64", "float16", "float32", "float64", "complex64"]
shapes = npst.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=3)
arrays_of = st.builds(npst.arrays, st.sampled_from(DTYPES), shapes)


def torch_takes(number: Any) -> bool:
    """Older ones of torch refuse the bools of newer ones of numpy (2.7 those of 2.5, for one)."""
    try:
        torch.tensor(number)
    except TypeError:
        return False
    return True


numbers_of: Any = st.sampled_from(
    [
        st.integers(-(2**63), 2**63 - 1),
        st.floats(),
        st.booleans(),
        st.floats(width=32).map(np.float32),
        st.integers(-128, 127).map(np.int8),
        st.integers(0, 255).map(np.uint8),
        st.floats().map(np.float64),
        *([st.booleans().map(np.bool_)] if torch_takes(np.bool_(True)) else []),
    ]
)
tensors_of = arrays_of.map(lambda values: values.map(torch.from_numpy)) | shapes.map(
    lambda shape: npst.arrays("float32", shape).map(lambda values: torch.from_numpy(values).to(torch.bfloat16))
)


def strided(values: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    """The same values, in memory that is not contiguous."""
    return values.map(lambda tensor: torch.stack([tensor, tensor], -1)[..., 0])


leaves_of: Any = arrays_of | numbers_of | tensors_of | tensors_of.map(strided)
keys = st.sampled_from(["image", "label", 3, ("a", 1)])
samples_of: Any = st.recursive(
    leaves_of,
    lambda parts: st.one_of(
        st.lists(parts, min_size=1, max_size=3).map(lambda parts: st.tuples(*parts)),
        st.lists(parts, min_size=1, max_size=3).map(lambda parts: st.tuples(*parts).map(list)),
        st.dictionaries(keys, parts, min_size=1, max_size=3).map(st.fixed_dictionaries),
        st.tuples(parts, parts).map(lambda parts: st.builds(Pair, *parts)),
    ),
    max_leaves=5,
)


@calm
@given(st.data(), samples_of, st.integers(1, 4))
def test_rows_assemble_to_what_default_collate_makes(data: st.DataObject, alike: st.SearchStrategy[Any], rows: int) -> None:
    samples = [data.draw(alike) for _ in range(rows)]
    layout = learn(samples[0])
    assert layout is not None
    assert_same(through_rows(layout, samples), default_collate(samples))
    assert pickle.loads(pickle.dumps(layout)).key == layout.key


@calm
@given(samples_of.flatmap(lambda alike: alike), st.integers(0, 5))
def test_columns_are_aligned_and_do_not_overlap(sample: Any, rows: int) -> None:
    layout = learn(sample)
    assert layout is not None
    offsets = layout.offsets(rows)
    for leaf, offset, after in zip(layout.leaves, offsets[:-1], offsets[1:], strict=True):
        assert offset % ALIGNMENT == 0
        assert offset + leaf.row_bytes * rows <= after
    assert layout.row_bytes == sum(leaf.row_bytes for leaf in layout.leaves)


def test_rows_are_written_in_parts_by_those_who_never_spoke() -> None:
    samples = [(torch.full((2, 3), float(row)), row, {"x": np.full(4, row)}) for row in range(5)]
    layouts = [learn(samples[0]), learn(samples[3])]
    assert layouts[0] == layouts[1]
    buffer = bytearray(layouts[0].offsets(5)[-1])
    for layout, part in zip(layouts, (range(3), range(3, 5)), strict=True):
        views = zip(layout.leaves, layout.columns(buffer, 5), transpose(layout, [samples[row] for row in part]), strict=True)
        for leaf, into, parts in views:
            write_column(leaf, into[part.start : part.stop], parts)
    assert_same(layouts[0].assemble(layouts[0].columns(buffer, 5)), default_collate(samples))


def test_columns_lie_in_their_buffer_whatever_the_default_device_is() -> None:
    layout = learn({"x": torch.ones(3, dtype=torch.bfloat16), "none": torch.empty(0), "y": 1})
    buffer = np.zeros(layout.offsets(2)[-1], dtype=np.uint8)
    with torch.device("meta"):
        columns = layout.columns(buffer, 2)
    assert {column.device.type for column in columns} == {"cpu"}


def test_a_memory_mapped_array_is_an_array(tmp_path: Any) -> None:
    sample = np.memmap(tmp_path / "values", dtype="float32", mode="w+", shape=(3,))
    layout = learn(np.zeros(3, dtype="float32"))
    assert layout == learn(sample)
    assert_same(through_rows(layout, [sample, np.ones(3, dtype="float32")]), torch.tensor([[0.0] * 3, [1.0] * 3]))
    del sample


# --- what has no rows -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "sample",
    [
        "text",
        b"bytes",
        None,
        object(),
        (),
        [],
        {},
        (1, "text"),
        {"a": [1, {"b": None}]},
        OrderedDict(a=1),
        torch.zeros(2, requires_grad=True),
        torch.eye(2).to_sparse(),
        torch.nn.Parameter(torch.zeros(1)),
        np.array(["text"]),
        np.array([1, 2], dtype=">i4"),
        np.array([(1, 2)], dtype=[("a", int), ("b", int)]),
        np.ma.masked_array([1, 2], [0, 1]),
        np.datetime64("2026-01-01"),
        np.longdouble(1),
        2**70,
        1j,
    ],
    ids=lambda sample: f"{type(sample).__name__}-{str(sample)[:20]!r}",
)
def test_what_has_no_rows_is_left_to_torch(sample: Any) -> None:
    assert learn(sample) is None


def test_a_type_whose_collate_the_user_registered_has_no_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    from torch.utils.data._utils.collate import default_collate_fn_map

    assert learn((1, torch.zeros(2))) is not None
    monkeypatch.setitem(default_collate_fn_map, torch.Tensor, lambda batch, *, collate_fn_map=None: "mine")
    assert learn((1, torch.zeros(2))) is None
    assert learn((1, 2)) is not None


def test_a_layout_that_was_learned_can_be_told_to_the_parent() -> None:
    """A layout crosses as a pickle; a class that was made inside of a function does not, so there should be none."""
    local = namedtuple("local", "a b")
    layout = learn(local(1, 2))
    assert layout is None or pickle.loads(pickle.dumps(layout)) == layout


# --- Irregular --------------------------------------------------------------------------------------------------------

FIRST = (torch.zeros(2), np.zeros(2, dtype="int32"), 1, {"a": 1.0, "b": [True]})


def with_part(at: int, part: Any) -> Any:
    return (*FIRST[:at], part, *FIRST[at + 1 :])


@pytest.mark.parametrize(
    ("sample", "says"),
    [
        (with_part(0, torch.zeros(2, dtype=torch.float64)), "not a tensor float32"),
        (with_part(0, torch.zeros(3)), "shape|size"),
        (with_part(0, torch.zeros(2, 1)), "shape|size"),
        (with_part(0, torch.zeros(1)), "shape|size"),  # nothing is broadcast
        (with_part(0, torch.zeros(2, requires_grad=True)), "grad"),
        (with_part(0, torch.zeros(2).to_sparse()), "."),
        (with_part(0, torch.nn.Parameter(torch.zeros(2))), "requires grad|not a tensor"),
        (with_part(0, np.zeros(2, dtype="float32")), "expected Tensor|not a tensor"),
        (with_part(0, [0.0, 0.0]), "expected Tensor|not a tensor"),
        (with_part(0, None), "expected Tensor|not a tensor"),
        (with_part(1, np.zeros(2, dtype="int64")), "not a array int32"),
        (with_part(1, np.zeros(1, dtype="int32")), "has not shape"),
        (with_part(1, torch.zeros(2, dtype=torch.int32)), "not a array"),
        (with_part(1, [0, 0]), "not a array"),
        (with_part(2, 1.0), "not a int"),
        (with_part(2, True), "not a int"),
        (with_part(2, np.int64(1)), "not a int"),
        (with_part(2, 2**63), "."),
        (with_part(3, {"a": 1.0}), "has not 2 parts"),
        (with_part(3, {"a": 1.0, "b": [True], "c": 1}), "has not 2 parts"),
        (with_part(3, {"a": 1.0, "c": [True]}), "no key 'b'"),
        (with_part(3, {"a": 1.0, "b": (True,)}), "not a list"),
        (with_part(3, {"a": 1.0, "b": [True, True]}), "has not 1 parts"),
        (with_part(3, OrderedDict(a=1.0, b=[True])), "not a dict"),
        (list(FIRST), "not a tuple"),
        (Pair(*FIRST[:2]), "not a tuple"),
        (FIRST[:3], "has not 4 parts"),
        (5, "not a tuple"),
        (None, "not a tuple"),
    ],
    ids=lambda value: str(value)[:40],
)
def test_a_sample_that_differs_is_irregular(sample: Any, says: str) -> None:
    layout = learn(FIRST)
    assert layout is not None
    for samples in ([sample], [FIRST, sample]):
        with pytest.raises(Irregular, match=says):
            through_rows(layout, samples)


@pytest.mark.parametrize("make", [lambda: torch.zeros(2), lambda: np.zeros(2), lambda: 1, lambda: np.float32(1)])
def test_the_regular_ones_are_not(make: Callable[[], Any]) -> None:
    layout = learn(make())
    assert layout is not None
    assert_same(through_rows(layout, [make(), make()]), default_collate([make(), make()]))


def test_a_leaf_describes_itself() -> None:
    layout = learn((torch.zeros(2, 3), np.zeros(4, dtype="int16"), 7))
    assert layout is not None
    assert list(map(str, layout.leaves)) == ["tensor float32[2, 3]", "array int16[4]", "int"]
    assert [leaf.kind for leaf in layout.leaves] == [LeafKind.TENSOR, LeafKind.ARRAY, LeafKind.NUMBER]
    assert [leaf.row_bytes for leaf in layout.leaves] == [24, 8, 8]


def test_layouts_that_differ_have_keys_that_differ() -> None:
    numbers = [1, 1.0, True, np.float32(1)]
    leaves = [torch.zeros(2), torch.zeros(2, 1), torch.zeros(2, dtype=torch.int32), np.zeros(2, "f4")]
    trees = [(1,), [1], {"a": 1}, {"b": 1}, (1, 1), ((1, 1),), Pair(1, 1)]
    samples = [*numbers, *leaves, *trees]
    layouts = [learn(sample) for sample in samples]
    assert len({layout.key for layout in layouts if layout is not None}) == len(samples)
