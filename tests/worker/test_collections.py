"""A garbage collection in a worker would touch, and so copy, every page it inherited: there is none before those are set aside."""

from __future__ import annotations

import gc

import pytest
from torch.utils.data import Dataset, get_worker_info

import antifreeze


class Collecting(Dataset[tuple[bool, bool, bool]]):
    """(whether collections were on while the worker was made ready, whether they are on now, whether what was inherited is set aside)."""

    during_start = True

    def __getitem__(self, index: int) -> tuple[bool, bool, bool]:
        return self.during_start, gc.isenabled(), gc.get_freeze_count() > 0

    def __len__(self) -> int:
        return 2


def look(number: int) -> None:
    get_worker_info().dataset.during_start = gc.isenabled()


@pytest.mark.parametrize("enabled", [True, False])
def test_workers_collect_only_what_is_their_own_and_only_where_the_parent_does(enabled: bool) -> None:
    was = gc.isenabled()
    (gc.enable if enabled else gc.disable)()
    try:
        with antifreeze.DataLoader(Collecting(), batch_size=2, num_workers=1, worker_init_fn=look) as loader:
            (batch,) = [[part.tolist() for part in parts] for parts in loader]
    finally:
        (gc.enable if was else gc.disable)()
    assert batch == [[False, False], [enabled, enabled], [True, True]]
