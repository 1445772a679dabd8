"""Texts beside tensors: each in a cell of fixed width, so that a batch of pictures with their paths is rows like any other.

    "a/1.jpg"  ──▶  | a | / | 1 | . | j | p | g | 0 | 0 … |      str: four bytes a character, bytes: one

1. The width is the same for all: workers that never spoke agree on it.
2. A text that is longer, or ends in the character that fills the cell up, does not fit; its batch is collated as a whole then.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

WIDTH = 256
"""Characters, or bytes."""

CELLS: dict[type, tuple[torch.dtype, str]] = {str: (torch.int32, f"U{WIDTH}"), bytes: (torch.uint8, f"S{WIDTH}")}
"""What a column of cells is, as a tensor of numbers and as numpy's texts."""

_FILLS: dict[type, Any] = {str: "\0", bytes: b"\0"}


def fits(kind: Any, text: Any) -> bool:
    return type(text) is kind and len(text) <= WIDTH and not text.endswith(_FILLS[kind])


def write(kind: type, cells: torch.Tensor, texts: Sequence[Any]) -> None:
    """All of them fit."""
    _as_texts(kind, cells)[:] = texts


def read(kind: type, cells: torch.Tensor) -> list[Any]:
    texts: list[Any] = _as_texts(kind, cells).tolist()
    return texts


def _as_texts(kind: type, cells: torch.Tensor) -> Any:
    return cells.numpy().view(np.dtype(CELLS[kind][1])).reshape(len(cells))
