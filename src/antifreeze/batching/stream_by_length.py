"""`StreamByLength`: an iterable data set's samples in batches of those about as long, made in the workers.

    stream ──▶ [a window of samples] ──▶ sorted by length ──▶ cut into batches ──▶ shuffled ──▶ a list of samples each ──▶ collate_fn

1. What it yields are whole batches, so the loader's batch_size is None, and its collate_fn makes a tensor of each: Pad, Join, or any.
2. Every sample of the stream comes once, but for those that are `too_long` to be, and what `drop_last` leaves out: batches of fewer than
   `batch_size` samples, of which every window may have one.
3. Each worker has windows of its own over its share of the stream; how a stream is shared is its own affair.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from typing import Any

import numpy as np
import torch
from torch.utils.data import IterableDataset

from antifreeze.batching.by_length import TOO_LONG, cuts_by_tokens, padded_to
from antifreeze.batching.fields import length_of
from antifreeze.errors import BadSample, OptionError


class StreamByLength(IterableDataset[list[Any]]):
    """`DataLoader(StreamByLength(stream, max_tokens=16_384), batch_size=None, collate_fn=Pad(), num_workers=4)`.

    stream       any iterable of samples, such as an IterableDataset
    batch_size, max_tokens, padded, multiple_of, drop_last, too_long   as for BatchesByLength
    length       a function that gives a sample's length, or the name of the field whose size it is; default: its first array
    window       how many samples are looked at together: the more, the less filling, and the more memory and delay
    shuffle      the batches of a window come in an order drawn from torch's generator; else the longest first
    """

    def __init__(
        self,
        stream: Iterable[Any],
        batch_size: int | None = None,
        *,
        max_tokens: int | None = None,
        length: Callable[[Any], int] | str | int | None = None,
        window: int = 2048,
        padded: bool = True,
        multiple_of: int = 1,
        shuffle: bool = True,
        drop_last: bool = False,
        too_long: str = "error",
    ) -> None:
        if batch_size is None and max_tokens is None:
            raise OptionError("StreamByLength: give batch_size=, max_tokens=, or both")
        numbers = {"batch_size": batch_size, "max_tokens": max_tokens, "window": window, "multiple_of": multiple_of}
        for name, number in numbers.items():
            if number is not None and (type(number) is not int or number < 1):
                raise OptionError(f"StreamByLength: {name} is a whole number from 1 on, not {number!r}")
        if too_long not in TOO_LONG:
            raise OptionError(f"StreamByLength: too_long is one of {', '.join(TOO_LONG)}, not {too_long!r}")
        self.stream = stream
        self.batch_size, self.max_tokens, self.length, self.window = batch_size, max_tokens, length, window
        self.padded, self.multiple_of, self.shuffle, self.drop_last, self.too_long = padded, multiple_of, shuffle, drop_last, too_long

    def __repr__(self) -> str:
        return f"<StreamByLength over {type(self.stream).__name__}: windows of {self.window:,} samples>"

    def __iter__(self) -> Iterator[list[Any]]:
        samples = self._that_fit(iter(self.stream))
        while window := list(islice(samples, self.window)):
            yield from self._batches(window)

    def _that_fit(self, samples: Iterator[Any]) -> Iterator[tuple[int, Any]]:
        for sample in samples:
            length = length_of(sample, self.length)
            if self.max_tokens is None or self.too_long == "alone" or self._rounded(length) <= self.max_tokens:
                yield length, sample
            elif self.too_long == "error":
                raise BadSample(
                    f"a sample of length {length:,} is longer than max_tokens={self.max_tokens:,}; a larger max_tokens, or "
                    'too_long="alone" (a batch of its own) or "skip" would do'
                )

    def _rounded(self, length: Any) -> Any:
        return padded_to(length, self.multiple_of) if self.padded else length

    def _batches(self, window: list[tuple[int, Any]]) -> Iterator[list[Any]]:
        lengths = np.array([length for length, _ in window], dtype=np.int64)
        order = np.argsort(lengths, kind="stable")
        most = self.max_tokens or (1 << 62)
        cuts = cuts_by_tokens(self._rounded(lengths[order]), most, self.batch_size or len(window), self.padded)
        numbers = range(len(cuts) - 2, -1, -1) if not self.shuffle else torch.randperm(len(cuts) - 1).tolist()
        for number in numbers:
            batch = [window[at][1] for at in order[cuts[number] : cuts[number + 1]]]
            if not (self.drop_last and self.batch_size and self.max_tokens is None and len(batch) < self.batch_size):
                yield batch
