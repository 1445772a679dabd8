"""The file behind a sample, where the data set tells by the lists that data sets usually have. Never asks the data set to load anything."""

from __future__ import annotations

import os
from bisect import bisect_right
from typing import Any

import numpy as np
from torch.utils.data import ConcatDataset, Subset

_LISTS = ("samples", "imgs", "paths", "files", "filenames", "file_names", "image_paths", "img_paths", "image_files", "filepaths", "images")
_LONGEST = 300
_DEPTH = 8


def path_of(dataset: Any, index: Any) -> str | None:
    """`dataset.samples[index][0]`, `dataset.paths[index]` or the like; None where there is nothing of the kind."""
    try:
        return _path_of(dataset, index, _DEPTH)
    except Exception:  # a data set's attributes may be anything, and a message must not fail for want of a name
        return None


def _path_of(dataset: Any, index: Any, depth: int) -> str | None:
    if not isinstance(index, int) or index < 0 or not depth:
        return None
    if type(dataset) is Subset:
        return _path_of(dataset.dataset, int(dataset.indices[index]), depth - 1)
    if type(dataset) is ConcatDataset:
        part = bisect_right(dataset.cumulative_sizes, index)
        before = dataset.cumulative_sizes[part - 1] if part else 0
        return _path_of(dataset.datasets[part], index - before, depth - 1)
    attributes = getattr(dataset, "__dict__", {})
    samples = len(dataset) if hasattr(dataset, "__len__") else None
    for name in _LISTS:
        listed: Any = attributes.get(name)
        if _is_list(listed) and len(listed) == samples and (path := _as_path(listed[index])) is not None:
            return path
    inner = attributes.get("dataset")  # a data set around another one
    if inner is not None and hasattr(inner, "__len__") and len(inner) == samples:
        return _path_of(inner, index, depth - 1)
    return None


def _is_list(listed: Any) -> bool:
    """In memory, so that taking an entry reads nothing (an h5py.Dataset named `images` would)."""
    return isinstance(listed, list | tuple) or (isinstance(listed, np.ndarray) and listed.dtype.kind in "USO")


def _as_path(entry: Any) -> str | None:
    if isinstance(entry, tuple | list) and entry:
        entry = entry[0]
    if isinstance(entry, str | bytes | os.PathLike):
        return os.fsdecode(entry)[:_LONGEST]
    return None
