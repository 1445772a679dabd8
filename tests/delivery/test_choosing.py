"""How many workers "auto" has places for."""

from __future__ import annotations

import multiprocessing

import pytest

from antifreeze.delivery.choosing import places_for
from antifreeze.linux import resource
from antifreeze.tuning.setting import Kind


@pytest.mark.parametrize(
    ("kind", "files", "ranks", "places"),  # None: not among ranks
    [
        pytest.param(Kind.PROCESS, 1 << 20, None, 256, id="hundreds may wait at the same time"),
        pytest.param(Kind.PROCESS, -1, None, 256, id="open files without a limit"),
        pytest.param(Kind.PROCESS, 1024, None, 128, id="most open files are left to the user"),
        pytest.param(Kind.PROCESS, 4, None, 1, id="one there always is"),
        pytest.param(Kind.PROCESS, 1 << 20, "2", 128, id="two ranks share them"),
        pytest.param(Kind.PROCESS, 1 << 20, "8", 64, id="of many ranks each has some"),
        pytest.param(Kind.THREAD, 4, "8", 256, id="threads have no files"),
    ],
)
def test_places(kind: Kind, files: int, ranks: str | None, places: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda which: (files, files))
    if ranks is None:
        monkeypatch.delenv("LOCAL_WORLD_SIZE", raising=False)
    else:
        monkeypatch.setenv("LOCAL_WORLD_SIZE", ranks)
    assert places_for(kind) == places


@pytest.mark.parametrize(("method", "places"), [("fork", 256), ("spawn", 64), ("forkserver", 64)])
def test_fewer_where_each_is_a_fresh_interpreter(method: str, places: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda which: (-1, -1))
    monkeypatch.delenv("LOCAL_WORLD_SIZE", raising=False)
    assert places_for(Kind.PROCESS, multiprocessing.get_context(method)) == places
