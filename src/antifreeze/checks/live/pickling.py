"""Can a fresh process be given this, and how much would it be? Arrays and tensors are counted, not copied."""

from __future__ import annotations

import io
from multiprocessing.reduction import ForkingPickler
from pickle import Pickler
from typing import Any

import numpy as np
import torch

from antifreeze.supervisor.unpicklable import find


class _Counting(io.RawIOBase):
    def __init__(self) -> None:
        self.size = 0

    def write(self, content: Any) -> int:
        self.size += len(content)
        return len(content)


class _WithoutArrays(Pickler):
    """As multiprocessing pickles (its registry of reductions), but arrays are left out and counted."""

    def __init__(self, file: Any) -> None:
        super().__init__(file, protocol=5)
        self.dispatch_table = ForkingPickler(io.BytesIO()).dispatch_table
        self.array_bytes = 0

    def persistent_id(self, value: Any) -> Any:
        if isinstance(value, torch.Tensor) or (isinstance(value, np.ndarray) and value.dtype != object):
            self.array_bytes += value.nbytes
            return "array"
        return None


def pickled_bytes(value: Any) -> int:
    """Raises what pickling raises."""
    file = _Counting()
    pickler = _WithoutArrays(file)
    pickler.dump(value)
    return file.size + pickler.array_bytes


def unpicklable_path(value: Any, path: str) -> str | None:
    """The part that does not pickle, by its path; None where all of it does."""
    return find(value, path, pickled_bytes)
