"""Which sample of a batch does not fit the others, and how it differs: for the message of an error that collating them raised."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable
from typing import Any

import torch

from antifreeze.naming import shown
from antifreeze.torch_private import default_collate

_SIZES = re.compile(r"\[[\d, ]*\]")
_PADS = "; collate_fn=antifreeze.Pad() fills samples of different sizes up to the largest of their batch"


def odd_one(samples: list[Any], collate_fn: Callable[[Any], Any], of_two: int = 0) -> tuple[int, str] | None:
    """Its row, and how it differs; None where that cannot be told. `of_two`: where as many are of one kind as of another, which of these is
    taken for the usual one. Were it always the same, an odd sample in its place would drive out every one that comes beside it."""
    if not samples:
        return None
    try:
        usual = _usual(samples, collate_fn, of_two)
        row = _differing(samples, usual)
        if collate_fn is default_collate:  # which takes some that differ, and refuses some that do not
            row = next((row for row in range(len(samples)) if not _fits(samples, row, usual)), row)
        if row is None:
            return None
        pads = collate_fn is default_collate and _differ_in_size(samples, row, usual)
        return row, _how(samples, row, usual) + (_PADS if pads else "")
    except Exception:  # a shape that cannot be had, or no end of them: the error at hand is the one to tell
        return None


def _usual(samples: list[Any], collate_fn: Callable[[Any], Any], of_two: int) -> Any:
    """A sample like most of them. Were it always the first, one that is odd itself would make all others the odd ones."""
    can_be = [sample for sample in samples if sample is not None and (collate_fn is not default_collate or _collates(sample))] or samples
    outlines = [_outline(sample) for sample in can_be]
    counts = Counter(outlines)
    usual = [outline for outline, count in counts.items() if count == max(counts.values())]
    return can_be[outlines.index(usual[of_two % len(usual)])]


def _differing(samples: list[Any], usual: Any) -> int | None:
    """The first sample that has another structure; None where none has."""
    outline = _outline(usual)
    return next((row for row, sample in enumerate(samples) if sample is None or _outline(sample) != outline), None)


def _fits(samples: list[Any], row: int, usual: Any) -> bool:
    """Beside the usual one, and in its place: default_collate takes the keys and the types of a batch from the first sample."""
    return _collates(usual, samples[row]) if row else _collates(samples[row], usual)


def _collates(*samples: Any) -> bool:
    try:
        default_collate(list(samples))
    except Exception:
        return False
    return True


def _how(samples: list[Any], row: int, usual: Any) -> str:
    if samples[row] is None:
        return "it is None"
    outline, usual_outline = _outline(samples[row]), _outline(usual)
    if outline == usual_outline:
        return "it cannot be collated even alone"
    others = "the batch's first sample is" if usual_outline == _outline(samples[0]) else "most of the batch are"
    return f"it is {outline}, but {others} {usual_outline}"


def _differ_in_size(samples: list[Any], row: int, usual: Any) -> bool:
    """And in nothing else: what Pad is for."""
    outline, usual_outline = _outline(samples[row]), _outline(usual)
    return outline != usual_outline and _SIZES.sub(_dimensions, outline) == _SIZES.sub(_dimensions, usual_outline)


def _dimensions(sizes: re.Match[str]) -> str:
    return "," * (sizes[0].count(",") + (sizes[0] != "[]"))


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
