"""Pad and Join: pure, against torch's own pad_sequence and cat where these do the same."""

from __future__ import annotations

from collections import OrderedDict, UserDict, defaultdict, namedtuple
from collections.abc import Iterator, MutableMapping
from types import MappingProxyType
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import default_collate

from antifreeze import BadSample, Join, OptionError, Pad

Point = namedtuple("Point", "ids label")
DTYPES = (torch.int64, torch.int32, torch.uint8, torch.bool, torch.float32, torch.float64, torch.bfloat16, torch.complex64)


def tokens(*lengths: int) -> list[torch.Tensor]:
    return [torch.arange(1, length + 1) for length in lengths]


@given(st.lists(st.integers(0, 20), min_size=1, max_size=9), st.sampled_from(DTYPES), st.integers(0, 2))
def test_as_pad_sequence_does_it(lengths: list[int], dtype: torch.dtype, more_dims: int) -> None:
    samples = [torch.randint(0, 2, (length, 3, 2)[: 1 + more_dims]).to(dtype) for length in lengths]
    padded = Pad(1)(samples)
    assert padded.dtype == dtype and torch.equal(padded, pad_sequence(samples, batch_first=True, padding_value=1))


def test_every_dimension_in_which_they_differ() -> None:
    padded = Pad(-1)([torch.zeros(2, 3, 5), torch.ones(2, 4, 1)])
    assert padded.shape == (2, 2, 4, 5)
    assert (padded[0, :, 3:] == -1).all() and (padded[1, :, :, 1:] == -1).all() and (padded[1, :, :, :1] == 1).all()


@pytest.mark.parametrize("kind", [list, np.array, torch.tensor])
def test_lists_arrays_and_tensors_are_alike(kind: Any) -> None:
    padded, lengths = Pad(9, lengths=True)([kind([1, 2, 3]), kind([4])])
    assert padded.tolist() == [[1, 2, 3], [4, 9, 9]] and padded.dtype == torch.int64 and lengths.tolist() == [3, 1]


def test_lists_have_the_dtypes_of_torch_tensor() -> None:
    assert Pad()([[0.5], [1.0, 2.0]]).dtype == torch.float32
    assert Pad()([[True], [False, True]]).dtype == torch.bool
    assert Pad()([[], [3]]).tolist() == [[0], [3]] and Pad()([[], [3]]).dtype == torch.int64
    assert Pad()([[[1, 2]], [[3, 4], [5, 6]]]).shape == (2, 2, 2)


def test_an_empty_list_is_as_empty_as_the_others_are() -> None:
    boxes: list[Any] = [[[1, 2, 3, 4]], [], [[5, 6, 7, 8], [9, 9, 9, 9]]]
    half = torch.tensor(boxes[0], dtype=torch.bfloat16)
    for samples, dtype in (
        (boxes, torch.int64),
        (boxes[1:], torch.int64),
        ([np.array(boxes[0]), []], torch.int64),
        ([half, []], half.dtype),
    ):
        padded, lengths = Pad(lengths=True)(samples)
        assert padded.shape[2] == 4 and padded.dtype == dtype and lengths.tolist() == list(map(len, samples))
        assert Join()(samples).shape == (sum(map(len, samples)), 4)
    assert Pad()([[[1, 2]], [[]]]).dtype == torch.int64


def test_lists_are_arrays_only_where_all_of_them_is_numbers() -> None:
    label, ids = Pad(7)([[5, torch.ones(1)], [6, torch.ones(2)]])
    assert label.tolist() == [5, 6] and ids.tolist() == [[1, 7], [1, 1]]
    assert Pad()([[[1, 2], 0.5, "a"], [[3], 1.5, "b"]])[0].tolist() == [[1, 2], [3, 0]]
    assert Pad()([[np.True_], [np.False_, np.True_]]).tolist() == [[True, False], [False, True]]
    assert Pad()([[1j], [2, 3j]]).dtype == torch.complex64


def test_arrays_as_files_have_them(tmp_path: Any) -> None:
    np.arange(6, dtype=">i4").tofile(tmp_path / "tokens")
    tokens = np.memmap(tmp_path / "tokens", dtype=">i4", mode="r")
    samples = [tokens[:3], tokens[::-1][:2], tokens[:0]]
    assert Pad(-1)(samples).tolist() == [[0, 1, 2], [5, 4, -1], [-1] * 3] and Join()(samples).tolist() == [0, 1, 2, 5, 4]
    assert Pad()([*samples, torch.ones(1, dtype=torch.bfloat16)]).tolist()[1] == [5, 4, 0]
    assert Join("a")([{"a": tokens, "b": tokens[::-1]}])["b"].tolist() == [[5, 4, 3, 2, 1, 0]]


def test_numbers_may_be_numpys() -> None:
    lengths = np.array([2, 3])
    assert Pad(np.float32(9), length=lengths.max(), dim=[lengths.argmin()])([[0.5, 1]]).tolist() == [[0.5, 1, 9]]
    assert Pad({"a": np.int64(9)}, multiple_of=lengths[0])([{"a": [1]}])["a"].tolist() == [[1, 9]]


class Encoding(UserDict[str, Any]):
    """As a tokenizer gives it: a mapping that is no dict, and has more than its keys."""

    of = "nobody"


class Cells(MutableMapping[str, Any]):
    """Whose copy has the same cells."""

    def __init__(self, cells: dict[str, Any]) -> None:
        self.cells = cells

    def __getitem__(self, key: str) -> Any:
        return self.cells[key]

    def __setitem__(self, key: str, value: Any) -> None:
        self.cells[key] = value

    def __delitem__(self, key: str) -> None:
        del self.cells[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self.cells)

    def __len__(self) -> int:
        return len(self.cells)


def test_no_mapping_is_written_to() -> None:
    sample = Cells({"ids": [1]})
    batch = Pad({"ids": 0}, mask="mask")([sample, Cells({"ids": [1, 2]})])
    assert type(batch) is Cells and sample.cells == {"ids": [1]} and list(batch) == ["ids", "mask"]


def test_mappings_stay_what_they_are_and_take_what_is_added() -> None:
    samples = [Encoding(ids=[1]), Encoding(ids=[1, 2])]
    samples[0].of = "me"
    batch = Pad({"ids": 0}, mask="mask", lengths="n")(samples)
    assert type(batch) is Encoding and batch.of == "me" and batch["n"].tolist() == [1, 2] and batch["mask"].sum() == 3
    assert samples[0]["ids"] == [1] and list(samples[0]) == ["ids"]
    assert Pad()([defaultdict(list, a=[1])])["b"] == [] and Join(offsets="o")([MappingProxyType({"a": [1]})])["o"].tolist() == [0, 1]


def test_containers_and_what_is_no_array_are_as_default_collate_has_them() -> None:
    samples = [{"a": torch.ones(2), "b": (1, "x"), "c": 0.5}, {"a": torch.ones(2), "b": (2, "y"), "c": 1.5}]
    ours, theirs = Pad()(samples), default_collate(samples)
    assert list(ours) == list(theirs) and torch.equal(ours["a"], theirs["a"]) and ours["c"].equal(theirs["c"])
    assert ours["b"][0].equal(theirs["b"][0]) and ours["b"][1] == theirs["b"][1] and type(ours["b"]) is type(theirs["b"])
    point = Pad()([Point(torch.ones(2), 1), Point(torch.ones(3), 2)])
    assert type(point) is Point and point.ids.shape == (2, 3) and point.label.tolist() == [1, 2]
    assert type(Pad()([OrderedDict(a=[1]), OrderedDict(a=[1, 2])])) is OrderedDict


def test_named_fields_their_values_lengths_and_mask() -> None:
    pad = Pad({"ids": 0, "labels": -100}, multiple_of=4, lengths="n", mask="mask")
    batch = pad([{"ids": [7] * 5, "labels": [1] * 5, "box": [1, 2, 3]}, {"ids": [8], "labels": [2], "box": [4, 5, 6]}])
    assert batch["ids"].shape == batch["labels"].shape == batch["mask"].shape == (2, 8) and batch["box"].shape == (2, 3)
    assert batch["labels"][1].tolist() == [2] + [-100] * 7
    assert batch["n"].tolist() == [5, 1] and batch["mask"].sum(1).tolist() == [5, 1] and batch["mask"].dtype == torch.bool
    first, second, lengths, mask = Pad({0: 3}, lengths=True, mask=True)([(torch.ones(2), 5), (torch.ones(1), 6)])
    assert first.tolist() == [[1, 1], [1, 3]] and second.tolist() == [5, 6] and lengths.tolist() == [2, 1] and mask.sum() == 3
    assert Pad({"in.ids": 7})([{"in": {"ids": [1]}}, {"in": {"ids": [1, 2]}}])["in"]["ids"].tolist() == [[1, 7], [1, 2]]


def test_equally_long_samples_are_rounded_up_too() -> None:
    assert Pad(multiple_of=8)(tokens(3, 3)).shape == (2, 8)
    assert Pad(length=6)(tokens(3, 3)).shape == (2, 6)


def test_left_and_truncated() -> None:
    batch, mask = Pad(side="left", mask=True)(tokens(2, 3))
    assert batch.tolist() == [[0, 1, 2], [1, 2, 3]] and mask.tolist() == [[False, True, True], [True] * 3]
    assert Pad(length=2, truncate=True)(tokens(1, 3)).tolist() == [[1, 0], [1, 2]]
    assert Pad(length=2, truncate=True, side="left")(tokens(1, 3)).tolist() == [[0, 1], [2, 3]]
    batch, lengths = Pad(length=2, truncate=True, lengths=True)(tokens(1, 3))
    assert lengths.tolist() == [1, 2]


def test_pictures_in_two_dimensions() -> None:
    pictures = [torch.ones(3, 30, 17), torch.ones(3, 20, 33)]
    batch, sizes, mask = Pad(dim=(1, 2), multiple_of=32, lengths=True, mask=True)(pictures)
    assert batch.shape == (2, 3, 32, 64) and sizes.tolist() == [[30, 17], [20, 33]] and mask.shape == (2, 32, 64)
    for number, picture in enumerate(pictures):
        assert int(mask[number].sum()) == picture[0].numel() and batch[number][:, mask[number]].eq(1).all()
        assert not batch[number][:, ~mask[number]].any()
    assert Pad(dim=-1, multiple_of=32)(pictures).shape == (2, 3, 30, 64)


def test_samples_are_not_touched_and_not_shared() -> None:
    sample = torch.ones(3)
    read_only = np.ones(3)
    read_only.flags.writeable = False
    for one in (sample, read_only):
        Pad()([one])[0, 0] = 5
        assert one[0] == 1


def test_gradients_go_torchs_way() -> None:
    weight = torch.ones(2, requires_grad=True)
    Pad()([weight, torch.ones(3)]).sum().backward()
    assert weight.grad is not None and weight.grad.tolist() == [1, 1]


def test_different_dtypes_are_promoted() -> None:
    assert Pad()([torch.ones(2, dtype=torch.int32), torch.ones(1)]).dtype == torch.float32


@pytest.mark.parametrize(
    ("pad", "samples", "row", "words"),
    [
        (Pad(length=2), tokens(1, 2, 3), 2, "is 3 long, and Pad(length=2) takes no more"),
        (Pad(), [torch.ones(2), torch.ones(2, 2)], 1, "has 2 dimensions, but 1"),
        (Pad(), [torch.ones(2, 2), torch.ones(2), torch.ones(1)], 0, "has 2 dimensions, but 1 in most of the batch"),
        (Pad(), [{"a": [1], "b": 1}, {"a": [1]}, {"a": [2]}], 0, "has the keys ['a', 'b'], but in most of the batch it has the keys ['a']"),
        (Pad(), [([1], 2, 3), ([1], 2), ([1], 2)], 0, "has 3 parts, but in most of the batch it has 2 parts"),
        (Pad({"a": 0}), [{"a": [1], "b": [1, 2]}, *[{"a": [1], "b": [1]}] * 2], 0, "has the shape (2,), in most of the batch (1,)"),
        (Join(), [torch.ones(2, 3), torch.ones(2, 4), torch.ones(1, 4)], 0, "has the shape (2, 3), in most of the batch (2, 4)"),
        (Pad({"a": 0}), [{"a": [1], "b": [1]}, {"a": [1], "b": [1, 2]}], 1, "field 'b' has the shape (2,)"),
        (Pad(), [{"a": [1]}, {"a": [1]}, {"b": [1]}], 2, "has the keys ['b']"),
        (Pad(), [([1], 2), ([1],)], 1, "has 1 parts"),
        (Pad(), [[1, 2], 3], 1, "no array of numbers (int)"),
        (Pad(), [[[1, 2], [3]]], 0, "different lengths"),
        (Pad(), [[1], None], 1, "no array of numbers (NoneType)"),
        (Join(), [torch.ones(2, 3), torch.ones(2, 4)], 1, "only differ in the first dimension"),
        (Join(offsets="o"), [{"a": [1], "b": [1]}, {"a": [1], "b": [1, 2]}], 1, "one set of offsets"),
        (Pad(), [("a", "b"), ("c", "d"), "ef"], 2, "has no parts: it is of type str"),
        (
            Pad(),
            [{"a": [1], "x": 1}, {"a": [1, 2], "x": 2}, {"a": [1], "x": None}],
            2,
            "field 'x' is NoneType, in the batch's first sample int",
        ),
        (Pad(), [{"a": [1], "x": None}, {"a": [[1]], "x": None}], 1, "field 'a' has 2 dimensions"),
        (Join("a"), [{"a": [1], "b": [1]}, {"a": [1, 2], "b": [1]}, {"a": [1], "b": [1, 2]}], 2, "field 'b' has the shape (2,)"),
        (Pad({"a": 0}), [{"a": None}, {"a": [1]}], 0, "no array 'a', as others of its batch have; its arrays are none"),
        (Join(), [{"a": "text"}, {"a": [1]}, {"a": [1]}], 0, "has no array, as others of its batch have"),
        (Pad(), [np.ones(1, dtype=np.uint16), np.ones(1, dtype=np.int64)], 1, "is torch.int64, in the batch's first sample torch.uint16"),
        (Pad(), [torch.ones(2).to_sparse(), torch.ones(1).to_sparse()], 0, "sparse tensors"),
        (Pad(), [[1, None], [2]], 0, "a list of object, not of numbers"),
        (Pad(), [[1], [2, "a"]], 1, "not of numbers"),
        (Pad(), [torch.ones(2), torch.ones(1).to_sparse()], 1, "no array of numbers (Tensor)"),
        (Pad(), [np.ones(2), np.array(1.0)], 1, "has 0 dimensions, but 1"),
        (Join(), [np.ones(2), torch.tensor(1.0)], 1, "has the shape ()"),
        (Pad(), [[1], ["a"]], 1, "no array of numbers (list)"),
    ],
)
def test_what_does_not_fit_is_named_by_its_row(pad: Any, samples: list[Any], row: int, words: str) -> None:
    with pytest.raises(BadSample) as caught:
        pad(samples)
    assert words in str(caught.value) and caught.value.row == row


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: Pad("0"), "value is a number"),
        (lambda: Pad({}), "names no field"),
        (lambda: Pad(side="up"), '"right" or "left"'),
        (lambda: Pad(multiple_of=0), "multiple_of is a whole number from 1 on"),
        (lambda: Pad(length=1.5), "length is a whole number"),
        (lambda: Pad(length=10, multiple_of=8), "no multiple"),
        (lambda: Pad(truncate=True), "which is not given"),
        (lambda: Pad(multiple_of=8)([{"ids": [1]}]), "must be told which fields they are for"),
        (lambda: Pad({"id": 0})([{"ids": [1]}]), "names 'id'; arrays of the samples are 'ids'"),
        (lambda: Pad(-1)([torch.ones(1, dtype=torch.uint8)]), "-1 cannot be filled into the sample, whose samples are uint8"),
        (lambda: Pad(0.5)([[1]]), "0.5 cannot be filled"),
        (lambda: Pad(float("nan"))([[1]]), "nan cannot be filled"),
        (lambda: Pad(2)([[True]]), "whose samples are bool"),
        (lambda: Join("a")([{"b": [1]}, {"b": [1, 2]}]), "names 'a'; arrays of the samples are 'b'"),
        (lambda: Pad({"a.b": 0})([{"a.b": [1], "a": {"b": [1, 2]}}]), "names 'a.b', but samples have two arrays of that name"),
        (lambda: Join(0)([{0: [1], "0": [1, 2]}]), "names '0', but samples have two arrays"),
        (lambda: Pad(dim=()), "names no dimension"),
        (lambda: Pad(dim="0"), "dim is a whole number, not '0'"),  # type: ignore[arg-type]
        (lambda: Pad(dim=(0, -1), mask=True)([[1]]), "dim=(0, -1) names a dimension twice, as the sample has 1"),
        (lambda: Pad(None), "value is a number"),  # type: ignore[arg-type]
        (lambda: Pad(length=True), "length is a whole number"),
        (lambda: Pad(dim=1, multiple_of=2)([[1]]), "dim=1, but the sample has 1 dimensions"),
        (lambda: Pad({"a": 0}, lengths="a")([{"a": [1]}]), "have a key 'a' already"),
        (lambda: Pad({"a": 0}, lengths=True)([{"a": [1]}]), "needs a key"),
        (lambda: Pad(mask="m")([[1]]), "no dicts"),
        (lambda: Join("a")([{"b": [1]}]), "names 'a'; arrays of the samples are 'b'"),
        (lambda: Join()([3, 4]), "joins arrays, which the samples have not"),
    ],
)
def test_what_cannot_be_asked_for(make: Any, words: str) -> None:
    with pytest.raises(OptionError) as caught:
        make()
    assert words in str(caught.value)


def test_join() -> None:
    batch = Join("ids", offsets="cu_seqlens", positions="at")([{"ids": [5, 6, 7], "y": [1]}, {"ids": [], "y": [2]}, {"ids": [8], "y": [3]}])
    assert batch["ids"].tolist() == [5, 6, 7, 8] and batch["y"].tolist() == [[1], [2], [3]]
    assert batch["cu_seqlens"].tolist() == [0, 3, 3, 4] and batch["cu_seqlens"].dtype == torch.int32
    assert batch["at"].tolist() == [0, 1, 2, 0]
    joined, offsets = Join(offsets=True)([torch.ones(2, 4), torch.zeros(1, 4)])
    assert joined.shape == (3, 4) and offsets.tolist() == [0, 2, 3]
    assert Join()([torch.ones(2), torch.ones(1)]).shape == (3,)
