"""Whether a sample is what it was: values, types and shapes, not the bytes of a pickle (in which equal samples may differ)."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch


def difference(was: Any, now: Any) -> str:
    """Where they differ, and how; empty where they do not, or where it cannot be told."""
    try:
        return _difference(was, now, "")
    except RecursionError:
        return ""


def _difference(was: Any, now: Any, at: str) -> str:
    place = f"at {at} " if at else "as a whole "
    if type(was) is not type(now):
        return f"{place}it was {type(was).__qualname__}, and is {type(now).__qualname__}"
    if isinstance(was, (torch.Tensor, np.ndarray)):
        return _of_arrays(was, now, place, at)
    if isinstance(was, dict):
        if was.keys() != now.keys():
            return f"{place}it had the keys {list(was)!r:.100}, and has {list(now)!r:.100}"
        return next(filter(None, (_difference(was[key], now[key], f"{at}[{key!r}]") for key in was)), "")
    if isinstance(was, (list, tuple)):
        if len(was) != len(now):
            return f"{place}it had {len(was)} parts, and has {len(now)}"
        return next(filter(None, (_difference(*both, f"{at}[{number}]") for number, both in enumerate(zip(was, now, strict=True)))), "")
    try:
        if was == now or (was != was and now != now):  # noqa: PLR0124 - a nan
            return ""
        if getattr(type(was), "__eq__", None) is not object.__eq__:
            return f"{place}it was {was!r:.60}, and is {now!r:.60}"
    except Exception:
        pass  # of objects that hold tensors, say
    return _difference(getattr(was, "__dict__", {}), getattr(now, "__dict__", {}), at)


def _of_arrays(was: Any, now: Any, place: str, at: str) -> str:
    if (was.dtype, was.shape) != (now.dtype, now.shape):
        return f"{place}it was {was.dtype}{list(was.shape)}, and is {now.dtype}{list(now.shape)}"
    if isinstance(was, np.ndarray) and was.dtype.hasobject:
        return _difference(was.tolist(), now.tolist(), at)
    return "" if _bits(was) == _bits(now) else f"{place}the values are others"


def _bits(values: Any) -> Any:
    if isinstance(values, np.ndarray):
        return values.tobytes()
    plain = values.detach().as_subclass(torch.Tensor)
    if plain.layout is not torch.strided or plain.is_quantized or plain.is_nested:
        return None  # it cannot be told
    return plain.cpu().resolve_conj().resolve_neg().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes() if plain.numel() else b""
