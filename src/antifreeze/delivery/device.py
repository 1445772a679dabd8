"""Batches on the device: copied from page-locked slots on a stream of our own, ahead of the loop.

    host batch ──send──▶ copy on the side stream ──▶ event ──hand_out──▶ the current stream waits for the event ──▶ the user

1. The host batch (and so its slot) is held until its copy is done.
2. What is handed out is ready for the stream that is current at that moment, and its memory is known to be used there.
3. At most MOST_PENDING copies are under way: then the oldest is waited for.
4. Tensors move, and whatever has a `to` method of its own; everything else stays as it is, classes too.
5. Where there is no side stream, every copy is waited for.
"""

from __future__ import annotations

import copy
import gc
import os
import types
import weakref
from array import array
from collections import UserList, deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from antifreeze.batching.fields import mapping_like
from antifreeze.delivery.side_stream import side_stream, with_index
from antifreeze.parts import Reach

MOST_PENDING = 2
AHEAD = 1
"""Batches whose copy is issued before the loop asks for them."""

_PLAIN = frozenset((str, bytes, int, float, bool, type(None)))
_LEADS_NOWHERE = (str, bytes, int, float, bool, type, types.ModuleType, types.FunctionType, types.CodeType)
_MOST_WITHIN = 10_000


@dataclass
class Sent:
    """A batch whose copy was issued; `position` is whatever the sender wants back with it."""

    batch: Any
    event: Any
    position: Any = None


class DeviceFeed:
    def __init__(self, device: torch.device) -> None:
        self.device = with_index(device)
        self._side = side_stream(self.device)
        self._pending: deque[tuple[Any, Any]] = deque()
        self._pid = os.getpid()
        if self._side is not None and device.type != "cuda":  # there, slots have their mark, and torch's pinned memory its own
            weakref.finalize(self, _wait_for, self._pending, self._pid).atexit = False

    @property
    def pins(self) -> bool:
        """Whether copies to it are faster, and asynchronous, from pinned memory."""
        return self._side is not None

    def send(self, batch: Any, position: Any = None) -> Sent:
        side = self._side
        if side is None:
            return Sent(moved(batch, self.device, non_blocking=False), None, position)
        with side.chosen(side.stream):
            try:
                on_device = moved(batch, self.device)
            finally:  # where it fails half-way, some of it is on its way
                event = side.stream.record_event()
                self._pending.append((event, batch))
        self._let_go()
        return Sent(on_device, event, position)

    def hand_out(self, sent: Sent) -> Any:
        if self._side is not None and sent.event is not None:
            current = self._side.current(self.device)
            current.wait_event(sent.event)
            note_use(sent.batch, current)
        return sent.batch

    def _let_go(self) -> None:
        while self._pending and (len(self._pending) > MOST_PENDING or self._pending[0][0].query()):
            event, _ = self._pending[0]
            event.synchronize()
            self._pending.popleft()

    def close(self) -> None:
        """May be called twice."""
        _wait_for(self._pending, self._pid)


def _wait_for(pending: deque[tuple[Any, Any]], pid: int) -> None:
    """Until the copies are done; what a forked child has of them is its parent's affair."""
    while pending:
        if pid == os.getpid():
            pending[0][0].synchronize()
        pending.popleft()


def moved(part: Any, device: torch.device, non_blocking: bool = True) -> Any:
    """The same tree with its tensors on the device."""
    if isinstance(part, (torch.Tensor, torch.nn.utils.rnn.PackedSequence)):
        return part.to(device, non_blocking=non_blocking)  # type: ignore[arg-type]
    if isinstance(part, (str, bytes, type)):  # the `to` of a class is for its objects
        return part
    if isinstance(part, Mapping):
        values = {key: moved(value, device, non_blocking) for key, value in part.items()}
        return values if type(part) is dict else mapping_like(part, values)
    if isinstance(part, tuple) and hasattr(part, "_fields"):
        return type(part)._make(moved(value, device, non_blocking) for value in part)  # type: ignore[attr-defined]
    if isinstance(part, Sequence) and not hasattr(part, "to"):
        items = [moved(value, device, non_blocking) for value in part]
        return items if type(part) is list else _like(part, items)
    if callable(getattr(part, "to", None)):
        return part.to(device)
    return part


def _like(container: Any, content: list[Any]) -> Any:
    """In a container of the same kind where that can be made."""
    try:
        if not isinstance(container, (list, deque, UserList, array)):  # the copy of another one may write into the host batch
            return type(container)(content)
        like = copy.copy(container)  # it may have more than its items: a greatest length, a type code
        for at, part in enumerate(content):
            like[at] = part
        return like
    except TypeError:
        return content


def note_use(part: Any, stream: Any) -> None:
    """The allocator is told that memory which was made for our stream is used on `stream`, so that a later batch is not put there while
    that one still computes."""
    if isinstance(part, torch.Tensor):
        _note_tensor(part, stream)
    elif type(part) in _PLAIN or isinstance(part, type):
        pass
    elif isinstance(part, Mapping):
        for value in part.values():
            note_use(value, stream)
    elif isinstance(part, tuple) or (isinstance(part, Sequence) and not isinstance(part, (str, bytes)) and not hasattr(part, "to")):
        for value in part:
            note_use(value, stream)
    elif callable(getattr(part, "record_stream", None)):
        part.record_stream(stream)
    elif callable(getattr(part, "to", None)):
        for tensor in tensors_within(part):
            _note_tensor(tensor, stream)


def _note_tensor(tensor: torch.Tensor, stream: Any) -> None:
    if tensor.is_cpu:  # a `to` of the user's own may leave some there
        return
    if tensor.layout is torch.strided:
        tensor.record_stream(stream)
    else:  # a sparse one has no memory but that of its parts
        for part in sparse_parts(tensor):
            part.record_stream(stream)


def sparse_parts(tensor: torch.Tensor) -> list[torch.Tensor]:
    if tensor.layout is torch.sparse_coo:
        return [tensor._indices(), tensor._values()]
    if tensor.layout in (torch.sparse_csr, torch.sparse_bsr):
        return [tensor.crow_indices(), tensor.col_indices(), tensor.values()]
    return [tensor.ccol_indices(), tensor.row_indices(), tensor.values()]


def tensors_within(whole: Any) -> list[torch.Tensor]:
    """Of an object of the user's own: whatever Python's garbage collector can see in it."""
    reach = Reach(whole, _LEADS_NOWHERE, _MOST_WITHIN)
    for part in reach.found:
        if not isinstance(part, torch.Tensor):
            reach.add(gc.get_referents(part))
    return [part for part in reach.found if isinstance(part, torch.Tensor)]
