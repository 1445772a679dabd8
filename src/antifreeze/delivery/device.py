"""Batches on the device: copied from page-locked slots on a stream of our own, ahead of the loop.

    host batch ──send──▶ copy on the side stream ──▶ event ──hand_out──▶ the current stream waits for the event ──▶ the user

1. The host batch (and so its slot) is held until its copy is done.
2. What is handed out is ready for the stream that is current at that moment, and its memory is known to be used there.
3. At most MOST_PENDING copies are under way: then the oldest is waited for.
4. Tensors move, and whatever has a `to` method of its own; everything else stays as it is.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

MOST_PENDING = 2
AHEAD = 1
"""Batches whose copy is issued before the loop asks for them."""


@dataclass
class Sent:
    """A batch whose copy was issued; `position` is whatever the sender wants back with it."""

    batch: Any
    event: Any
    position: Any = None


class DeviceFeed:
    def __init__(self, device: torch.device) -> None:
        self.device = device
        self._stream: Any = torch.cuda.Stream(device) if device.type == "cuda" else None  # type: ignore[no-untyped-call]
        self._pending: deque[tuple[Any, Any]] = deque()

    @property
    def pins(self) -> bool:
        """Whether copies to it are faster, and asynchronous, from pinned memory."""
        return self._stream is not None

    def send(self, batch: Any, position: Any = None) -> Sent:
        if self._stream is None:
            return Sent(moved(batch, self.device), None, position)
        with torch.cuda.stream(self._stream):
            on_device = moved(batch, self.device)
            event = self._stream.record_event()
        self._pending.append((event, batch))
        self._let_go()
        return Sent(on_device, event, position)

    def hand_out(self, sent: Sent) -> Any:
        if sent.event is not None:
            current = torch.cuda.current_stream(self.device)
            current.wait_event(sent.event)
            each_tensor(sent.batch, lambda tensor: tensor.record_stream(current) if tensor.is_cuda else None)
        return sent.batch

    def _let_go(self) -> None:
        while self._pending and (len(self._pending) > MOST_PENDING or self._pending[0][0].query()):
            event, _ = self._pending.popleft()
            event.synchronize()

    def close(self) -> None:
        """May be called twice."""
        while self._pending:
            self._pending.popleft()[0].synchronize()


def moved(part: Any, device: torch.device) -> Any:
    """The same tree with its tensors on the device."""
    if isinstance(part, torch.Tensor):
        return part.to(device, non_blocking=True)
    if isinstance(part, torch.nn.utils.rnn.PackedSequence):
        return part.to(device, non_blocking=True)  # type: ignore[arg-type]
    if isinstance(part, (str, bytes)):
        return part
    if isinstance(part, Mapping):
        values = {key: moved(value, device) for key, value in part.items()}
        return values if type(part) is dict else _like(part, values)
    if isinstance(part, tuple) and hasattr(part, "_fields"):
        return type(part)(*(moved(value, device) for value in part))
    if isinstance(part, Sequence) and not hasattr(part, "to"):
        items = [moved(value, device) for value in part]
        return items if type(part) is list else _like(part, items)
    if callable(getattr(part, "to", None)):
        return part.to(device)
    return part


def _like(container: Any, content: Any) -> Any:
    """In a container of the same kind where that can be made."""
    try:
        return type(container)(content)
    except TypeError:
        return content


def each_tensor(part: Any, call: Callable[[torch.Tensor], Any]) -> None:
    if isinstance(part, torch.Tensor):
        call(part)
    elif isinstance(part, Mapping):
        for value in part.values():
            each_tensor(value, call)
    elif isinstance(part, Sequence) and not isinstance(part, (str, bytes)):
        for value in part:
            each_tensor(value, call)
