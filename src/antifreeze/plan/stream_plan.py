"""The plan of an iterable data set: each stream makes its own batches; the streams take turns, those that ended are passed over.

    stream 0:  a0 a1 a2          order delivered:  a0 b0 c0 a1 b1 c1 a2 c2 c3 …
    stream 1:  b0 b1
    stream 2:  c0 c1 c2 c3 …

This is the order torch delivers in: it gives task k to worker k mod n and drops the tasks of workers that have ended.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from antifreeze.plan.letters import from_letters, in_letters


@dataclass(frozen=True)
class StreamProgress:
    """What one stream has delivered; `state` is the data set's own word for it, where it has one. `samples` counts what was drawn,
    bad ones included; `odd` lists the batches that drew another number than they have rows."""

    batches: int = 0
    samples: int = 0
    state: bytes | None = None
    ended: bool = False
    odd: tuple[tuple[int, int], ...] = ()

    def after(self, drawn: int, state: bytes | None, ended: bool, batch_rows: int | None) -> StreamProgress:
        """A batch later; `ended`: its iterator has nothing after it. One that drew nothing was none."""
        if not drawn:
            return replace(self, ended=self.ended or ended)
        plain = drawn == batch_rows or batch_rows is None or ended or state is not None
        odd = self.odd if plain else (*self.odd, (self.batches, drawn))
        return StreamProgress(self.batches + 1, self.samples + drawn, state, ended, odd)

    def as_dict(self) -> dict[str, Any]:
        return {**vars(self), "state": None if self.state is None else in_letters(self.state), "odd": [list(pair) for pair in self.odd]}

    @classmethod
    def from_dict(cls, saved: dict[str, Any]) -> StreamProgress:
        state, odd = saved.get("state"), tuple((batch, drawn) for batch, drawn in saved.get("odd", ()))
        return cls(**{**saved, "state": None if state is None else from_letters(state), "odd": odd})


@dataclass(frozen=True)
class StreamPosition:
    """How far all streams are, and whose turn it is. `had_workers` is False for the one stream of a loader without workers."""

    streams: tuple[StreamProgress, ...]
    turn: int = 0
    had_workers: bool = True

    def delivered(self, stream: int, drawn: int, state: bytes | None, ended: bool, batch_rows: int | None = None) -> StreamPosition:
        return self._with(stream, self.streams[stream].after(drawn, state, ended, batch_rows))

    def ended(self, stream: int) -> StreamPosition:
        return self._with(stream, replace(self.streams[stream], ended=True))

    def _with(self, stream: int, progress: StreamProgress) -> StreamPosition:
        streams = (*self.streams[:stream], progress, *self.streams[stream + 1 :])
        return replace(self, streams=streams, turn=(stream + 1) % len(streams))

    def as_dict(self) -> dict[str, Any]:
        return {
            "streams": [progress.as_dict() for progress in self.streams],
            "turn": self.turn,
            "had_workers": self.had_workers,
        }

    @classmethod
    def from_dict(cls, saved: dict[str, Any]) -> StreamPosition:
        return cls(tuple(map(StreamProgress.from_dict, saved["streams"])), saved["turn"], saved["had_workers"])


class StreamPlan:
    """Whose batch comes next."""

    def __init__(self, position: StreamPosition, batch_rows: int) -> None:
        self.batch_rows = batch_rows
        self._active = [not progress.ended for progress in position.streams]
        self._turn = position.turn
        self._next_number = 0

    def draw(self) -> tuple[int, int] | None:
        """(batch number, stream) of the next batch to ask for; None when all streams have ended."""
        for step in range(len(self._active)):
            stream = (self._turn + step) % len(self._active)
            if self._active[stream]:
                self._turn = (stream + 1) % len(self._active)
                number, self._next_number = self._next_number, self._next_number + 1
                return number, stream
        return None

    def end(self, stream: int) -> None:
        self._active[stream] = False

    def end_all(self) -> None:
        self._active = [False] * len(self._active)
