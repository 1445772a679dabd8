"""What samples consist of: containers as torch's default_collate knows them, and in them fields, which are arrays, or something else.

    [{"ids": [5, 7], "of": "a"}, {"ids": [3], "of": "b"}]
        ──▶  {"ids": array_field("ids", [[5, 7], [3]]), "of": default_collate(["a", "b"])}

1. A field is named by the keys and positions that lead to it, joined by dots: "ids", "inputs.ids", "0". A sample that is an array is the
   field "".
2. An array is a tensor, a numpy array, or a list of numbers (of lists of them), of one dimension or more. All else is torch's affair.
3. Containers come back as default_collate makes them: dicts and named tuples as they are, a tuple as a list.
4. A sample of another structure than the first one of its batch is refused, with its row: nothing is left out silently.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from numbers import Number
from typing import Any

import numpy as np
import torch

from antifreeze.errors import BadSample, OptionError
from antifreeze.torch_private import default_collate

ArrayField = Callable[[str, list[Any]], Any]
"""Makes one tensor of a field's arrays, one of each sample."""


def collate_fields(samples: list[Any], array_field: ArrayField, path: str = "") -> Any:
    first = samples[0]
    if is_array(first):
        return array_field(path, samples)
    if isinstance(first, Mapping):
        parts = {key: collate_fields(column, array_field, _inner(path, key)) for key, column in _by_key(samples, path)}
        return parts if type(first) is dict else _like(first, parts)
    if isinstance(first, tuple) and hasattr(first, "_fields"):
        return type(first)(*(collate_fields(column, array_field, _inner(path, at)) for at, column in _by_place(samples, path)))
    if isinstance(first, Sequence) and not isinstance(first, (str, bytes)):
        return [collate_fields(column, array_field, _inner(path, at)) for at, column in _by_place(samples, path)]
    return default_collate(samples)


def is_array(part: Any) -> bool:
    if isinstance(part, (torch.Tensor, np.ndarray)):
        return part.ndim > 0
    while isinstance(part, list) and part and isinstance(part[0], list):
        part = part[0]
    return isinstance(part, list) and (not part or isinstance(part[0], Number))


def bad_row(row: int, text: str) -> BadSample:
    """The row of the batch whose sample is to blame goes with the error, for whoever knows which sample that is."""
    error = BadSample(text)
    error.row = row
    return error


def called(path: str) -> str:
    """A field, in a message."""
    return f"field {path!r}" if path else "the sample"


def with_parts(maker: Any, batch: Any, parts: list[tuple[str | bool, torch.Tensor]]) -> Any:
    """The batch, and what was asked for beside it: under keys of its own in a dict, else behind the rest."""
    if not parts:
        return batch
    if not isinstance(batch, dict):
        key = next((name for name, _ in parts if name is not True), None)
        if key is not None:
            raise OptionError(f"{maker}: the samples are no dicts, so that nothing can have the key {key!r} in a batch; True in its place")
        plain = tuple(part for _, part in parts)
        return [*batch, *plain] if isinstance(batch, list) else (batch, *plain)
    for name, part in parts:
        if name is True or name in batch:
            why = "are dicts: what is added to a batch needs a key, not True" if name is True else f"have a key {name!r} already"
            raise OptionError(f"{maker}: the samples {why}")
        batch[name] = part
    return batch


def _inner(path: str, key: Any) -> str:
    return f"{path}.{key}" if path else str(key)


def _by_key(samples: list[Any], path: str) -> list[tuple[Any, list[Any]]]:
    keys = samples[0].keys()
    for row, sample in enumerate(samples):
        if not isinstance(sample, Mapping) or sample.keys() != keys:
            raise bad_row(row, f"{called(path)} has {_keys(sample)}, but in the batch's first sample it has {_keys(samples[0])}")
    return [(key, [sample[key] for sample in samples]) for key in keys]


def _keys(sample: Any) -> str:
    return f"the keys {list(sample)}" if isinstance(sample, Mapping) else f"no keys: it is of type {type(sample).__name__}"


def _by_place(samples: list[Any], path: str) -> list[tuple[int, list[Any]]]:
    places = len(samples[0])
    for row, sample in enumerate(samples):
        if not isinstance(sample, Sequence) or len(sample) != places:
            has = f"{len(sample)} parts" if isinstance(sample, Sequence) else f"no parts: it is of type {type(sample).__name__}"
            raise bad_row(row, f"{called(path)} has {has}, but in the batch's first sample it has {places}")
    return [(at, [sample[at] for sample in samples]) for at in range(places)]


def _like(container: Any, parts: dict[Any, Any]) -> Any:
    try:
        return type(container)(parts)
    except TypeError:
        return parts


def length_of(sample: Any, measure: Callable[[Any], int] | str | int | None) -> int:
    """By `measure`: a function of the sample, the name of a field (of the first dimension of which it is the size), or None: that of the
    first array in it."""
    if callable(measure):
        return int(measure(sample))
    sizes: dict[str, int] = {}
    collate_fields([sample], lambda path, column: sizes.setdefault(path, len(column[0])))
    if measure is None and sizes:
        return next(iter(sizes.values()))
    if str(measure) in sizes:
        return sizes[str(measure)]
    wanted = "no array" if measure is None else f"no array {str(measure)!r}"
    raise OptionError(f"a length cannot be told: the sample has {wanted} (but {', '.join(map(repr, sizes)) or 'none at all'}); length=…")
