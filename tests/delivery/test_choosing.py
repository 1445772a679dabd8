"""How many workers "auto" has places for."""

from __future__ import annotations

from typing import Any

import pytest

from antifreeze import DataLoader
from antifreeze.delivery import choosing
from antifreeze.delivery.choosing import FILES_FOR_EACH, places_for
from antifreeze.descriptors import open_now
from antifreeze.linux import resource
from antifreeze.tuning.setting import Kind


@pytest.mark.parametrize(
    ("kind", "files", "opened", "ranks", "are_forked", "places"),
    [
        pytest.param(Kind.PROCESS, 1 << 20, 9, None, True, 256, id="hundreds may wait at the same time"),
        pytest.param(Kind.PROCESS, -1, 9, None, True, 256, id="open files without a limit"),
        pytest.param(Kind.PROCESS, 1024, 0, None, True, 64, id="most open files are left to the user"),
        pytest.param(Kind.PROCESS, 1024, 464, None, True, 35, id="another loader has as many workers as it may"),
        pytest.param(Kind.PROCESS, 1024, 1024, None, True, 1, id="one there always is"),
        pytest.param(Kind.PROCESS, 1 << 20, 9, "2", True, 128, id="two ranks share them"),
        pytest.param(Kind.PROCESS, 1 << 20, 9, "8", True, 64, id="of many ranks each has some"),
        pytest.param(Kind.PROCESS, -1, 9, None, False, 64, id="each a fresh interpreter"),
        pytest.param(Kind.THREAD, 4, 9, "8", True, 256, id="threads have no files"),
    ],
)
def test_places(
    kind: Kind, files: int, opened: int, ranks: str | None, are_forked: bool, places: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda which: (files, files))
    monkeypatch.setattr(choosing, "open_now", lambda: opened)
    if ranks is None:
        monkeypatch.delenv("LOCAL_WORLD_SIZE", raising=False)
    else:
        monkeypatch.setenv("LOCAL_WORLD_SIZE", ranks)
    assert places_for(kind, are_forked) == places


@pytest.mark.parametrize("context", ["fork", "spawn"])
def test_a_worker_has_less_than_half_of_the_open_files_that_are_counted_for_it(context: str) -> None:
    """Two loaders with 128 workers each had all 1024 of them, and the user's own open() failed."""

    def more(workers: int) -> int:
        with DataLoader(range(100), num_workers=workers, multiprocessing_context=context) as loader:
            batches: Any = iter(loader)
            next(batches)
            return open_now()

    assert more(3) - more(1) <= 2 * FILES_FOR_EACH / 2
