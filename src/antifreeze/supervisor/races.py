"""Who runs beside whom, and who has lost but not ended. Pure."""

from __future__ import annotations

from typing import Any

from antifreeze.supervisor.tasks import Task


class Races:
    def __init__(self) -> None:
        self.losers: dict[int, int] = {}
        """Tasks nobody waits for any more, and the slot each may still write to."""
        self._hedges: dict[int, Task] = {}
        self._beside: dict[int, int] = {}
        self._bad_rows: dict[int, dict[int, Any]] = {}

    def __repr__(self) -> str:
        return f"<Races {len(self._hedges)} running, {len(self.losers)} lost and not ended>"

    def begin(self, task: int, hedge: Task) -> None:
        self._hedges[task] = hedge
        self._beside[hedge.number] = task

    def hedge_of(self, task: int) -> Task | None:
        return self._hedges.get(task)

    def is_hedge(self, task: int) -> bool:
        return task in self._beside

    def note_bad_row(self, hedge: int, row: int, failure: Any) -> None:
        self._bad_rows.setdefault(hedge, {})[row] = failure

    def end(self, hedge: int) -> tuple[int, dict[int, Any]]:
        """The task it ran beside, and the rows that were bad in it."""
        task = self._beside.pop(hedge)
        del self._hedges[task]
        return task, self._bad_rows.pop(hedge, {})

    def lose(self, task: int, slot: int) -> None:
        self.losers[task] = slot

    def writes_to(self, slot: int) -> bool:
        return slot in self.losers.values()

    def hedges(self) -> list[Task]:
        return list(self._hedges.values())

    def clear(self) -> None:
        self.losers.clear()
        self._hedges.clear()
        self._beside.clear()
        self._bad_rows.clear()
