"""What samples consist of: containers as torch's default_collate knows them, and in them fields, which are arrays, or something else.

    [{"ids": [5, 7], "of": "a"}, {"ids": [3], "of": "b"}]
        ──▶  {"ids": array_field("ids", [[5, 7], [3]]), "of": default_collate(["a", "b"])}

1. A field is named by the keys and positions that lead to it, joined by dots: "ids", "inputs.ids", "0". A sample that is an array is the
   field "".
2. An array is a tensor, a numpy array, or a list of numbers alone (of lists of them), of one dimension or more. All else is torch's
   affair.
3. Containers come back as default_collate makes them: mappings and named tuples as they are, a tuple as a list.
4. A sample of another structure than most of its batch, or of what torch does not collate, is refused, with its row: nothing is
   left out silently, and no other sample is blamed.
"""

from __future__ import annotations

import copy
from collections import Counter, UserDict
from collections.abc import Callable, Iterable, Iterator, Mapping, MutableMapping, Sequence
from numbers import Number
from typing import Any

import numpy as np
import torch

from antifreeze.batching.checked import whole_number
from antifreeze.errors import BadSample, OptionError
from antifreeze.signals import came_from_signal
from antifreeze.torch_private import default_collate

_NUMBERS = (int, float, Number, np.bool_, type(None))

ArrayField = Callable[[str, Sequence[Any]], Any]
"""Makes one tensor of a field's arrays, one of each sample."""


def collate_fields(samples: Sequence[Any], array_field: ArrayField, path: str = "") -> Any:
    first = samples[0]
    if is_array(first):
        return array_field(path, samples)
    if isinstance(first, Mapping):
        parts = {key: collate_fields(column, array_field, _inner(path, key)) for key, column in _by_key(samples, path)}
        return parts if type(first) is dict else mapping_like(first, parts)
    if isinstance(first, tuple) and hasattr(first, "_fields"):
        return type(first)(*(collate_fields(column, array_field, _inner(path, at)) for at, column in _by_place(samples, path)))
    if _is_sequence(first):
        return [collate_fields(column, array_field, _inner(path, at)) for at, column in _by_place(samples, path)]
    return _collated(samples, path)


def arrays_of(sample: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Those of one sample, by name; what else it has may be anything."""
    if is_array(sample):
        yield path, sample
    elif isinstance(sample, Mapping):
        for key, part in sample.items():
            yield from arrays_of(part, _inner(path, key))
    elif _is_sequence(sample):
        for at, part in enumerate(sample):
            yield from arrays_of(part, _inner(path, at))


def is_array(part: Any) -> bool:
    if isinstance(part, torch.Tensor):
        return part.ndim > 0 and part.layout is torch.strided and not part.is_nested
    return part.ndim > 0 if isinstance(part, np.ndarray) else isinstance(part, list) and _has_numbers(part)


def begins_as_array(part: Any) -> bool:
    """Without a look at every number: for the rows below one that is an array."""
    while isinstance(part, list) and part and isinstance(part[0], list):
        part = part[0]
    return not part or isinstance(part[0], _NUMBERS) if isinstance(part, list) else is_array(part)


def _has_numbers(part: list[Any]) -> bool:
    """And nothing else, but None, which is nobody's field: a list with it is no array of numbers either, and refused as such."""
    kinds = set(map(type, part))
    if kinds == {list}:
        return all(map(_has_numbers, part))
    return kinds != {type(None)} and all(issubclass(kind, _NUMBERS) for kind in kinds)


def _is_sequence(part: Any) -> bool:
    return isinstance(part, Sequence) and not isinstance(part, (str, bytes))


def _collated(parts: Any, path: str) -> Any:
    """As torch does it. Where it does not, the first that it does not take beside the batch's first is to blame."""
    try:
        return default_collate(parts)
    except Exception as error:
        if came_from_signal(error):
            raise
        row = next((row for row, part in enumerate(parts) if not _collates([parts[0], part])), 0)
        first = f", in the batch's first sample {type(parts[0]).__name__}" if row else ""
        raise bad_row(row, f"{called(path)} is {type(parts[row]).__name__}{first}: {error}") from error


def _collates(parts: list[Any]) -> bool:
    try:
        default_collate(parts)
    except Exception as error:
        if came_from_signal(error):
            raise
        return False
    return True


def bad_row(row: int, text: str) -> BadSample:
    """The row of the batch whose sample is to blame goes with the error, for whoever knows which sample that is."""
    error = BadSample(text)
    error.row = row
    return error


def odd_of(kinds: Sequence[Any]) -> tuple[int, int, str]:
    """Where not all are alike: the first that is not like most of them (like the first, where as many are like others), one of those, and
    where that is, in words. Were the first always the measure, an odd one there would make all others the odd ones."""
    usual = Counter(kinds).most_common(1)[0][0]
    row = next(row for row, kind in enumerate(kinds) if kind != usual)
    return row, list(kinds).index(usual), "in the batch's first sample" if kinds[0] == usual else "in most of the batch"


def called(path: str) -> str:
    """A field, in a message."""
    return f"field {path!r}" if path else "the sample"


def refuse_unknown(maker: Any, names: Iterable[str], samples: Sequence[Any]) -> None:
    """Fields that the user named: where no sample has them, or one name is two fields', none is to blame."""
    found = _names(samples[0])
    unknown, twice = set(names).difference(found), {name for name in names if found.count(name) > 1}
    if any(unknown.intersection(_names(sample)) for sample in samples[1:] if unknown):
        raise bad_row(0, f"the sample has no array {listed(unknown)}, as others of its batch have; its arrays are {listed(found)}")
    if unknown:
        raise OptionError(f"{maker} names {listed(unknown)}; arrays of the samples are {listed(found)}")
    if twice:
        raise OptionError(f"{maker} names {listed(twice)}, but samples have two arrays of that name: keys with dots, or a number as text")


def _names(sample: Any) -> list[str]:
    return [path for path, _ in arrays_of(sample)]


def listed(paths: Iterable[str]) -> str:
    return ", ".join(repr(path) if path else "the sample itself" for path in sorted(paths)) or "none"


def with_parts(maker: Any, batch: Any, parts: list[tuple[str | bool, torch.Tensor]]) -> Any:
    """The batch, and what was asked for beside it: under keys of its own in a dict, else behind the rest."""
    if not parts:
        return batch
    if not isinstance(batch, Mapping):
        key = next((name for name, _ in parts if name is not True), None)
        if key is not None:
            raise OptionError(f"{maker}: the samples are no dicts, so that nothing can have the key {key!r} in a batch; True in its place")
        plain = tuple(part for _, part in parts)
        return [*batch, *plain] if isinstance(batch, list) else (batch, *plain)
    batch = batch if isinstance(batch, MutableMapping) else dict(batch)
    for name, part in parts:
        if name is True or name in batch:
            why = "are dicts: what is added to a batch needs a key, not True" if name is True else f"have a key {name!r} already"
            raise OptionError(f"{maker}: the samples {why}")
        batch[name] = part
    return batch


def _inner(path: str, key: Any) -> str:
    return f"{path}.{key}" if path else str(key)


def _by_key(samples: Sequence[Any], path: str) -> list[tuple[Any, list[Any]]]:
    keys = samples[0].keys()
    for sample in samples:
        if not isinstance(sample, Mapping) or sample.keys() != keys:
            row, usual, where = odd_of([frozenset(each) if isinstance(each, Mapping) else type(each) for each in samples])
            raise bad_row(row, f"{called(path)} has {_keys(samples[row])}, but {where} it has {_keys(samples[usual])}")
    return [(key, [sample[key] for sample in samples]) for key in keys]


def _keys(sample: Any) -> str:
    return f"the keys {list(sample)}" if isinstance(sample, Mapping) else f"no keys: it is of type {type(sample).__name__}"


def _by_place(samples: Sequence[Any], path: str) -> list[tuple[int, Sequence[Any]]]:
    places = len(samples[0])
    for sample in samples:
        if not _is_sequence(sample) or len(sample) != places:
            row, usual, where = odd_of([len(each) if _is_sequence(each) else type(each) for each in samples])
            raise bad_row(row, f"{called(path)} has {_parts(samples[row])}, but {where} it has {_parts(samples[usual])}")
    return list(enumerate(zip(*samples, strict=True)))


def _parts(sample: Any) -> str:
    return f"{len(sample)} parts" if _is_sequence(sample) else f"no parts: it is of type {type(sample).__name__}"


def mapping_like(container: Any, parts: dict[Any, Any]) -> Any:
    """One of the same kind where that can be made, with these parts."""
    try:
        if not isinstance(container, (dict, UserDict)):  # the copy of another one may write into the sample itself
            return type(container)(parts)
        like = copy.copy(container)  # it may have more than its keys: a default, an encoding
        like.update(parts)
        return like
    except TypeError:
        return parts


def length_of(sample: Any, measure: Callable[[Any], int] | str | int | None) -> int:
    """By `measure`: a function of the sample, the name of a field (of the first dimension of which it is the size), or None: that of the
    first array in it."""
    if callable(measure):
        return whole_number("length=", "what it gives", measure(sample), least=None)
    others: list[str] = []
    for path, part in arrays_of(sample):
        if measure is None or path == str(measure):
            return len(part)
        others.append(path)
    wanted = "no array" if measure is None else f"no array {str(measure)!r}"
    there = ", ".join(map(repr, others)) or "none at all"
    raise OptionError(f"a length cannot be told: the sample has {wanted} (but {there}); length= names one, or is a function of the sample")
