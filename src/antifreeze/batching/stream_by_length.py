"""`StreamByLength`: an iterable data set's samples in batches of those about as long, made in the workers.

    stream ──▶ [a window of samples] ──▶ sorted by length ──▶ cut into batches ──▶ shuffled ──▶ a list of samples each ──▶ collate_fn

1. What it yields are whole batches, so the loader's batch_size is None, and its collate_fn makes a tensor of each: Pad, Join, or any.
2. Every sample of the stream comes once, but for those that are `too_long` to be, and what `drop_last` leaves out: batches of fewer than
   `batch_size` samples, of which every window may have one.
3. Each worker has windows of its own over its share of the stream; how a stream is shared is its own affair.
4. A sample that raises, or whose length cannot be told, is lost alone: whoever asks again gets the others of its window, and what follows.
   A generator that raised is over: what it gave before comes first, then its error.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator
from typing import Any

import numpy as np
import torch
from torch.utils.data import IterableDataset

from antifreeze.batching.by_length import cuts_by_tokens, limits, padded_to
from antifreeze.batching.checked import whole_number
from antifreeze.batching.fields import length_of
from antifreeze.errors import BadSample
from antifreeze.signals import came_from_signal


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
        self.stream, self.length = stream, length
        self.batch_size, self.max_tokens = limits("StreamByLength", batch_size, max_tokens, too_long)
        self.window = whole_number("StreamByLength", "window", window)
        self.multiple_of = whole_number("StreamByLength", "multiple_of", multiple_of)
        self.padded, self.shuffle, self.drop_last, self.too_long = padded, shuffle, drop_last, too_long

    def __repr__(self) -> str:
        return f"<StreamByLength over {type(self.stream).__name__}: windows of {self.window:,} samples>"

    def __iter__(self) -> Iterator[list[Any]]:
        return _Batches(self)

    def measured(self, sample: Any) -> int | None:
        """Its length; None where it is to be left out."""
        length = length_of(sample, self.length)
        if self.max_tokens is None or self.too_long == "alone" or self._rounded(length) <= self.max_tokens:
            return length
        if self.too_long == "skip":
            return None
        rounded = f" when rounded up to multiple_of={self.multiple_of}" if self.padded and self.multiple_of > 1 else ""
        raise BadSample(
            f"a sample of length {length:,} is longer than max_tokens={self.max_tokens:,}{rounded}; a larger max_tokens, or "
            'too_long="alone" (a batch of its own) or "skip" would do'
        )

    def _rounded(self, length: Any) -> Any:
        return padded_to(length, self.multiple_of) if self.padded else length

    def batches_of(self, window: list[tuple[int, Any]]) -> Iterator[list[Any]]:
        lengths = np.array([length for length, _ in window], dtype=np.int64)
        order = np.argsort(lengths, kind="stable")
        most = self.max_tokens or (1 << 62)
        cuts = cuts_by_tokens(self._rounded(lengths[order]), most, self.batch_size or len(window), self.padded)
        numbers = range(len(cuts) - 2, -1, -1) if not self.shuffle else torch.randperm(len(cuts) - 1).tolist()
        for number in numbers:
            batch = [window[at][1] for at in order[cuts[number] : cuts[number + 1]]]
            if not (self.drop_last and self.batch_size and self.max_tokens is None and len(batch) < self.batch_size):
                yield batch


class _Batches(Iterator[list[Any]]):
    """Those of one pass. No generator, which would be over with the first sample that raises."""

    def __init__(self, of: StreamByLength) -> None:
        self._of = of
        self._samples = iter(of.stream)
        self._window: list[tuple[int, Any]] = []
        self._ready: Iterator[list[Any]] = iter(())
        self._is_over = False
        self._last_word: Exception | None = None

    def __next__(self) -> list[Any]:
        while (batch := next(self._ready, None)) is None:
            self._fill_window()
            if not self._window:
                error, self._last_word = self._last_word, None
                raise StopIteration if error is None else error
            self._ready, self._window = self._of.batches_of(self._window), []
        return batch

    def _fill_window(self) -> None:
        while not self._is_over and len(self._window) < self._of.window:
            try:
                sample = next(self._samples)
            except StopIteration:
                self._is_over = True
                return
            except Exception as error:
                if came_from_signal(error) or not isinstance(self._samples, Generator):
                    raise
                self._is_over, self._last_word = True, error
                return
            length = self._of.measured(sample)
            if length is not None:
                self._window.append((length, sample))
