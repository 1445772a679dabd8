"""Memory of batches that the loop makes itself, with num_workers="auto"."""

from __future__ import annotations

import subprocess
import sys

import pytest

from antifreeze.delivery import kept_memory
from antifreeze.delivery.kept_memory import LOOKS, MANY_FAULTS, KeptMemory


class Kernel:
    """Counts faults as it is told to."""

    RUSAGE_SELF = 0

    def __init__(self) -> None:
        self.ru_minflt = 0

    def getrusage(self, who: int) -> Kernel:
        return self


@pytest.fixture
def kernel(monkeypatch: pytest.MonkeyPatch) -> Kernel:
    counts = Kernel()
    monkeypatch.setattr(kept_memory, "resource", counts)
    return counts


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """What the C library was told to keep."""
    bytes_kept: list[int] = []
    monkeypatch.setattr(kept_memory, "keep_freed_memory", lambda most_bytes: bytes_kept.append(most_bytes) or True)
    return bytes_kept


def looks(memory: KeptMemory, kernel: Kernel, faults_a_batch: list[int]) -> list[bool]:
    made, changed = 0, [memory.look(0)]
    for faults in faults_a_batch:
        made += 10
        kernel.ru_minflt += 10 * faults
        changed.append(memory.look(made))
    return changed[1:]


def test_many_faults_look_after_look_and_memory_is_kept_once(kernel: Kernel, told: list[int]) -> None:
    memory = KeptMemory(allowed=True)
    assert looks(memory, kernel, [460] * (LOOKS + 5)) == [False] * (LOOKS - 1) + [True] + [False] * 5
    assert told == [kept_memory.KEPT_BYTES]
    assert memory.kept_because == "460 page faults a batch"


@pytest.mark.parametrize(
    "faults",
    [
        pytest.param([MANY_FAULTS - 1] * 20, id="few"),
        pytest.param([10_000, 0, 10_000, 10_000, 0] * 5, id="now and then: memory that grows, say"),
    ],
)
def test_what_is_no_reason(kernel: Kernel, told: list[int], faults: list[int]) -> None:
    assert not any(looks(KeptMemory(allowed=True), kernel, faults)) and not told


def test_not_where_memory_is_scarce(kernel: Kernel, told: list[int]) -> None:
    assert not any(looks(KeptMemory(allowed=False), kernel, [460] * 20)) and not told


def test_batches_of_others_are_not_counted(kernel: Kernel, told: list[int]) -> None:
    memory = KeptMemory(allowed=True)
    memory.look(0)
    for made in range(1, 20):
        kernel.ru_minflt += 10_000
        memory.look_away()
        assert not memory.look(made)
    assert not told


PROGRAM = """
import resource, time, torch, antifreeze

class Strings(torch.utils.data.Dataset):  # no rows: each batch is memory of the C library's
    def __len__(self):
        return 1 << 20
    def __getitem__(self, index):
        return torch.zeros(3000), "name"

def freshly(samples):  # as a loop that holds several batches does it to the heap: everything is given back in between
    batch = torch.utils.data.default_collate(samples)
    antifreeze.linux.give_free_memory_back() if not LOADER._ledger.keeps_memory else None
    return batch

LOADER = antifreeze.DataLoader(Strings(), batch_size=128, num_workers="auto", collate_fn=freshly)
enough = time.monotonic() + 60
for batch in LOADER:
    if LOADER._ledger.keeps_memory or time.monotonic() > enough:
        break
report = LOADER.report()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
blocks = [torch.zeros(1 << 20) for _ in range(20)]
del blocks
after = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
blocks = [torch.zeros(1 << 20) for _ in range(20)]
again = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
print(report.keeps_memory, after - before > 10_000, again - after < 5_000)  # a block or two may fit no hole: 1025 faults each
print("your process keeps what it frees" in str(report))
"""


def test_a_loop_whose_batches_fault_in_their_memory_keeps_it() -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 0, done.stderr
    kept, said = done.stdout.splitlines()
    assert "page faults a batch True True" in kept and said == "True", done.stdout
