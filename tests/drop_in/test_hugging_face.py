"""Hugging Face data sets: gathered from their tables where that gives what torch gives, and asked where it would not."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import Subset, random_split

from antifreeze.worker.gather import Gather, gather_of

from .contract import TAKES_NUMPY_BOOLS, Case, Ours, Torchs, assert_same, assert_same_outcome, build, drain, rows, run

datasets = pytest.importorskip("datasets", reason='Hugging Face\'s datasets is not installed: pip install "antifreeze[dev]"')
pytest.importorskip("tqdm").tqdm.monitor_interval = 0  # else a thread of its progress bars is left behind

COUNT = 41
FLOATS = (np.arange(COUNT * 3) / 7).reshape(COUNT, 3)
WIDE = datasets.Features(
    {
        "i8": datasets.Value("int8"),
        "i64": datasets.Value("int64"),
        "u16": datasets.Value("uint16"),
        "u32": datasets.Value("uint32"),
        "f16": datasets.Value("float16"),
        "f32": datasets.Value("float32"),
        "f64": datasets.Value("float64"),
        **({"bit": datasets.Value("bool")} if TAKES_NUMPY_BOOLS else {}),
        "label": datasets.ClassLabel(names=["a", "b", "c"]),
    }
)


def wide() -> Any:
    numbers = np.arange(COUNT)
    odd = [np.nan, np.inf, -0.0, 1e300]
    columns: dict[str, Any] = dict.fromkeys(WIDE, numbers)
    columns |= {"f64": [*odd, *numbers[4:] / 3], "f32": numbers / 3, "f16": numbers / 3, "label": numbers % 3}
    columns |= {"bit": numbers % 3 == 0} if "bit" in WIDE else {}
    columns |= {"u16": numbers + 65_000, "u32": numbers + 2**32 - 100, "i8": numbers - 20}
    return datasets.Dataset.from_dict(columns, features=WIDE)


def lists(length: int = 3) -> Any:
    kind = datasets.List(datasets.Value("float32"), length=length)
    return datasets.Dataset.from_dict({"x": FLOATS, "y": np.arange(COUNT)}, features=datasets.Features(x=kind, y=datasets.Value("int32")))


def arrays() -> Any:
    features = datasets.Features(
        x=datasets.Array3D((2, 3, 4), "float32"), m=datasets.Array2D((None, 2), "int16"), y=datasets.Value("int64")
    )
    cubes = np.arange(COUNT * 24, dtype="float32").reshape(COUNT, 2, 3, 4)
    return datasets.Dataset.from_dict(
        {"x": cubes, "m": cubes[:, 0, :, :2].astype("int16"), "y": list(range(COUNT))},
        features=features,
    )


def in_chunks(dataset: Any, size: int = 7) -> Any:
    """As a file that was written batch by batch."""
    parts = [dataset.select(range(first, min(first + size, len(dataset)))) for first in range(0, len(dataset), size)]
    return datasets.concatenate_datasets(parts)


def with_nulls() -> Any:
    return datasets.Dataset.from_dict({"x": [1.5, None, *range(30)], "y": list(range(32))})


def transformed() -> Any:
    dataset = lists()
    dataset.set_transform(lambda batch: {"x": torch.tensor(batch["x"]) * 2})
    return dataset


def ragged() -> Any:
    return datasets.Dataset.from_dict({"x": [[1.0, 2.0]] * 20 + [[1.0]] + [[3.0, 4.0]] * 11})


SIX: Callable[[Any], dict[str, Any]] = lambda _: {"batch_size": 6, "shuffle": True}  # noqa: E731


def formats(name: str, make: Callable[[], Any], *kinds: str | None) -> list[Case]:
    return [Case(f"{name}, {kind}", lambda kind=kind: make().with_format(kind), SIX) for kind in kinds]


GATHERED = [
    *formats("numbers", wide, "torch", "numpy", None),
    *formats("numbers in chunks", lambda: in_chunks(wide()), "torch", "numpy", None),
    *formats("lists", lists, "torch", "numpy"),
    *formats("lists in chunks", lambda: in_chunks(lists()), "torch", "numpy"),
    *formats("lists of no fixed length", lambda: lists(-1), "torch", "numpy"),
    *formats("part of lists of no fixed length", lambda: in_chunks(lists(-1)).select(range(5, 33)), "torch"),
    *formats("arrays", arrays, "torch", "numpy"),
    *formats("arrays in chunks", lambda: in_chunks(arrays()), "torch", "numpy"),
    *formats("part of it", lambda: in_chunks(wide()).select(range(5, 33)), "torch", None),
    *formats("some of it", lambda: in_chunks(lists()).select([3, 40, 0, 3, 17]), "torch", "numpy"),
    *formats("shuffled", lambda: in_chunks(wide()).shuffle(seed=3), "torch", None),
    *formats("shuffled, then a part", lambda: in_chunks(lists()).shuffle(seed=3).select(range(4, 30)), "torch"),
    *formats("a shard", lambda: lists().shard(3, 1), "numpy"),
    *formats("side by side", lambda: datasets.concatenate_datasets([in_chunks(lists()), wide()], axis=1), "torch"),
    Case("some columns", lambda: wide().with_format("torch", columns=["f64", "i8"]), SIX),
    Case("one column", lambda: lists().select_columns("y").with_format("numpy"), SIX, epochs=2),
    Case("a subset", lambda: Subset(lists().with_format("torch"), [5, 3, 3, 40, 0]), lambda _: {"batch_size": 2}),
    Case("a split", lambda: random_split(in_chunks(wide()).with_format("torch"), [30, 11])[0], SIX),
    Case("subset of shuffled", lambda: Subset(lists().shuffle(seed=1).with_format("torch"), range(3, 20)), SIX),
]
ASKED = [
    *formats("text", lambda: datasets.Dataset.from_dict({"t": ["a", "b"] * 9, "y": list(range(18))}), "torch", "numpy", None),
    *formats("nulls", with_nulls, "torch", "numpy", None),
    *formats("lists as they are", lists, None),
    *formats("ragged", ragged, "torch", "numpy", None),
    *formats("nested", lambda: datasets.Dataset.from_dict({"s": [{"a": n, "b": float(n)} for n in range(20)]}), "torch", "numpy", None),
    *formats("tables", lists, "arrow"),
    *formats("frames", lists, "pandas"),
    *formats("large unsigned", lambda: datasets.Dataset.from_dict({"u": np.arange(20, dtype="uint64") + 2**62}), "torch", "numpy"),
    *formats("empty lists", lambda: datasets.Dataset.from_dict({"x": [[]] * 20}, features=lists(-1).select_columns("x").features), "torch"),
    Case("another dtype", lambda: wide().with_format("torch", columns=["f32", "i8"], dtype=torch.float64), SIX),
    Case("all columns", lambda: wide().with_format("torch", columns=["f32"], output_all_columns=True), SIX),
    Case("a transform", transformed, SIX),
    Case("from the end", lambda: lists().with_format("torch"), lambda _: {"sampler": [-1, -41, 3], "batch_size": 2}),
    Case("not there", lambda: lists().with_format("torch"), lambda _: {"sampler": [0, 1, 2, 41], "batch_size": 2}),
    Case("not there when shuffled", lambda: lists().shuffle(seed=1).with_format("torch"), lambda _: {"sampler": [0, 41], "batch_size": 2}),
    Case("own collate", lambda: lists().with_format("torch"), lambda _: {"batch_size": 6, "collate_fn": len}),
    Case("no batches", lambda: lists().with_format("torch"), lambda _: {"batch_size": None}),
]


@pytest.mark.filterwarnings("ignore:overflow encountered in cast")  # numpy says so where the library converts 1e300 to float32
@rows([*GATHERED, *ASKED])
def test_the_same_batches(case: Case) -> None:
    assert_same_outcome(run(Ours, case), run(Torchs, case))


WITH_WORKERS = (
    "numbers in chunks, torch",
    "lists in chunks, numpy",
    "shuffled, torch",
    "ragged, torch",
    "nulls, torch",
    "text, torch",
    "a transform",
)


@rows([case for case in [*GATHERED, *ASKED] if case.name in WITH_WORKERS])
def test_the_same_batches_from_workers(case: Case) -> None:
    assert_same_outcome(run(Ours, case, 2), run(Torchs, case))


@rows(GATHERED)
def test_these_are_gathered(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[int] = []
    write = Gather.write
    monkeypatch.setattr(Gather, "write", lambda *given: made.append(len(given[1])) or write(*given))
    dataset = case.make()
    drain(build(Ours, dataset, **case.kwargs(dataset)))
    assert sum(made) == len(dataset)


def test_a_file_is_read_where_it_lies(tmp_path: Path) -> None:
    """Memory-mapped, as load_dataset gives it, and in several files."""
    in_chunks(lists()).save_to_disk(tmp_path, num_shards=3)
    saved = datasets.load_from_disk(tmp_path).with_format("torch")
    assert saved.data.table.column("x").num_chunks > 1
    gather = gather_of(saved)
    assert gather is not None and gather.layout() is not None
    for workers in (0, 2):
        torch.manual_seed(1)
        ours = drain(build(Ours, saved, batch_size=6, shuffle=True, num_workers=workers))
        torch.manual_seed(1)
        assert_same(ours, drain(build(Torchs, saved, batch_size=6, shuffle=True)))


def test_a_format_that_is_set_meanwhile_is_seen_at_once() -> None:
    dataset = lists().with_format("torch")
    batches = iter(build(Ours, dataset, batch_size=5))
    assert next(batches)["x"].dtype is torch.float32
    dataset.set_format("torch", columns=["y"])
    assert list(next(batches)) == ["y"]
    dataset.set_transform(lambda batch: {"double": [2 * each for each in batch["y"]]})
    assert_same(next(batches), {"double": torch.arange(20, 30, 2)})


def test_a_data_set_of_the_users_own_kind_is_asked() -> None:
    class Mine(datasets.Dataset):
        def __getitems__(self, keys: list[int]) -> list[Any]:
            return [{"seen": key} for key in keys]

    mine = lists().with_format("torch")
    mine.__class__ = Mine
    assert gather_of(mine) is None
    assert_same(drain(build(Ours, mine, batch_size=41)), [{"seen": torch.arange(41)}])


def test_a_version_that_converts_otherwise_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    """Some rows are compared before anything is gathered."""
    formatter = type(datasets.formatting.get_formatter("torch"))
    monkeypatch.setattr(formatter, "_tensorize", lambda self, value: torch.tensor(value) + 1)
    dataset = lists().with_format("torch")
    gather = gather_of(dataset)
    assert gather is not None and gather.layout() is None
    assert_same(drain(build(Ours, dataset, batch_size=6)), drain(build(Torchs, dataset, batch_size=6)))


def test_the_batch_is_the_users_own() -> None:
    dataset = lists().with_format("torch")
    before = dataset[:]["x"].clone()
    for batch in build(Ours, dataset, batch_size=10):
        batch["x"].fill_(-1)
    assert torch.equal(dataset[:]["x"], before)
