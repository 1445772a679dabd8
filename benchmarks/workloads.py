"""The data sets that every benchmark of this project loads, so that all tables speak of the same work.

A workload is a data set, a batch size and a collate function; it knows no loader. Sources are in memory, made from a fixed
seed, and a sample is a fresh tensor where a real data set would make one.
"""

from __future__ import annotations

import asyncio
import importlib.util
import io
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch.utils.data import Dataset, TensorDataset

Collate = Callable[[Any], Any]


@dataclass(frozen=True)
class Workload:
    """What is loaded: `make(samples)` builds the data set of that many samples."""

    name: str
    title: str
    make: Callable[[int], Dataset[Any]]
    samples: int
    quick_samples: int
    batch_size: int
    collate_fn: Collate | None = None
    same_bytes: bool = True
    """False where samples are drawn at random: two loaders then need not agree on them."""
    missing: Callable[[], str | None] = lambda: None
    """Says what is not installed, or None."""
    copy_limit: bool = False
    """Whether a one-thread copy of the samples into a warm buffer is a sensible upper limit."""

    def loader_arguments(self, samples: int) -> dict[str, Any]:
        """Keyword arguments of torch's DataLoader, the worker count aside."""
        given: dict[str, Any] = {"dataset": self.make(samples), "batch_size": self.batch_size, "shuffle": True}
        if self.collate_fn is not None:
            given["collate_fn"] = self.collate_fn
        return given


class FloatImages(Dataset[tuple[torch.Tensor, int]]):
    """3×224×224 float32 and a label: 602 KB per sample, copied from 256 sources (154 MB, more than a cache holds)."""

    SOURCES = 256

    def __init__(self, samples: int) -> None:
        self.samples = samples
        self.source = torch.rand(self.SOURCES, 3, 224, 224, generator=torch.Generator().manual_seed(1))

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        return self.source[index % self.SOURCES].clone(), index % 1000

    def __len__(self) -> int:
        return self.samples


class Rows(Dataset[tuple[torch.Tensor, torch.Tensor]]):
    """16 floats and a label, as most programs hold them: ours reads off `__getitem__` that it only picks rows, and gathers them."""

    def __init__(self, samples: int) -> None:
        self.x, self.y = rows(samples)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        return self.x[index], self.y[index]

    def __len__(self) -> int:
        return len(self.x)


class RowsOneByOne(Dataset[tuple[torch.Tensor, torch.Tensor]]):
    """The same where that cannot be read off (slots are nothing that ours looks into): a call for each row, and at the same cost for
    torch. What is measured is the cost of a sample, not of its bytes."""

    __slots__ = ("x", "y")

    def __init__(self, samples: int) -> None:
        self.x, self.y = rows(samples)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        return self.x[index], self.y[index]

    def __len__(self) -> int:
        return len(self.x)


class RowsWholeBatch(Rows):
    """The same rows, a batch at a time: with `as_it_is` as the collate function torch indexes once per batch."""

    def __getitems__(self, indices: Sequence[int]) -> tuple[torch.Tensor, torch.Tensor]:
        chosen = torch.as_tensor(indices)
        return self.x[chosen], self.y[chosen]


class RowsListed(Rows):
    """The same rows through `__getitems__` as torch documents it: a list of samples, then the default collate."""

    def __getitems__(self, indices: Sequence[int]) -> list[tuple[torch.Tensor, torch.Tensor]]:
        chosen = torch.as_tensor(indices)
        return list(zip(self.x[chosen].unbind(), self.y[chosen].unbind(), strict=True))


class Tokens(Dataset[torch.Tensor]):
    """16 to 1024 int64 ids per sample."""

    def __init__(self, samples: int) -> None:
        random = np.random.default_rng(3)
        lengths = random.integers(16, 1025, size=samples)
        self.ends = np.cumsum(lengths).tolist()
        self.ids = torch.from_numpy(random.integers(0, 50_000, size=int(lengths.sum()), dtype=np.int64))

    def __getitem__(self, index: int) -> torch.Tensor:
        start = self.ends[index - 1] if index else 0
        return self.ids[start : self.ends[index]]

    def __len__(self) -> int:
        return len(self.ends)


class Jpegs(Dataset[tuple[torch.Tensor, int]]):
    """JPEG 500×375, decoded, random-resized-crop 224, flip, float: computing, with many short-lived buffers."""

    SOURCES = 64

    def __init__(self, samples: int) -> None:
        self.samples = samples
        encode, self.decode = jpeg_codec()
        self.files = [encode(picture(number)) for number in range(self.SOURCES)]

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        return augmented(self.decode(self.files[index % self.SOURCES])), index % 1000

    def __len__(self) -> int:
        return self.samples


class SlowReads(Dataset[torch.Tensor]):
    """3 KB that take 10 ms to come, as from a network: nothing but waiting."""

    def __init__(self, samples: int) -> None:
        self.samples = samples
        self.source = torch.arange(3072, dtype=torch.uint8)

    def __getitem__(self, index: int) -> torch.Tensor:
        return read_slowly(self.source, index)

    def __len__(self) -> int:
        return self.samples


class SlowReadsAsync(SlowReads):
    """The same from an async client."""

    async def __getitem__(self, index: int) -> torch.Tensor:  # type: ignore[override]
        return await read_slowly_async(self.source, index)


class NamedImages(Dataset[tuple[torch.Tensor, int, str]]):
    """Image, label and path."""

    SOURCES = 256

    def __init__(self, samples: int) -> None:
        self.samples = samples
        self.source = torch.rand(self.SOURCES, 3, 64, 64, generator=torch.Generator().manual_seed(6))

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int, str]:
        return self.source[index % self.SOURCES].clone(), index % 1000, f"/data/train/class-{index % 1000:04}/image-{index:08}.jpg"

    def __len__(self) -> int:
        return self.samples


class SmallImages(NamedImages):
    """The same without its path: rows of a size at which torch without workers is at its best."""

    def __getitem__(self, index: int) -> Any:
        return self.source[index % self.SOURCES], index % 1000


class FourLeaves(Dataset[dict[str, Any]]):
    """A dict of four leaves, two of them Python numbers: the row path with a tree."""

    SOURCES = 256

    def __init__(self, samples: int) -> None:
        self.samples = samples
        random = torch.Generator().manual_seed(7)
        self.images = torch.randint(0, 256, (self.SOURCES, 3, 32, 32), dtype=torch.uint8, generator=random)
        self.boxes = torch.rand(self.SOURCES, 4, generator=random)

    def __getitem__(self, index: int) -> dict[str, Any]:
        row = index % self.SOURCES
        return {"image": self.images[row].clone(), "box": self.boxes[row], "label": index % 1000, "weight": row / self.SOURCES}

    def __len__(self) -> int:
        return self.samples


def rows(samples: int) -> tuple[torch.Tensor, torch.Tensor]:
    random = torch.Generator().manual_seed(2)
    return torch.rand(samples, 16, generator=random), torch.randint(0, 10, (samples,), generator=random)


def augmented(pixels: np.ndarray) -> torch.Tensor:
    """Height×width×3 bytes to a random crop of 3×224×224 floats, flipped half of the time."""
    image = torch.from_numpy(pixels).permute(2, 0, 1)
    area, ratio, top, left, flip = torch.rand(5).tolist()
    height, width = image.shape[1:]
    side = (area * 0.92 + 0.08) ** 0.5
    crop_height = max(1, int(height * side * (0.75 + ratio / 4)))
    crop_width = max(1, int(width * side))
    y, x = int(top * (height - crop_height)), int(left * (width - crop_width))
    crop = image[None, :, y : y + crop_height, x : x + crop_width]
    small = torch.nn.functional.interpolate(crop, size=(224, 224), mode="bilinear", antialias=True)[0]
    return (small.flip(2) if flip < 0.5 else small).float().div_(255)


READ_S = 0.010


def read_slowly(source: torch.Tensor, index: int) -> torch.Tensor:
    time.sleep(READ_S)
    return source + index % 256


async def read_slowly_async(source: torch.Tensor, index: int) -> torch.Tensor:
    """The same read as an async client makes it."""
    await asyncio.sleep(READ_S)
    return source + index % 256


def as_it_is(batch: Any) -> Any:
    return batch


def pad_tokens(samples: list[torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor]:
    """Ids padded with 0 to the longest of the batch, and their lengths."""
    lengths = torch.tensor([len(sample) for sample in samples])
    return torch.nn.utils.rnn.pad_sequence(samples, batch_first=True), lengths


def picture(number: int) -> np.ndarray:
    """A smooth picture with some noise, so that it costs a decoder about what a photograph does."""
    random = np.random.default_rng(number)
    coarse = torch.from_numpy(random.random((1, 3, 12, 16), dtype=np.float32))
    smooth = torch.nn.functional.interpolate(coarse, size=(375, 500), mode="bicubic")[0].permute(1, 2, 0).numpy()
    noisy = smooth * 255 + random.normal(0, 6, size=smooth.shape)
    return np.ascontiguousarray(noisy.clip(0, 255).astype(np.uint8))


def encode_with_pillow(pixels: np.ndarray) -> bytes:
    from PIL import Image

    target = io.BytesIO()
    Image.fromarray(pixels).save(target, "JPEG", quality=90)
    return target.getvalue()


def decode_with_pillow(file: bytes) -> np.ndarray:
    from PIL import Image

    return np.array(Image.open(io.BytesIO(file)))


def encode_with_simplejpeg(pixels: np.ndarray) -> bytes:
    import simplejpeg

    return bytes(simplejpeg.encode_jpeg(pixels, quality=90))


def jpeg_codec() -> tuple[Callable[[np.ndarray], bytes], Callable[[bytes], np.ndarray]]:
    """Encoder and decoder of whichever library is installed, simplejpeg first; both can be pickled."""
    if importlib.util.find_spec("simplejpeg"):
        import simplejpeg

        return encode_with_simplejpeg, simplejpeg.decode_jpeg
    return encode_with_pillow, decode_with_pillow


def missing_jpeg() -> str | None:
    if importlib.util.find_spec("simplejpeg") or importlib.util.find_spec("PIL"):
        return None
    return "needs simplejpeg or Pillow (pip install simplejpeg)"


WORKLOADS: dict[str, Workload] = {
    workload.name: workload
    for workload in (
        Workload("images", "3×224×224 float32, batch 64", FloatImages, 4096, 640, 64, copy_limit=True),
        Workload("rows", "16 floats + label, batch 256, one call for each", RowsOneByOne, 200_000, 10_240, 256),
        Workload("rows-picked", "the same where the calls can be seen through", Rows, 200_000, 10_240, 256),
        Workload("rows-tensordataset", "the same rows in a TensorDataset", lambda n: TensorDataset(*rows(n)), 200_000, 10_240, 256),
        Workload("rows-listed", "the same through __getitems__, listed", RowsListed, 200_000, 10_240, 256),
        Workload("rows-batch", "the same, __getitems__ gives the batch", RowsWholeBatch, 200_000, 10_240, 256, as_it_is),
        Workload("tokens", "16–1024 int64 ids, padded by a collate_fn", Tokens, 65_536, 1024, 64, pad_tokens),
        Workload("jpeg", "JPEG decode, crop, flip, batch 64", Jpegs, 2048, 192, 64, same_bytes=False, missing=missing_jpeg),
        Workload("slow-reads", "3 KB in 10 ms, batch 8", SlowReads, 384, 96, 8),
        Workload("small-images", "3×64×64 float32, label, batch 64", SmallImages, 16_384, 1024, 64),
        Workload("strings", "3×64×64 float32, label, path, batch 64", NamedImages, 16_384, 1024, 64),
        Workload("four-leaves", "dict of 4 leaves, 3 KB, batch 64", FourLeaves, 32_768, 2048, 64),
    )
}
