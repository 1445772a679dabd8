"""The vocabulary of what happens while loading, as the story tells it and the report counts it."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from enum import Enum


class Happening(Enum):
    WORKER_STARTED = "worker started"
    WORKER_ENDED = "worker ended"
    STALL = "stall"
    DEADLINE = "deadline"
    HEDGE = "hedge"
    STREAM = "stream"
    BAD_SAMPLE = "bad sample"
    GAVE_UP = "gave up"


@dataclass(frozen=True)
class StoryLine:
    at_s: float
    what: Happening
    text: str

    def __str__(self) -> str:
        return f"{self.at_s:8.2f} s  {self.what.value}: {self.text}"


class Story:
    """The last things that happened, oldest first; bounded."""

    def __init__(self, most: int = 200) -> None:
        self._lines: deque[StoryLine] = deque(maxlen=most)
        self.began_s: float | None = None  # by whose clock it is told: that of the first pool, whatever pools follow

    def tell(self, at_s: float, what: Happening, text: str) -> None:
        self._lines.append(StoryLine(at_s, what, text))

    def lines(self) -> list[StoryLine]:
        return list(self._lines)

    def __str__(self) -> str:
        return "\n".join(map(str, self._lines))
