"""What a loader leaves behind: nothing. What a batch is: the user's own, for as long as he holds any piece of it.

`leak_guard` asks every test of this project at its end; here we ask at once, and after each way a loader can end.
"""

from __future__ import annotations

import copy
import gc
import io
import os
import pickle
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from multiprocessing import resource_tracker
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch

import leak_guard

from .contract import Ours, Torchs, assert_same, drain, ours_only
from .datasets import Samples, Sharded, Squares

pytestmark = ours_only


def image(index: int) -> tuple[torch.Tensor, int]:
    return torch.full((3, 16, 16), float(index)), index


def words(samples: list[Any]) -> Any:
    return [f"sample {label}" for _, label in samples], torch.stack([x for x, _ in samples])


ROADS: dict[str, tuple[Callable[[], Any], dict[str, Any]]] = {
    "rows": (lambda: Samples(40, image), {}),
    "parcels": (lambda: Samples(40, image), {"collate_fn": words}),
    "stream": (lambda: Sharded(40), {}),
    "persistent": (lambda: Samples(40, image), {"persistent_workers": True}),
    "spawned": (lambda: Squares(40), {"multiprocessing_context": "spawn"}),
}


def new(road: str, num_workers: int = 2) -> Any:
    make, kwargs = ROADS[road]
    return Ours(make(), batch_size=4, num_workers=num_workers, **kwargs)


def left_since(before: set[Any], kinds: tuple[str, ...] = leak_guard.KINDS) -> dict[Any, str]:
    return {key: text for key, text in leak_guard._everything().items() if key not in before and key[0] in kinds}


def whole_epoch(loader: Any) -> None:
    drain(loader)


def two_epochs(loader: Any) -> None:
    drain(loader)
    drain(loader)


def break_off(loader: Any) -> None:
    for number, _ in enumerate(loader):
        if number == 2:
            break


def abandon(loader: Any) -> None:
    batches = iter(loader)
    next(batches)
    del batches


def fail_in_the_loop(loader: Any) -> None:
    with pytest.raises(ZeroDivisionError):
        for _ in loader:
            1 / 0  # noqa: B018


def several_at_once(loader: Any) -> None:
    for _ in zip(loader, loader, strict=False):
        break


def never_asked(loader: Any) -> None:
    iter(loader)


WAYS = [whole_epoch, two_epochs, break_off, abandon, fail_in_the_loop, several_at_once, never_asked]


GONE = [("rows", way) for way in WAYS] + [(road, way) for road in ("parcels", "stream", "persistent") for way in WAYS[1:5]]


@pytest.mark.parametrize(("road", "way"), GONE, ids=[f"{way.__name__}-{road}" for road, way in GONE])
def test_nothing_is_left_when_the_loader_is_gone(road: str, way: Callable[[Any], None]) -> None:
    before = set(leak_guard._everything())
    loader = new(road)
    way(loader)
    del loader
    gc.collect()
    assert left_since(before) == {}


class Collating(Ours):  # type: ignore[misc]
    """Collates by a method of its own, as graph libraries' loaders do: what its workers are told leads back to it."""

    def __init__(self, dataset: Any, **kwargs: Any) -> None:
        super().__init__(dataset, collate_fn=self.collate, **kwargs)

    def collate(self, samples: list[Any]) -> Any:
        return words(samples)


@pytest.mark.parametrize("num_workers", [2, 5])  # by forks alone, and from a nursery
@pytest.mark.parametrize("way", [two_epochs, break_off])
def test_nothing_is_left_when_a_loader_is_gone_that_its_workers_specs_lead_to(way: Callable[[Any], None], num_workers: int) -> None:
    before = set(leak_guard._everything())
    loader = Collating(Samples(40, image), batch_size=4, num_workers=num_workers, persistent_workers=True)
    way(loader)
    del loader
    gc.collect()
    assert left_since(before) == {}


@pytest.mark.parametrize("num_workers", [0, 2])
def test_nothing_is_left_when_an_iterator_is_gone_that_its_data_set_holds(num_workers: int) -> None:
    before = set(leak_guard._everything())
    dataset: Any = Samples(40, image)
    dataset.batches = iter(Ours(dataset, batch_size=4, num_workers=num_workers))
    next(dataset.batches)
    del dataset
    gc.collect()
    assert left_since(before) == {}


def fails_at_nine(index: int) -> torch.Tensor:
    if index == 9:
        raise ValueError("nine")
    return torch.ones(2)


def test_a_sample_that_fails_without_workers_leaves_nothing_for_the_garbage_collector_alone_to_find() -> None:
    before = set(leak_guard._everything())
    gc.disable()
    try:
        try:
            drain(Ours(Samples(40, fails_at_nine), batch_size=4))
        except ValueError:
            pass
        assert left_since(before) == {}
    finally:
        gc.enable()


CLOSED = [(road, way) for road in ROADS for way in (whole_epoch, break_off) if (road, way) != ("spawned", whole_epoch)]


@pytest.mark.parametrize(("road", "way"), CLOSED, ids=[f"{way.__name__}-{road}" for road, way in CLOSED])
def test_close_leaves_nothing_at_once(road: str, way: Callable[[Any], None]) -> None:
    """Without the garbage collector's help, and as often as one likes."""
    resource_tracker.ensure_running()  # multiprocessing's own, which stays
    before = set(leak_guard._everything())
    loader = new(road)
    gc.disable()
    try:
        way(loader)
        loader.close()
        assert left_since(before) == {}
        loader.close()
    finally:
        gc.enable()


@pytest.mark.parametrize("num_workers", [0, 2])
def test_an_iterator_of_a_closed_loader_says_so(num_workers: int) -> None:
    from antifreeze.errors import LoaderClosed

    before = set(leak_guard._everything())
    loader = new("rows", num_workers)
    batches = iter(loader)
    next(batches)
    loader.close()
    assert left_since(before, ("process", "thread")) == {}
    with pytest.raises(LoaderClosed):
        next(batches)


@pytest.mark.parametrize("num_workers", [0, 2])
def test_with_and_again(num_workers: int) -> None:
    expected = [batch[1] for batch in Torchs(Samples(40, image), batch_size=4)]
    with new("rows", num_workers) as loader:
        assert_same([batch[1] for batch in loader], expected)
    assert_same([batch[1] for batch in loader], expected)
    with loader, loader:
        next(iter(loader))
    assert_same([batch[1] for batch in loader], expected)
    loader.close()


def test_workers_end_with_the_epoch_unless_they_persist() -> None:
    before = set(leak_guard._everything())
    loader = new("rows")
    drain(loader)
    assert left_since(before, ("process", "thread")) == {}
    persistent = new("persistent")
    drain(persistent)
    assert len(left_since(before, ("process",))) == 2
    persistent.close()


def test_no_thread_in_the_parent_while_loading() -> None:
    before = set(leak_guard._everything())
    batches = iter(new("rows"))
    next(batches)
    assert left_since(before, ("thread",)) == {}


@pytest.mark.parametrize("road", ["rows", "parcels", "stream"])
def test_only_what_the_user_holds_stays_mapped(road: str) -> None:
    before = set(leak_guard._everything())
    loader = new(road)
    kept = drain(loader)
    loader.close()
    assert left_since(before, ("process", "thread")) == {}
    assert_same(kept, drain(Ours(loader.dataset, batch_size=4, collate_fn=loader.collate_fn, num_workers=2 if road == "stream" else 0)))
    del kept
    gc.collect()
    assert left_since(before) == {}


PROGRAM = """
import os, signal, sys, torch, antifreeze
class Data(torch.utils.data.Dataset):
    def __len__(self): return 1000
    def __getitem__(self, index): return torch.ones(8) * index, os.getpid()
loader = antifreeze.DataLoader(Data(), batch_size=4, num_workers=2)
pids = set()
for epoch in range(2):
    batches = iter(loader)
    kept = [next(batches) for _ in range(9)]
    pids |= {{worker.pid for worker in batches.pool.crew.workers}}
print(*pids, flush=True)
{end}
"""
ENDS = {
    "exits in the loop": "sys.exit(3)",
    "is killed": "os.kill(os.getpid(), signal.SIGKILL)",
}


@pytest.mark.parametrize("end", list(ENDS))
def test_nothing_outlives_the_process(end: str, tmp_path: Path) -> None:
    """Whatever its end: no worker, no name in shared memory, no temporary file."""
    program = [sys.executable, "-c", PROGRAM.format(end=ENDS[end])]
    done = subprocess.run(program, capture_output=True, text=True, timeout=150, check=False, env={**os.environ, "TMPDIR": str(tmp_path)})
    pids = [int(word) for word in done.stdout.split()]
    assert len(pids) == 4, done.stderr
    deadline = time.monotonic() + 100
    while any(psutil.pid_exists(pid) for pid in pids) and time.monotonic() < deadline:
        time.sleep(0.01)
    assert [pid for pid in pids if psutil.pid_exists(pid)] == []
    theirs = {*map(str, pids)}  # other tests, beside these, have names of their own there
    assert [name for name in os.listdir("/dev/shm") if "antifreeze" in name or theirs & {*re.findall(r"\d+", name)}] == []
    assert list(tmp_path.iterdir()) == []
    if end == "exits in the loop":
        assert done.stderr == ""
    if end == "is killed":
        assert done.returncode == -signal.SIGKILL


# --- a batch is the user's own ---


@pytest.mark.parametrize("num_workers", [0, 1, 2])
@pytest.mark.parametrize("collate_fn", [None, words], ids=["rows", "parcels"])
def test_kept_batches_stay_as_they_were(num_workers: int, collate_fn: Any) -> None:
    loader = Ours(Samples(120, image), batch_size=3, num_workers=num_workers, collate_fn=collate_fn)
    first, second = drain(loader), drain(loader)
    expected = drain(Torchs(Samples(120, image), batch_size=3, collate_fn=collate_fn))
    assert_same(first, expected)
    assert_same(second, expected)


@pytest.mark.parametrize("num_workers", [0, 2])
def test_a_change_in_place_stays_in_its_batch(num_workers: int) -> None:
    store = torch.arange(240.0).reshape(60, 4)
    kept = []
    for batch in Ours(store, batch_size=3, num_workers=num_workers):
        kept.append(batch.clone())
        batch.fill_(-1)
    assert_same(torch.cat(kept), torch.arange(240.0).reshape(60, 4))
    assert_same(store, torch.arange(240.0).reshape(60, 4))


PIECES: dict[str, Callable[[torch.Tensor], Any]] = {
    "the batch": lambda x: x,
    "a row": lambda x: x[1],
    "a transposed view": lambda x: x.transpose(0, 3),
    "one number": lambda x: x[0, 0, 0, 0],
    "rows": lambda x: list(x.unbind()),
    "numpy": lambda x: x.numpy(),
    "a piece of numpy": lambda x: x.numpy()[1:, 0],
    "a memoryview": lambda x: memoryview(x.numpy()).cast("B"),
    "detached": lambda x: x.detach(),
    "the storage": lambda x: x.untyped_storage(),
    "dlpack": torch.utils.dlpack.to_dlpack,
    "a tensor of the storage": lambda x: torch.empty(0).set_(x.untyped_storage(), 0, x.shape),
}


@pytest.mark.filterwarnings("ignore:TypedStorage is deprecated")
def test_any_piece_of_a_batch_keeps_it_alive() -> None:
    """The batch itself is dropped, so its slot would be written again if nobody watched over the piece."""

    def value(kept: Any) -> float:
        if isinstance(kept, list):
            return float(kept[0].mean())
        if isinstance(kept, (memoryview, torch.UntypedStorage)):
            return float(torch.frombuffer(bytearray(bytes(kept)), dtype=torch.float32).mean())
        return float(torch.utils.dlpack.from_dlpack(kept).mean()) if "apsule" in repr(type(kept)) else float(kept.mean())

    names = [name for name in PIECES for _ in range(8)]  # eight batches in a row: more than are in flight
    dataset = Samples(2 * len(names), lambda index: (torch.full((2, 3, 4), float(index // 2)), index))
    kept = []
    for name, (x, _) in zip(names, Ours(dataset, batch_size=2, num_workers=2), strict=True):
        kept.append(PIECES[name](x))
        del x
    for number, (name, each) in enumerate(zip(names, kept, strict=True)):
        assert value(each) == number, name


def saved_and_loaded(x: torch.Tensor) -> torch.Tensor:
    file = io.BytesIO()
    torch.save(x, file)
    file.seek(0)
    return torch.load(file, weights_only=True)


OPERATIONS: dict[str, Callable[[torch.Tensor], Any]] = {
    "add in place": lambda x: x.add_(1),
    "grow": lambda x: x.resize_(4, 3, 8).shape,
    "shrink": lambda x: x.resize_(1, 3),
    "unsqueeze in place": lambda x: x.unsqueeze_(0),
    "transpose in place": lambda x: x.transpose_(0, 1),
    "requires grad": lambda x: x.requires_grad_(),
    "requires grad, and backward": lambda x: (x.requires_grad_().sum().backward(), x.grad)[1],
    "set data": lambda x: setattr(x, "data", torch.ones(1)) or x,
    "share": lambda x: x.share_memory_().is_shared(),
    "deepcopy": copy.deepcopy,
    "pickle": lambda x: pickle.loads(pickle.dumps(x)),
    "save": saved_and_loaded,
    "numpy": lambda x: x.numpy(),
    "numpy, written": lambda x: x.numpy().__setitem__(0, 5) or x,
    "is contiguous": lambda x: x.is_contiguous(),
    "storage offset": lambda x: x.storage_offset(),
    "detach in place": lambda x: x.detach_(),
    "write under autograd": lambda x: x.requires_grad_().detach().add_(1),
    "size of its storage": lambda x: x.untyped_storage().nbytes(),
    "attribute": lambda x: setattr(x, "note", 7) or x.note,
    "aligned for vector code": lambda x: x.data_ptr() % 64,
}


@pytest.mark.parametrize("num_workers", [0, 2])
def test_a_batch_bears_what_torchs_bears(num_workers: int) -> None:
    def done(cls: Any) -> dict[str, Any]:
        dataset = Samples(2 * len(OPERATIONS), lambda index: (torch.full((3, 4), float(index)), index))
        return {name: outcome(name, x) for name, (x, _) in zip(OPERATIONS, cls(dataset, 2, num_workers=num_workers), strict=True)}

    def outcome(name: str, x: torch.Tensor) -> Any:
        try:
            return OPERATIONS[name](x)
        except Exception as error:
            return type(error)

    assert_same(done(Ours), done(Torchs))
