"""Whether a sample is what it was: values, types and shapes, not the bytes of a pickle (in which equal samples may differ).

1. Tensors and arrays are equal in dtype, shape and bytes, so a nan is itself; dicts, lists and tuples by their parts.
2. What else says that it is equal is. Where it does not, or cannot say, what it would be pickled as is compared in the same way: an
   object may hold tensors or a nan, and fills its own caches.
3. Nothing is raised: where it cannot be told, there is no difference.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from antifreeze.signals import came_from_signal

_PROTOCOL = 5
_ITERATORS = 3  # of what an object is pickled as: its list items, and its dict items, come after (callable, arguments, state)
_WHOLE = (str, bytes, bytearray, int, float, complex, bool, type(None), range, set, frozenset)


def difference(was: Any, now: Any) -> str:
    """Where they differ, and how; empty where they do not, or where it cannot be told."""
    try:
        return _difference(was, now, "")
    except Exception as error:  # also what ends in no end: a list in itself
        if came_from_signal(error):
            raise
        return ""


def _difference(was: Any, now: Any, at: str) -> str:
    if type(was) is not type(now):
        return f"{_place(at)}it was {type(was).__qualname__}, and is {type(now).__qualname__}"
    if isinstance(was, torch.UntypedStorage):
        was, now = (
            torch.empty(0, dtype=torch.uint8, device="cpu").set_(storage) for storage in (was, now)
        )  # it is pickled with an address
    if isinstance(was, (torch.Tensor, np.ndarray)):
        return _of_arrays(was, now, at)
    if isinstance(was, dict):
        if was.keys() != now.keys():
            return f"{_place(at)}it had the keys {list(was)!r:.100}, and has {list(now)!r:.100}"
        return next(filter(None, (_difference(was[key], now[key], f"{at}[{key!r}]") for key in was)), "")
    if isinstance(was, (list, tuple)):
        if len(was) != len(now):
            return f"{_place(at)}it had {len(was)} parts, and has {len(now)}"
        return next(filter(None, (_difference(*both, f"{at}[{number}]") for number, both in enumerate(zip(was, now, strict=True)))), "")
    if was is now or _says_equal(was, now):
        return ""
    if type(was) in _WHOLE or _difference(_pickled_as(was), _pickled_as(now), ""):
        return f"{_place(at)}it was {was!r:.60}, and is {now!r:.60}"
    return ""


def _place(at: str) -> str:
    return f"at {at} " if at else "as a whole "


def _says_equal(was: Any, now: Any) -> bool:
    try:
        return bool(was == now or (was != was and now != now))  # noqa: PLR0124 - a nan
    except Exception as error:  # of objects that hold tensors, say
        if came_from_signal(error):
            raise
        return False


def _pickled_as(value: Any) -> Any:
    """None where that cannot be told."""
    try:
        parts = value.__reduce_ex__(_PROTOCOL)
    except Exception as error:
        if came_from_signal(error) or isinstance(error, RecursionError):
            raise
        return None
    if isinstance(parts, str):
        return parts
    return [part if part is None or number < _ITERATORS else list(part) for number, part in enumerate(parts[: _ITERATORS + 2])]


def _of_arrays(was: Any, now: Any, at: str) -> str:
    if isinstance(was, torch.Tensor):
        if was.is_quantized or now.is_quantized:
            return ""
        if not (_is_plain(was) and _is_plain(now)):
            return _difference(_pickled_as(was), _pickled_as(now), at)
    elif was.dtype.hasobject:
        return _difference((was.dtype.str, was.shape, was.tolist()), (now.dtype.str, now.shape, now.tolist()), at)
    if (was.dtype, was.shape) != (now.dtype, now.shape):
        return f"{_place(at)}it was {was.dtype}{list(was.shape)}, and is {now.dtype}{list(now.shape)}"
    return "" if _bits(was) == _bits(now) else f"{_place(at)}the values are others"


def _is_plain(tensor: torch.Tensor) -> bool:
    return tensor.layout is torch.strided and tensor.device.type != "meta" and not tensor.is_nested


def _bits(values: Any) -> Any:
    if isinstance(values, np.ndarray):
        return values.tobytes()
    plain = values.detach().as_subclass(torch.Tensor)
    return plain.cpu().resolve_conj().resolve_neg().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes() if plain.numel() else b""
