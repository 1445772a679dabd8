"""A stream of our own on a device: torch.cuda's, or any accelerator's as torch.accelerator has it.

1. A device without an index is the one that is current when this is asked, whichever is current later.
2. What has no such stream (torch before 2.7 for all but CUDA, a backend without streams, events or record_stream) is told by None:
   whoever copies there waits for every copy.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch


@dataclass(frozen=True)
class SideStream:
    stream: Any
    chosen: Callable[[Any], Any]
    """`with chosen(stream)`: on its device, what is issued goes there."""
    current: Callable[[torch.device], Any]


def with_index(device: torch.device) -> torch.device:
    return device if device.index is not None else torch.empty(0, device=device).device


def side_stream(device: torch.device) -> SideStream | None:
    if device.type == "cuda":
        return SideStream(torch.cuda.Stream(device), torch.cuda.stream, torch.cuda.current_stream)  # type: ignore[no-untyped-call]
    if not _is_accelerator(device) or not hasattr(torch.Stream, "__enter__"):
        return None
    try:
        stream = torch.Stream(device)
        with stream:
            torch.empty(1, device=device).record_stream(stream)
        stream.record_event().synchronize()
    except (RuntimeError, TypeError):  # each backend has its own words for what it has not
        return None
    return SideStream(stream, _itself, torch.accelerator.current_stream)


def _is_accelerator(device: torch.device) -> bool:
    """Of a kind that torch.accelerator, where this torch has it, speaks of."""
    known = torch.accelerator.current_accelerator() if hasattr(torch, "accelerator") else None
    return known is not None and known.type == device.type


def _itself(stream: Any) -> Any:
    return stream
