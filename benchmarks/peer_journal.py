"""What was measured, kept on disk as it comes: a line of JSON per measurement, a file per workload.

1. A run that was interrupted is continued: what a round has already is not measured again.
2. Folders of several runs are read together: the rounds of the later ones follow those of the earlier.
3. A last line that was cut off (the machine went down) is passed over.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from enum import Enum
from pathlib import Path

from peer_child import PeerResult


class Look(str, Enum):
    """What a measurement was for."""

    RATE = "rate"
    RIGHT = "right"


@dataclass(frozen=True)
class Record:
    """One measurement; `result` is None where it failed or was not about a rate, and `error` says what went wrong."""

    look: Look
    title: str
    setting: str
    round: int
    at_s: float
    result: PeerResult | None = None
    error: str = ""
    said: str = ""
    """Of a look at whether batches are right: what was found."""


class Journal:
    """Of one folder, or, without one, in memory only."""

    def __init__(self, folder: Path | None) -> None:
        self._folder = folder
        self._records: dict[str, list[Record]] = {}
        if folder:
            folder.mkdir(parents=True, exist_ok=True)

    def of(self, task: str) -> list[Record]:
        if task not in self._records:
            self._records[task] = read(self._folder, task) if self._folder else []
        return self._records[task]

    def add(self, task: str, record: Record) -> None:
        self.of(task).append(record)
        if self._folder:
            with _file(self._folder, task).open("a") as file:
                file.write(json.dumps(asdict(record), ensure_ascii=False) + "\n")

    def machine(self, described: Sequence[str]) -> list[str]:
        """The machine of the first run into this folder."""
        if self._folder is None:
            return list(described)
        path = self._folder / "machine.txt"
        if not path.exists():
            path.write_text("\n".join(described) + "\n")
        return path.read_text().splitlines()


def read(folder: Path, task: str) -> list[Record]:
    path = _file(folder, task)
    found = []
    for line in path.read_text().splitlines() if path.exists() else []:
        try:
            kept = json.loads(line)
        except ValueError:  # cut off
            continue
        result = PeerResult(**kept.pop("result")) if kept["result"] else kept.pop("result")
        found.append(Record(**{**kept, "look": Look(kept["look"])}, result=result))
    return found


def read_all(folders: Sequence[Path], task: str) -> list[Record]:
    """Of several runs, with rounds of their own."""
    found: list[Record] = []
    for folder in folders:
        first = max((record.round for record in found), default=-1) + 1
        found += [Record(**{**vars(record), "round": first + record.round}) for record in read(folder, task)]
    return found


def _file(folder: Path, task: str) -> Path:
    return folder / f"{task}.jsonl"
