"""Every kind of sample: through the default collate (ours writes rows where it can), one by one, and in a list of the user's making."""

from __future__ import annotations

from collections.abc import Iterator
from multiprocessing.reduction import ForkingPickler
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data._utils.collate import collate, default_collate_fn_map

from .contract import Case, Ours, Outcome, Torchs, assert_same_outcome, difference, drain, ours_only, rows, run, without_frames
from .datasets import Marked, Pinnable, Point, Samples
from .kinds import ALL, IRREGULAR, NUMBERS, NUMPY, STRUCTURES, TENSORS, Kinds

NOISE = ["ignore:Sparse CSR", "ignore:Sparse invariant checks"]  # torch's, once per process


def cases(kinds: Kinds) -> list[Case]:
    return [Case(name, lambda sample=sample: Samples(8, sample), lambda _: {"batch_size": 3}) for name, sample in kinds.items()]


class ByName(Samples):
    """Index (kind, i): all kinds in one loader, which is how torch is asked (its workers take long to start)."""

    def __init__(self) -> None:
        super().__init__(8, lambda index: ALL[index[0]](index[1]))


@pytest.fixture(scope="module")
def torch_with_workers() -> dict[str, Outcome]:
    """What torch's workers make of every kind: batches up to the first error."""
    plan = [[(name, i) for i in range(first, min(first + 3, 8))] for name in ALL for first in (0, 3, 6)]
    outcomes = {name: Outcome() for name in ALL}
    batches = iter(Torchs(ByName(), batch_sampler=plan, num_workers=2))
    for indices in plan:
        outcome = outcomes[indices[0][0]]
        try:
            batch = next(batches)
        except Exception as error:
            outcome.error = outcome.error or without_frames(error)
        else:
            if outcome.error is None:
                outcome.batches.append(batch)
    assert list(batches) == []
    for outcome in outcomes.values():
        if outcome.error is None:
            outcome.batches.append("end of epoch")
    return outcomes


COLLATED = cases({name: sample for name, sample in ALL.items() if name not in ("None", "None at the end")})  # see test_errors: NAMED


@pytest.mark.filterwarnings(*NOISE)
@pytest.mark.parametrize(
    "kinds", [STRUCTURES, TENSORS, NUMPY, NUMBERS, IRREGULAR], ids=["structures", "tensors", "numpy", "numbers", "irregular"]
)
def test_default_collate_in_the_parent(kinds: Kinds) -> None:
    for case in (case for case in COLLATED if case.name in kinds):
        try:
            assert_same_outcome(run(Ours, case, 0), run(Torchs, case, 0))
        except AssertionError as error:
            raise AssertionError(f"{case.name}: {error}") from error


@pytest.mark.filterwarnings(*NOISE)
@rows(COLLATED)
def test_default_collate_in_workers(case: Case, torch_with_workers: dict[str, Outcome]) -> None:
    num_workers = 2 if case.name in TENSORS or case.name in IRREGULAR else 1  # two share out the rows of a batch
    assert_same_outcome(run(Ours, case, num_workers), torch_with_workers[case.name], run(Torchs, case, 0))


@ours_only
@pytest.mark.filterwarnings(*NOISE)
@rows([case for case in COLLATED if case.name != "scalar bytes_"])  # numpy's empty bytes have another repr once pickled
def test_default_collate_in_threads(case: Case, torch_with_workers: dict[str, Outcome]) -> None:
    assert_same_outcome(run(Ours, case, 2, workers="thread"), torch_with_workers[case.name], run(Torchs, case, 0))


def as_it_is(anything: Any) -> Any:
    return anything


LOST_BY_TORCH = ("conjugate", "big-endian array")
"""torch's workers forget that a tensor is a conjugate or a negative of its storage, and deliver other numbers; and of the byte order."""


@ours_only
def test_a_conjugate_a_negative_and_a_byte_order_arrive() -> None:
    z = torch.tensor([1 + 2j, 3 - 4j]).conj()
    assert z.is_conj()
    assert z.imag.is_neg()
    swapped = np.array([1, 2], dtype=">f4")
    for batch in Ours(range(4), batch_size=2, num_workers=2, collate_fn=lambda _: (z, z.imag, swapped)):
        assert difference(batch[2], swapped) is None
        assert batch[0].tolist() == [1 - 2j, 3 + 4j]
        assert batch[1].tolist() == [-2.0, 4.0]


@pytest.mark.filterwarnings(*NOISE)
@pytest.mark.parametrize("num_workers", [0, 2])
@pytest.mark.parametrize("size", [None, 5])
def test_every_kind_travels_unchanged(size: int | None, num_workers: int) -> None:
    """One by one, and in a list of the user's making: no collate function of torch's touches it."""
    names = [name for name in ALL if not (num_workers and name in LOST_BY_TORCH)]
    indices = [(name, i % 5) for i, name in enumerate(names)]
    kwargs = {"batch_size": size, "collate_fn": as_it_is, "num_workers": num_workers, "sampler": indices}
    ours, torchs = (drain(cls(ByName(), **kwargs)) for cls in (Ours, Torchs))
    for first, ours_batch, torchs_batch in zip(range(0, len(names), size or 1), ours, torchs, strict=True):
        found = difference(ours_batch, torchs_batch)
        assert found is None, f"{names[first : first + (size or 1)]}: {found}"


REFUSED_BY_CONVERT = ["scalar uint64", "scalar longdouble", "scalar bytes_", "big-endian array", "reversed array"]
REFUSED_BY_CONVERT += ["structured array", "datetime64", "timedelta64"]


@pytest.mark.filterwarnings(*NOISE)
@pytest.mark.parametrize("num_workers", [0, 2])
def test_batch_size_none_converts_as_torch_does(num_workers: int) -> None:
    left_out = [*REFUSED_BY_CONVERT, *(LOST_BY_TORCH if num_workers else ())]
    indices = [(name, 1) for name in ALL if name not in left_out]
    ours, torchs = (drain(cls(ByName(), batch_size=None, num_workers=num_workers, sampler=indices)) for cls in (Ours, Torchs))
    for (name, _), ours_sample, torchs_sample in zip(indices, ours, torchs, strict=True):
        found = difference(ours_sample, torchs_sample)
        assert found is None, f"{name}: {found}"


@rows(cases({name: ALL[name] for name in REFUSED_BY_CONVERT}))
def test_batch_size_none_refuses_what_torch_refuses(case: Case) -> None:
    ours = run(Ours, case, 2, batch_size=None)
    assert ours.error is not None
    assert_same_outcome(ours, run(Torchs, case, 2, batch_size=None))


def test_batch_size_none_without_workers_hands_out_the_sample_itself() -> None:
    samples = [torch.ones(2), torch.zeros(2)]
    assert all(ours is sample for ours, sample in zip(Ours(samples, batch_size=None), samples, strict=True))


@pytest.fixture
def registered_point() -> Iterator[None]:
    def collate_points(points: list[Point], *, collate_fn_map: Any = None) -> Point:
        return Point(collate([point.x for point in points], collate_fn_map=collate_fn_map), "+".join(point.name for point in points))

    default_collate_fn_map[Point] = collate_points
    yield
    del default_collate_fn_map[Point]


@pytest.mark.usefixtures("registered_point")
@pytest.mark.parametrize("num_workers", [0, 2])
@rows(
    cases({"point": lambda i: Point(torch.ones(2) * i, str(i)), "point inside": lambda i: {"p": Point(torch.ones(2) * i, str(i)), "i": i}})
)
def test_a_type_registered_with_torch(case: Case, num_workers: int) -> None:
    ours = run(Ours, case, num_workers)
    assert_same_outcome(ours, run(Torchs, case, num_workers))
    assert ours.error is None


@pytest.fixture
def doubled_ints() -> Iterator[None]:
    before = default_collate_fn_map[int]
    default_collate_fn_map[int] = lambda batch, *, collate_fn_map=None: torch.tensor(batch) * 2
    yield
    default_collate_fn_map[int] = before


@pytest.mark.usefixtures("doubled_ints")
@pytest.mark.parametrize("num_workers", [0, 2])
def test_a_replaced_collate_of_a_known_type(num_workers: int) -> None:
    case = cases({"int": lambda i: (torch.ones(2) * i, i)})[0]
    ours = run(Ours, case, num_workers)
    assert_same_outcome(ours, run(Torchs, case, num_workers))
    assert ours.batches[0][1].tolist() == [0, 2, 4]


def nested_tensor(samples: list[torch.Tensor]) -> torch.Tensor:
    return torch.nested.nested_tensor(samples)


def jagged_tensor(samples: list[torch.Tensor]) -> torch.Tensor:
    return torch.nested.nested_tensor(samples, layout=torch.jagged)


def coo_of(samples: list[torch.Tensor]) -> torch.Tensor:
    return torch.stack([torch.nn.functional.pad(sample, (0, 12 - len(sample))) for sample in samples]).to_sparse()


def csr_of(samples: list[torch.Tensor]) -> torch.Tensor:
    return coo_of(samples).to_dense().to_sparse_csr()


def one_storage(samples: list[torch.Tensor]) -> dict[str, Any]:
    whole = torch.cat(samples)
    return {"whole": whole, "tail": whole[1:], "column": whole.reshape(-1, 1).T, "again": [whole]}


def batch_of_marked(samples: list[torch.Tensor]) -> torch.Tensor:
    return torch.cat(samples).as_subclass(Marked)


COLLATES = [nested_tensor, jagged_tensor, coo_of, csr_of, one_storage, batch_of_marked, Pinnable, tuple, len]


@pytest.mark.filterwarnings(*NOISE, "ignore:.*nested tensors")
@pytest.mark.parametrize("num_workers", [0, 2])
@pytest.mark.parametrize("collate_fn", COLLATES, ids=lambda fn: fn.__name__)
def test_what_a_collate_function_may_return(collate_fn: Any, num_workers: int) -> None:
    case = Case("", lambda: Samples(8, lambda i: torch.arange(1.0, 2 + i)), lambda _: {"batch_size": 3, "collate_fn": collate_fn})
    ours = run(Ours, case, num_workers)
    assert_same_outcome(ours, run(Torchs, case, num_workers))
    assert ours.error is None


@pytest.mark.parametrize("num_workers", [0, 2])
def test_tensors_of_one_storage_still_share_it(num_workers: int) -> None:
    for batch in Ours(Samples(8, lambda i: torch.ones(2) * i), batch_size=4, num_workers=num_workers, collate_fn=one_storage):
        batch["whole"].fill_(9)
        assert batch["again"][0] is batch["whole"] or batch["again"][0].data_ptr() == batch["whole"].data_ptr()
        assert batch["tail"].tolist() == [9] * 7
        assert batch["column"].tolist() == [[9] * 8]


def read_only(samples: list[torch.Tensor]) -> list[Any]:
    """As np.asarray(picture), np.frombuffer and np.load(mmap_mode="r") have them."""
    array = np.frombuffer(torch.stack(samples).numpy().tobytes(), dtype=np.float32).reshape(len(samples), -1)
    return [array, array.T, array[::2], array]


def test_an_array_that_was_read_only_in_the_worker_can_be_written_to_as_with_torch() -> None:
    case = Case("", lambda: Samples(8, lambda i: torch.ones(3) * i), lambda _: {"batch_size": 4, "collate_fn": read_only})
    ours = run(Ours, case, 1)
    assert_same_outcome(ours, run(Torchs, case, 1))
    assert [array.flags.writeable for array in ours.batches[0]] == [True] * 4
    assert ours.batches[0][0] is ours.batches[0][3]


def one_empty_twice(samples: list[torch.Tensor]) -> list[torch.Tensor]:
    empty = torch.empty(0, 2)
    return [empty, torch.ones(2), empty]


@pytest.mark.parametrize("num_workers", [0, 2])
def test_an_empty_tensor_that_is_twice_in_a_batch_is_one(num_workers: int) -> None:
    for batch in Ours(range(4), batch_size=2, num_workers=num_workers, collate_fn=one_empty_twice):
        assert batch[0] is batch[2]
        assert batch[0].shape == (0, 2)


def storage_beside_its_tensor(samples: list[int]) -> dict[str, Any]:
    tensor = torch.tensor(samples, dtype=torch.float64)
    return {"tensor": tensor, "storage": tensor.untyped_storage()}


@pytest.mark.parametrize("num_workers", [0, 2])
def test_a_storage(num_workers: int) -> None:
    for batch in Ours(range(4), batch_size=2, num_workers=num_workers, collate_fn=storage_beside_its_tensor):
        assert batch["storage"].nbytes() == 16
        assert batch["storage"].data_ptr() == batch["tensor"].data_ptr()


class Handle:
    """Pickled only the way that multiprocessing was told."""

    def __init__(self, samples: list[int]) -> None:
        self.samples = samples

    def __reduce__(self) -> Any:
        raise TypeError("a handle is not pickled")


def test_a_type_registered_with_multiprocessing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(ForkingPickler._extra_reducers, Handle, lambda handle: (Handle, (handle.samples,)))  # type: ignore[attr-defined]
    for cls in (Ours, Torchs):
        assert [handle.samples for handle in cls(range(4), batch_size=2, num_workers=1, collate_fn=Handle)] == [[0, 1], [2, 3]]
