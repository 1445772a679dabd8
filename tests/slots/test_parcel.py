"""A batch of any kind goes into a slot and comes out the same, sharing what it shared, in no more bytes than it needs."""

from __future__ import annotations

import pickle
import threading
import weakref
from collections import OrderedDict
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst

from antifreeze.slots.layout import ALIGNMENT
from antifreeze.slots.parcel import pack, pack_any, unpack
from antifreeze.slots.plain import pack_plain

from .same import assert_same, bits

calm = settings(deadline=None, derandomize=True, database=None, max_examples=100, suppress_health_check=list(HealthCheck))


class Pair(NamedTuple):
    left: Any
    right: Any


class Crop(torch.Tensor):
    """One of a user's own class."""

    label = ""


def through_parcel(batch: Any, room: int = 0) -> Any:
    """Through the parcel of any batch, and through the plain one where the batch has one: both give the same."""
    results = []
    for parcel in (pack_any(batch), pack_plain(batch)):
        if parcel is not None:
            owner = np.full(parcel.size_bytes + room, 0xAB, dtype=np.uint8)  # a slot is not clean, and often larger
            parcel.write(owner)
            results.append(unpack(owner))
    if len(results) > 1:
        assert_same(results[1], results[0])
    return results[-1]


# --- tensors over storages ----------------------------------------------------------------------------------------------

DTYPES = [
    torch.float32,
    torch.float64,
    torch.float16,
    torch.bfloat16,
    torch.complex64,
    torch.complex128,
    torch.bool,
    torch.uint8,
    torch.int8,
    torch.int16,
    torch.uint16,
    torch.int32,
    torch.uint32,
    torch.int64,
    torch.uint64,
    torch.float8_e4m3fn,
]
STORAGE_BYTES = 1024


def new_storage(salt: int) -> torch.Tensor:
    return torch.tensor([(at * 37 + salt) % 2 for at in range(STORAGE_BYTES)], dtype=torch.uint8)  # 0 and 1 are values of every dtype


shapes = st.lists(st.integers(0, 3), max_size=3)


@st.composite
def any_strides(draw: Any, shape: list[int]) -> list[int]:
    return draw(st.lists(st.integers(0, 4), min_size=len(shape), max_size=len(shape)))


@st.composite
def dense_strides(draw: Any, shape: list[int]) -> list[int]:
    """In any order of the dimensions, with at most every second value left out: those are kept."""
    strides, step = [0] * len(shape), draw(st.integers(1, 2))
    for dimension in draw(st.permutations(range(len(shape)))):
        strides[dimension], step = step, step * shape[dimension]
    return strides


@st.composite
def views(draw: Any, storages: list[torch.Tensor], strides: Any, shapes: Any = shapes) -> torch.Tensor:
    dtype, shape = draw(st.sampled_from(DTYPES)), draw(shapes)
    whole = torch.empty(0, dtype=dtype).set_(draw(st.sampled_from(storages)).untyped_storage())
    return whole.as_strided(shape, draw(strides(shape)), draw(st.integers(0, 7)))


@calm
@given(st.data(), st.integers(1, 2), st.integers(1, 5))
def test_tensors_over_shared_storages_come_out_the_same(data: st.DataObject, storages: int, count: int) -> None:
    pool = [new_storage(salt) for salt in range(storages)]
    batch = [data.draw(views(pool, any_strides)) for _ in range(count)]
    back = through_parcel(batch)
    assert_same(back, batch)
    for before, after in zip(batch, back, strict=True):
        span = 1 + sum((size - 1) * step for size, step in zip(before.shape, before.stride(), strict=True))
        if before.numel() == 0 or span <= 2 * before.numel():
            assert after.stride() == before.stride()


@calm
@given(st.data(), st.integers(2, 4))
def test_what_overlapped_still_does(data: st.DataObject, count: int) -> None:
    """A change through one is seen through the others exactly as before."""
    pool = [new_storage(0), new_storage(1)]
    batch = [data.draw(views(pool, dense_strides, st.lists(st.integers(1, 3), max_size=3))) for _ in range(count)]
    back = through_parcel(batch)
    for before, after in zip(batch, back, strict=True):
        for tensor in (before, after):
            first = tensor[(0,) * tensor.dim()]
            first.copy_(torch.zeros_like(first) if bits(first) != bytes(first.element_size()) else torch.ones(()))
        assert_same(back, batch)


def test_separate_tensors_stay_separate() -> None:
    left, right = through_parcel([torch.zeros(3), torch.zeros(3)])
    left += 1
    assert right.tolist() == [0.0, 0.0, 0.0]


def test_an_empty_tensor_may_begin_behind_the_end_of_its_storage() -> None:
    empty = torch.from_numpy(np.zeros(2)).as_strided((0,), (1,), 7)
    assert empty.storage_offset() * 8 > empty.untyped_storage().nbytes()
    assert through_parcel([empty, 7, torch.ones(3)])[0].shape == (0,)


def test_the_same_object_twice_is_one_object() -> None:
    tensor, array = torch.arange(3), np.arange(3)
    back = through_parcel({"a": tensor, "b": [tensor, array], "c": array})
    assert back["a"] is back["b"][0]
    assert back["c"] is back["b"][1]


# --- anything else --------------------------------------------------------------------------------------------------------

arrays: Any = npst.arrays(
    st.sampled_from(["bool", "uint8", "uint16", "int64", "float16", "float64", "complex64", "U3", "S2", "M8[s]", ">i4"]),
    npst.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=3),
)
odd_arrays = arrays.map(np.asfortranarray) | arrays.map(lambda array: array[..., ::2] if array.ndim else array)
plain: Any = st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.binary() | st.complex_numbers(allow_nan=False)
tensors = arrays.filter(lambda array: array.dtype.kind in "bifc" and array.dtype.isnative).map(lambda array: torch.from_numpy(array.copy()))
trees: Any = st.recursive(
    plain | arrays | odd_arrays | tensors,
    lambda parts: st.one_of(
        st.lists(parts, max_size=3),
        st.lists(parts, max_size=3).map(tuple),
        st.dictionaries(st.text(max_size=3) | st.integers(), parts, max_size=3),
        st.dictionaries(st.text(max_size=3), parts, max_size=2).map(OrderedDict),
        st.builds(Pair, parts, parts),
    ),
    max_leaves=8,
)


@calm
@given(trees, st.integers(0, 200))
def test_any_tree_comes_out_the_same(tree: Any, room: int) -> None:
    assert_same(through_parcel(tree, room), tree)


ODD = {
    "sparse": lambda: torch.eye(3).to_sparse(),
    "sparse rows": lambda: torch.eye(3).to_sparse_csr(),
    "conjugate": lambda: torch.tensor([1 + 2j, 3j]).conj(),
    "negative": lambda: torch.tensor([1 + 2j]).conj().imag,
    "parameter": lambda: torch.nn.Parameter(torch.ones(2)),
    "quantized": lambda: torch.quantize_per_tensor(torch.ones(2), 0.5, 0, torch.qint8),
    "size": lambda: torch.Size([1, 2]),
    "device": lambda: torch.device("cpu"),
    "dtype": lambda: torch.float32,
    "range": lambda: range(3),
    "set": lambda: {1, 2},
    "numpy number": lambda: np.float32(1.5),
    "bytearray": lambda: bytearray(b"abc"),
}


@pytest.mark.parametrize("kind", ODD)
@pytest.mark.filterwarnings("ignore")
def test_what_is_no_plain_dense_tensor_goes_the_way_pickle_knows(kind: str) -> None:
    odd = ODD[kind]()
    back = through_parcel([odd, 1])[0]
    assert type(back) is type(odd)
    if isinstance(odd, torch.Tensor):
        assert torch.equal(_dense(back), _dense(odd))
        assert back.requires_grad == odd.requires_grad
    else:
        assert back == odd


def _dense(tensor: torch.Tensor) -> torch.Tensor:
    if tensor.is_quantized:
        return tensor.dequantize()
    return tensor.detach().resolve_conj().resolve_neg() if tensor.layout is torch.strided else tensor.to_dense()


def test_a_gradient_is_wanted_of_the_same_leaves() -> None:
    back = through_parcel([torch.ones(2, requires_grad=True), torch.ones(2)])
    assert [tensor.requires_grad for tensor in back] == [True, False]
    assert all(tensor.is_leaf for tensor in back)


def test_what_is_part_of_a_graph_cannot_leave() -> None:
    with pytest.raises(RuntimeError, match="non-leaf tensor which requires_grad"):
        pack([torch.ones(2, requires_grad=True) * 2])


STUBBORN = [lambda: None, threading.Lock(), (value for value in ())]


@pytest.mark.parametrize("stubborn", STUBBORN, ids=["lambda", "lock", "generator"])
def test_what_does_not_pickle_raises_where_it_is_packed(stubborn: Any) -> None:
    with pytest.raises((TypeError, AttributeError, pickle.PicklingError), match="pickle"):
        pack({"batch": [torch.ones(2), stubborn]})


# --- bytes ----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "view",
    [
        lambda huge: huge[5:9],
        lambda huge: huge[:: huge.numel() // 4],
        lambda huge: huge.view(2, -1)[:, :3],
        lambda huge: [huge[:4], huge[-4:]],
        lambda huge: huge[:0],
        lambda huge: huge[0].expand(huge.numel()),
        lambda huge: [huge[5:9].as_subclass(Crop), huge[7:9]],
    ],
    ids=["slice", "step", "columns", "both ends", "nothing", "expanded", "of a user's class"],
)
def test_a_small_view_of_a_huge_storage_is_small(view: Any) -> None:
    huge = torch.zeros(1 << 22)
    batch = view(huge)
    parcel = pack(batch)
    assert parcel.size_bytes < 4096
    owner = np.zeros(parcel.size_bytes, dtype=np.uint8)
    parcel.write(owner)
    assert_same(unpack(owner), batch)


@pytest.mark.parametrize("wants_grad", [False, True])
def test_a_tensor_of_a_users_class_keeps_what_it_has(wants_grad: bool) -> None:
    crop = torch.arange(9.0)[2:8:2].as_subclass(Crop).requires_grad_(wants_grad)
    crop.label = "sheep"
    back = through_parcel([crop])[0]
    as_pickled = pickle.loads(pickle.dumps(crop))
    for one in (back, as_pickled):
        assert (type(one), one.label, one.requires_grad, one.tolist()) == (Crop, "sheep", wants_grad, [2.0, 4.0, 6.0])


def test_values_are_not_copied_into_the_pickle() -> None:
    batch = [torch.zeros(1 << 16), np.zeros(1 << 16)]
    parcel = pack(batch)
    assert len(parcel.parts[0]) + len(parcel.parts[1]) < 2048
    assert parcel.size_bytes < sum(part.nbytes for part in batch) + 4096


@calm
@given(st.lists(st.integers(0, 200), min_size=1, max_size=6))
def test_parts_are_aligned(sizes: list[int]) -> None:
    parcel = pack_any([torch.zeros(size, dtype=torch.uint8) for size in sizes])
    assert all(offset % ALIGNMENT == 0 for offset in parcel.offsets)
    ends = [offset + len(part) for offset, part in zip(parcel.offsets, parcel.parts, strict=True)]
    assert all(end <= begin for end, begin in zip(ends, parcel.offsets[1:], strict=False))
    assert parcel.size_bytes == ends[-1]


class Marked(torch.Tensor):
    pass


def test_tensors_of_a_subclass_have_their_bytes_beside_the_pickle_and_share_what_they_shared() -> None:
    marked = torch.arange(10_000.0).as_subclass(Marked)
    parcel = pack_any([marked, marked[10:]])
    assert len(parcel.parts[0]) < 2_000 and parcel.size_bytes < 45_000
    whole, tail = through_parcel([marked, marked[10:]])
    assert type(whole) is type(tail) is Marked and torch.equal(whole, marked)
    whole.fill_(9)
    assert torch.equal(tail, torch.full((9_990,), 9.0))


@pytest.mark.filterwarnings("ignore:TypedStorage is deprecated", "ignore:torch.quantize_per_tensor")
def test_storages_with_a_dtype() -> None:
    storage, quantized = through_parcel([torch.arange(3.0).storage(), torch.quantize_per_tensor(torch.arange(3.0), 0.5, 1, torch.qint8)])
    assert storage.dtype is torch.float32 and storage.tolist() == [0.0, 1.0, 2.0]
    assert quantized.is_quantized and quantized.dequantize().tolist() == [0.0, 1.0, 2.0]


PLAIN = [
    torch.ones(3),
    (torch.ones(3), torch.zeros(2, 0, dtype=torch.int64)),
    {"x": torch.ones(2, 3, dtype=torch.bool), 5: [torch.ones(()), (torch.ones(1),)]},
]
NOT_PLAIN = {
    "a string": [torch.ones(2), "x"],
    "a number": {"x": torch.ones(2), "n": 5},
    "an array": np.ones(2),
    "a named tuple": Pair(torch.ones(1), torch.ones(1)),
    "an ordered dict": OrderedDict(x=torch.ones(1)),
    "strides": torch.ones(3, 4).t(),
    "strides of one": torch.ones(2).as_strided((1, 2), (7, 1)),
    "grad": torch.ones(2, requires_grad=True),
    "twice": [part := torch.ones(4), part],
    "overlapping": [part[:3], part[2:]],
    "bfloat16": torch.ones(2, dtype=torch.bfloat16),
    "conjugate": torch.ones(2, dtype=torch.complex64).conj(),
    "sparse": torch.eye(2).to_sparse(),
    "a subclass": torch.nn.Parameter(torch.ones(2), requires_grad=False),
    "nothing": (),
    "a key of its own": {frozenset([1]): torch.ones(2)},
}


@pytest.mark.parametrize("batch", PLAIN, ids=["tensor", "tuple", "dict"])
def test_plain_tensors_need_no_pickle_of_their_own(batch: Any) -> None:
    assert pack_plain(batch) is not None
    assert_same(through_parcel(batch), batch)
    assert_same(through_parcel(batch), batch)  # its outline is known now


@pytest.mark.parametrize("name", NOT_PLAIN)
def test_whatever_else_is_there_goes_the_general_way(name: str) -> None:
    assert pack_plain(NOT_PLAIN[name]) is None


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_nested_tensors_go_the_general_way() -> None:
    assert pack_plain(torch.nested.nested_tensor([torch.ones(1), torch.ones(2)])) is None


def test_a_batch_that_holds_itself_is_not_plain() -> None:
    batch: list[Any] = [torch.ones(1)]
    batch.append(batch)
    assert pack_plain(batch) is None


# --- leases -------------------------------------------------------------------------------------------------------------


MADE = {
    "tensor": lambda: torch.ones(3),
    "array": lambda: np.ones(3),
    "view": lambda: [torch.ones(3)[1:2]],
    "subclass": lambda: torch.ones(3).as_subclass(Marked),
    "sparse": lambda: torch.eye(2).to_sparse(),
    "sparse rows": lambda: torch.eye(2).to_sparse_csr(),
}


@pytest.mark.filterwarnings("ignore:Sparse CSR tensor support is in beta")
@pytest.mark.parametrize("made", MADE)
def test_what_came_out_keeps_its_owner_alive_and_only_that(made: str) -> None:
    parcel = pack(MADE[made]())
    owner = np.zeros(parcel.size_bytes, dtype=np.uint8)
    parcel.write(owner)
    alive = weakref.ref(owner)
    batch = unpack(owner)
    del owner, parcel
    assert alive() is not None
    del batch
    assert alive() is None


def test_what_came_out_can_be_written_to() -> None:
    tensor, array = through_parcel([torch.zeros(3), np.zeros(3)])
    tensor += 1
    array += 1
    assert (tensor.tolist(), array.tolist()) == ([1.0] * 3, [1.0] * 3)


def test_a_parcel_is_for_unpack_alone() -> None:
    with pytest.raises(RuntimeError, match="outside of antifreeze"):
        pickle.loads(pack_any(torch.ones(2)).parts[0])


@pytest.mark.parametrize("room", [0, 64])
def test_another_default_device_does_not_matter(room: int) -> None:
    batch = {"x": torch.arange(5.0), "all": [torch.arange(6)[2:4], torch.empty(0)], "name": "sheep", "raw": torch.ones(2).untyped_storage()}
    with torch.device("meta"):
        back = through_parcel(batch, room)
    assert_same([back["x"], back["all"]], [batch["x"], batch["all"]])
    assert bytes(back["raw"]) == bytes(batch["raw"])
