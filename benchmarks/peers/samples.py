"""What a sample is, for every peer: the data sets of workloads.py, as they are, as numpy, or as records for those who read their own files.

A peer with a format of its own stores `records(task)` and makes a sample of a stored one by `from_record`: the same code that
the data sets run. Rows, images and tokens are stored as they are; a JPEG as the file; a slow read as its number.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import torch
from torch.utils.data import default_collate

from peers.contract import Task
from workloads import WORKLOADS, FloatImages, Jpegs, SlowReads, augmented, jpeg_codec, pad_tokens, read_slowly


def data_set(task: Task) -> Any:
    return WORKLOADS[task.workload].make(task.samples)


def collate(task: Task) -> Callable[[list[Any]], Any]:
    """The user's own function where the task has one, torch's where not."""
    return pad_tokens if task.workload == "tokens" else default_collate


def whole_batch(task: Task, source: Any) -> Callable[[Sequence[int]], Any]:
    """From indices to a batch in one call, for those who may be given a batch at a time."""
    if task.workload == "rows-batch":
        return source.__getitems__
    joined = collate(task)
    return lambda indices: joined([source[index] for index in indices])


def batches_of_indices(task: Task) -> Iterator[list[int]]:
    """One epoch in random order, as torch's sampler draws it; a short last batch is left out."""
    order = torch.randperm(task.samples).tolist()
    for first in range(0, task.samples - task.batch_size + 1, task.batch_size):
        yield order[first : first + task.batch_size]


def as_numpy(sample: Any) -> Any:
    """The same memory: tensors become arrays, numbers become arrays of no dimension."""
    if isinstance(sample, tuple):
        return tuple(as_numpy(part) for part in sample)
    return sample.numpy() if isinstance(sample, torch.Tensor) else np.asarray(sample)


def pad_numpy(samples: Sequence[np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    """The user's collate function for those who collate arrays."""
    lengths = np.array([len(sample) for sample in samples])
    padded = np.zeros((len(samples), int(lengths.max())), samples[0].dtype)
    for row, sample in zip(padded, samples, strict=True):
        row[: len(sample)] = sample
    return padded, lengths


def stored_samples(task: Task) -> int:
    """How many records are stored: images and JPEGs repeat the same sources, as the data sets do."""
    return {"images": FloatImages.SOURCES, "jpeg": Jpegs.SOURCES}.get(task.workload, task.samples)


def records(task: Task) -> Iterator[dict[str, Any]]:
    """What a peer stores, in order."""
    source = data_set(task)
    for index in range(stored_samples(task)):
        if task.workload == "images":
            yield {"x": source.source[index].numpy(), "y": index}
        elif task.workload == "jpeg":
            yield {"jpg": source.files[index], "y": index}
        elif task.workload == "slow-reads":
            yield {"index": index}
        elif task.workload == "tokens":
            yield {"x": source[index].numpy()}
        else:
            x, y = source[index]
            yield {"x": x.numpy(), "y": int(y)}


def from_record(task: Task) -> Callable[[dict[str, Any]], Any]:
    """From a stored record to the sample, by the code of the data sets; called in the worker."""
    if task.workload == "jpeg":
        return augment_record
    if task.workload == "slow-reads":
        return read_record
    return plain_record


def augment_record(record: dict[str, Any]) -> tuple[torch.Tensor, int]:
    _, decode = jpeg_codec()
    return augmented(decode(record["jpg"])), int(record["y"])


SLOW_SOURCE = SlowReads(1).source


def read_record(record: dict[str, Any]) -> torch.Tensor:
    return read_slowly(SLOW_SOURCE, int(record["index"]))


def plain_record(record: dict[str, Any]) -> Any:
    x = torch.as_tensor(record["x"])
    return (x, int(record["y"])) if "y" in record else x
