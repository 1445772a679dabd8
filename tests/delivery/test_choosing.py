"""How many workers "auto" has places for."""

from __future__ import annotations

import pytest

from antifreeze.delivery.choosing import places_for
from antifreeze.linux import resource
from antifreeze.tuning.setting import Kind


@pytest.mark.parametrize(
    ("kind", "files", "ranks", "are_forked", "places"),
    [
        pytest.param(Kind.PROCESS, 1 << 20, None, True, 256, id="hundreds may wait at the same time"),
        pytest.param(Kind.PROCESS, -1, None, True, 256, id="open files without a limit"),
        pytest.param(Kind.PROCESS, 1024, None, True, 128, id="most open files are left to the user"),
        pytest.param(Kind.PROCESS, 4, None, True, 1, id="one there always is"),
        pytest.param(Kind.PROCESS, 1 << 20, "2", True, 128, id="two ranks share them"),
        pytest.param(Kind.PROCESS, 1 << 20, "8", True, 64, id="of many ranks each has some"),
        pytest.param(Kind.PROCESS, -1, None, False, 64, id="each a fresh interpreter"),
        pytest.param(Kind.THREAD, 4, "8", True, 256, id="threads have no files"),
    ],
)
def test_places(kind: Kind, files: int, ranks: str | None, are_forked: bool, places: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda which: (files, files))
    if ranks is None:
        monkeypatch.delenv("LOCAL_WORLD_SIZE", raising=False)
    else:
        monkeypatch.setenv("LOCAL_WORLD_SIZE", ranks)
    assert places_for(kind, are_forked) == places
