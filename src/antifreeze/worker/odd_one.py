"""Which sample of a batch does not fit the others, and how it differs: for the message of an error that collating them raised."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from antifreeze.naming import shown
from antifreeze.torch_private import default_collate


def odd_one(samples: list[Any], collate_fn: Callable[[Any], Any]) -> tuple[int, str] | None:
    """Its row, and how it differs; None where that cannot be told."""
    try:
        odd = _differing(samples)
        if odd is None and collate_fn is default_collate:
            odd = next(((row, "it cannot be collated even alone") for row, sample in enumerate(samples) if not _collates(sample)), None)
    except Exception:  # a shape that cannot be had, or no end of them: the error at hand is the one to tell
        return None
    return odd


def _collates(sample: Any) -> bool:
    try:
        default_collate([sample])
    except Exception:
        return False
    return True


def _differing(samples: list[Any]) -> tuple[int, str] | None:
    """The first sample that differs from the first one in structure, and how; None where none does."""
    if not samples:
        return None
    first = _outline(samples[0])
    for row, sample in enumerate(samples):
        if sample is None:
            return row, "it is None"
        outline = _outline(sample)
        if outline != first:
            return row, f"it is {outline}, but the batch's first sample is {first}"
    return None


def _outline(sample: Any, depth: int = 8) -> str:
    """A sample's structure in a few words: types, dtypes, shapes."""
    if not depth:
        return "…"
    if isinstance(sample, torch.Tensor):
        return f"tensor {str(sample.dtype).removeprefix('torch.')}{list(sample.shape)}"
    if hasattr(sample, "dtype") and hasattr(sample, "shape"):
        return f"{type(sample).__name__} {sample.dtype}{list(sample.shape)}"
    if isinstance(sample, dict):
        return "{" + ", ".join(f"{shown(key)}: {_outline(part, depth - 1)}" for key, part in sample.items()) + "}"
    if isinstance(sample, (tuple, list)):
        return f"{type(sample).__name__}(" + ", ".join(_outline(part, depth - 1) for part in sample) + ")"
    return type(sample).__name__
