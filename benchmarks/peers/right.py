"""Whether what a peer delivers is what the data set holds: every sample of some batches, looked up by its bytes.

rows, images    the sample is one of the data set, and its label is that sample's
tokens          the ids are those of a sample, as long as the batch says, and 0 behind them
slow reads      the bytes that the read makes, each batch of several reads
jpeg            crops are random: floats from 0 to 1, each a picture (not one colour), with a label of the data set

The order is the peer's affair; the same sample again and again is not, so they are counted.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from peers.contract import Task
from peers.samples import data_set
from workloads import FloatImages, Jpegs


class Checker:
    def __init__(self, task: Task) -> None:
        self.task = task
        self.batches = self.samples = 0
        self.different: set[bytes] = set()
        make: dict[str, Callable[[Task], Callable[[list[np.ndarray]], None]]] = {
            "rows": _rows,
            "rows-batch": _rows,
            "images": _images,
            "jpeg": _jpegs,
            "slow-reads": _reads,
            "tokens": _tokens,
        }
        self._check = make[task.workload](task)

    def look(self, leaves: Sequence[np.ndarray]) -> None:
        found = [np.asarray(leaf) for leaf in leaves]
        for row in range(len(found[0])):
            self._check([leaf[row] for leaf in found])
            self.different.add(np.ascontiguousarray(found[0][row]).tobytes()[:4096])
        self.batches += 1
        self.samples += len(found[0])

    def said(self) -> str:
        least = 2 if self.task.workload in ("images", "jpeg", "slow-reads") else self.samples // 2
        if len(self.different) < least:
            raise ValueError(f"only {len(self.different)} different samples among {self.samples}")
        return f"{self.batches} batches right, {len(self.different)} different samples of {self.samples}"


def _rows(task: Task) -> Callable[[list[np.ndarray]], None]:
    source = data_set(task)
    x, y = source.x.numpy(), source.y.numpy()
    index = {row.tobytes(): number for number, row in enumerate(x)}

    def check(sample: list[np.ndarray]) -> None:
        number = index.get(np.ascontiguousarray(sample[0], np.float32).tobytes())
        _ensure(number is not None, f"{sample[0][:3]} ... is no row of the data set")
        _ensure(int(sample[1]) == int(y[number]), f"row {number} has the label {int(sample[1])} instead of {int(y[number or 0])}")

    return check


def _images(task: Task) -> Callable[[list[np.ndarray]], None]:
    source = data_set(task).source.numpy()
    index = {image[0, 0].tobytes(): number for number, image in enumerate(source)}
    labels = {(number % FloatImages.SOURCES, number % 1000) for number in range(task.samples)}

    def check(sample: list[np.ndarray]) -> None:
        number = index.get(np.ascontiguousarray(sample[0][0, 0]).tobytes())
        _ensure(number is not None and np.array_equal(sample[0], source[number]), "an image that is none of the data set")
        _ensure((number, int(sample[1])) in labels, f"image {number} with the label {int(sample[1])}")

    return check


def _jpegs(task: Task) -> Callable[[list[np.ndarray]], None]:
    def check(sample: list[np.ndarray]) -> None:
        image, label = sample[0], int(sample[1])
        _ensure(
            image.dtype == np.float32 and image.min() >= 0 and image.max() <= 1.0001, f"{image.dtype} from {image.min()} to {image.max()}"
        )
        _ensure(float(image.std()) > 0.02, "a picture of one colour")
        _ensure(0 <= label < max(1000, Jpegs.SOURCES), f"the label {label}")

    return check


def _reads(task: Task) -> Callable[[list[np.ndarray]], None]:
    expected = np.arange(3072).astype(np.uint8)

    def check(sample: list[np.ndarray]) -> None:
        difference = (sample[0] - expected).astype(np.uint8)
        _ensure(sample[0].dtype == np.uint8 and bool((difference == difference[0]).all()), "not what was read")

    return check


def _tokens(task: Task) -> Callable[[list[np.ndarray]], None]:
    source = data_set(task)
    index: dict[bytes, list[int]] = {}
    for number in range(task.samples):
        index.setdefault(source[number][:8].numpy().tobytes(), []).append(number)

    def check(sample: list[np.ndarray]) -> None:
        ids, length = sample[0], int(np.asarray(sample[1]).reshape(-1)[0])
        numbers = index.get(np.ascontiguousarray(ids[:8], np.int64).tobytes(), [])
        same = any(len(source[number]) == length and np.array_equal(ids[:length], source[number].numpy()) for number in numbers)
        _ensure(same, f"{length} ids that are no sample of the data set")
        _ensure(not ids[length:].any(), f"something else than 0 behind the {length} ids of a sample")

    return check


def _ensure(holds: bool, otherwise: str) -> None:
    if not holds:
        raise ValueError(otherwise)
