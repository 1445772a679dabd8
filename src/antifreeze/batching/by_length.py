"""`BatchesByLength`: a batch sampler whose batches are of samples about as long, so that little is filled up; by number or by tokens.

    lengths ──▶ classes of about one length ──▶ shuffled within each class ──▶ cut into batches ──▶ batches shuffled ──▶ this rank's

1. A sample's class is its length, rounded up by a sixteenth at most (and to `multiple_of`). Batches are cut where the sorted classes
   say, so their number and their sizes are the same in every epoch, and `len()` is true; who is in them is drawn anew.
2. With `max_tokens` no batch has more: its samples times the longest of them, rounded up as its class is (`padded`, for Pad), or the
   sum of their lengths, each rounded up likewise (for Join).
3. The order is a function of lengths, options, `seed` and `epoch`: the same on every rank, and again after a resume. An epoch that was
   begun is over when the next one begins: `set_epoch` may be called, and need not be.
4. Ranks get as many batches each, and in one step batches of about one length, so that none waits for another. What is left over is
   filled up with batches of the same epoch, or left out (`drop_last`).
5. Every sample comes once in an epoch, but for: those longer than `max_tokens` (`too_long`), rule 4, and `drop_last`.
6. What takes the place of a bad sample (`on_bad_sample="replace"`) is no longer than its class, so that rule 2 still holds.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sized
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch.utils.data import Dataset, Sampler

from antifreeze.batching.checked import MOST, whole_number
from antifreeze.errors import OptionError

TOO_LONG = ("error", "alone", "skip")

_FINENESS = 16
"""Classes in each doubling of the length: with so many, 2 % of what came was padding (benchmarks/lengths.py)."""
_STAND_INS = 64


class BatchesByLength(Sampler[list[int]]):
    """A batch_sampler: `DataLoader(dataset, batch_sampler=BatchesByLength(lengths, max_tokens=16_384, shuffle=True), collate_fn=Pad())`.

    lengths       of every sample of the data set, in its order: a list, an array, a tensor (`lengths_of` measures them)
    batch_size    how many samples a batch has at most
    max_tokens    how many tokens it has at most, filling included; either of the two, or both
    padded        False: what counts is the sum of lengths, without filling (for batches that are joined, not padded)
    multiple_of   as given to Pad
    shuffle       who is in a batch, and the order of batches, are drawn anew in every epoch; else the longest batch comes first
    drop_last     samples that do not fill a batch of `batch_size`, and batches that do not make a step for all ranks, are left out
    too_long      a sample longer than max_tokens: "error" (default), "alone" (in a batch of its own), or "skip" (never loaded)
    seed          of the order, together with the epoch
    num_replicas, rank   default: those of torch.distributed where it is initialized, else one
    """

    def __init__(
        self,
        lengths: Any,
        batch_size: int | None = None,
        *,
        max_tokens: int | None = None,
        padded: bool = True,
        multiple_of: int = 1,
        shuffle: bool = False,
        drop_last: bool = False,
        too_long: str = "error",
        seed: int = 0,
        num_replicas: int | None = None,
        rank: int | None = None,
    ) -> None:
        self.lengths = _as_lengths(lengths)
        # not self.batch_size: whoever finds that in a batch sampler (accelerate) takes all batches but the last for full, and drops others
        self.most_samples, self.max_tokens = limits("BatchesByLength", batch_size, max_tokens, too_long)
        self.multiple_of = whole_number("BatchesByLength", "multiple_of", multiple_of)
        self.padded, self.shuffle, self.drop_last, self.too_long = padded, shuffle, drop_last, too_long
        self.seed = whole_number("BatchesByLength", "seed", seed, least=None)
        self.num_replicas, self.rank = _place(num_replicas, rank)
        self.epoch = 0
        self._is_begun = False
        self._classes = _classes(self.lengths, self.multiple_of)
        self._members = self._who_comes()
        self._cuts = self._cut()

    def __repr__(self) -> str:
        share = "" if self.num_replicas == 1 else f", rank {self.rank} of {self.num_replicas}"
        return f"<BatchesByLength: {len(self._members):,} samples in {len(self):,} batches{share}, {self.padding:.1%} of it padding>"

    # --- the order ---

    def __len__(self) -> int:
        return self._steps

    def __iter__(self) -> Iterator[list[int]]:
        self.ready_epoch()  # when the first batch is drawn: torch asks for iterators that it never uses
        self.end_epoch()
        order, ranges = self._order(self.epoch)
        for begin, end in ranges:
            yield order[begin:end].tolist()

    def set_epoch(self, epoch: int) -> None:
        self.epoch, self._is_begun = whole_number("BatchesByLength", "epoch", epoch, least=None), False

    def end_epoch(self) -> None:
        """Nobody begins it again: whoever has begun it has its order."""
        self._is_begun = True

    def ready_epoch(self) -> None:
        """The epoch that was begun is over, also where nobody says so."""
        if self._is_begun:
            self.set_epoch(self.epoch + 1)

    def of_next_epoch(self) -> BatchesByLength:
        """A sampler of its own that begins where this one will begin next."""
        following: BatchesByLength = object.__new__(BatchesByLength)
        following.__dict__.update(self.__dict__)
        following.ready_epoch()
        return following

    def stand_ins(self, index: int) -> Any:
        """Those that may take the place of a bad sample: of its class or, where they are few, a shorter one."""
        end = bisect_right(self._sorted, self._classes[index], key=self._classes.__getitem__)
        some = self._sorted[max(0, end - _STAND_INS) : end]
        return some[some != index]

    @cached_property
    def _sorted(self) -> Any:
        return self._in_order(self._members)

    @property
    def padding(self) -> float:
        """The part of all batches that is filling, if each is padded to its longest sample (and to `multiple_of`)."""
        cuts, sorted_lengths = self._cuts, self.lengths[self._sorted]
        if len(cuts) < 2:
            return 0.0
        longest = padded_to(np.maximum.reduceat(sorted_lengths, cuts[:-1]), self.multiple_of)
        used = float((longest * np.diff(cuts)).sum())
        return 1 - float(sorted_lengths[: cuts[-1]].sum()) / used if used else 0.0

    @property
    def _steps(self) -> int:
        batches = len(self._cuts) - 1
        return batches // self.num_replicas if self.drop_last else -(-batches // self.num_replicas)

    def _order(self, epoch: int) -> tuple[Any, Any]:
        """Indices, and where in them each batch of this rank begins and ends."""
        random = np.random.default_rng([self.seed % (1 << 64), epoch % (1 << 64)]) if self.shuffle else None
        members = self._members if random is None else random.permutation(self._members)
        if self.drop_last and self.max_tokens is None:
            members = members[: self._cuts[-1]]  # by chance, not by length; without a shuffle the last ones
        order = self._in_order(members)
        steps = self._numbers(random).reshape(-1, self.num_replicas)
        steps = steps[::-1] if random is None else steps[random.permutation(len(steps))]
        mine = steps[:, self.rank]
        return order, np.stack([self._cuts[mine], self._cuts[mine + 1]], axis=1).tolist()

    def _numbers(self, random: np.random.Generator | None) -> Any:
        """Of all batches, sorted by length, as many as all ranks take: some twice, or some left out; the shortest ones, or by chance."""
        batches, taken = len(self._cuts) - 1, self._steps * self.num_replicas
        every = np.arange(batches) if random is None else random.permutation(batches)
        if random is None and taken < batches:
            every = every[::-1]
        return np.sort(np.resize(every, taken)) if batches else every

    def _in_order(self, members: Any) -> Any:
        """By class; of one class as they are given."""
        return members[np.argsort(self._classes[members], kind="stable")]

    # --- what is the same in every epoch ---

    def _who_comes(self) -> Any:
        everybody = np.arange(len(self.lengths))
        if self.max_tokens is None or self.too_long == "alone":
            return everybody
        fits = padded_to(self.lengths, self.multiple_of if self.padded else 1) <= self.max_tokens
        if self.too_long == "error" and not fits.all():
            some = ", ".join(f"{index} ({self.lengths[index]:,})" for index in np.flatnonzero(~fits)[:5])
            rounded = f" when rounded up to multiple_of={self.multiple_of}" if self.padded and self.multiple_of > 1 else ""
            raise OptionError(
                f"BatchesByLength: {(~fits).sum():,} of {len(fits):,} samples are longer than max_tokens={self.max_tokens:,}{rounded}: "
                f"{some}\n"
                '  what to do: a larger max_tokens, or too_long="alone" (a batch for each) or "skip" (they are never loaded)'
            )
        return everybody[fits]

    def _cut(self) -> Any:
        """Where batches begin in the sorted order, and the end of the last one."""
        count, size = len(self._members), self.most_samples
        if self.max_tokens is None:
            assert size is not None
            return np.append(
                np.arange(0, count - size + 1 if self.drop_last else count, size), count // size * size if self.drop_last else count
            )
        sizes = np.sort(self._costs()[self._members])
        return np.array(cuts_by_tokens(sizes, self.max_tokens, size or count, self.padded), dtype=np.int64)

    def _costs(self) -> Any:
        """What a sample counts for; with filling the most that any of its class needs."""
        return np.minimum(self._classes, max(int(self.max_tokens or 0), 1)) if self.padded else self._classes


def limits(maker: str, batch_size: Any, max_tokens: Any, too_long: str) -> tuple[int | None, int | None]:
    """Checked."""
    if batch_size is None and max_tokens is None:
        raise OptionError(f"{maker}: give batch_size=, max_tokens=, or both")
    if too_long not in TOO_LONG:
        raise OptionError(f"{maker}: too_long is one of {', '.join(TOO_LONG)}, not {too_long!r}")
    return (
        None if batch_size is None else whole_number(maker, "batch_size", batch_size),
        None if max_tokens is None else whole_number(maker, "max_tokens", max_tokens),
    )


def cuts_by_tokens(sizes: Any, most: int, most_samples: int, padded: bool) -> list[int]:
    """`sizes` are sorted. A batch takes samples as long as they fit; one without a token counts as one, for no batch is without end."""
    cuts, begin, sizes = [0], 0, np.maximum(sizes, 1)
    sums = None if padded else np.append(0, np.cumsum(sizes))
    while begin < len(sizes):
        end = min(begin + most_samples, len(sizes))
        if sums is not None:
            end = min(end, int(np.searchsorted(sums, sums[begin] + most, side="right")) - 1)
        else:
            low = begin + 1  # the largest end with (end - begin) · size of the last one ≤ most: it grows with end
            while low < end:
                middle = (low + end + 1) // 2
                low, end = (middle, end) if (middle - begin) * int(sizes[middle - 1]) <= most else (low, middle - 1)
            end = low
        begin = max(end, begin + 1)
        cuts.append(begin)
    return cuts


def _classes(lengths: Any, multiple_of: int) -> Any:
    """Lengths rounded up: to `multiple_of`, and by a sixteenth at most."""
    rounded = padded_to(lengths, multiple_of)
    step = np.maximum(1, 1 << np.maximum(np.frexp(np.maximum(rounded, 1))[1].astype(np.int64) - 1 - int(np.log2(_FINENESS)), 0))
    return padded_to(-(-rounded // step) * step, multiple_of)


def padded_to(lengths: Any, multiple_of: int) -> Any:
    return -(-lengths // multiple_of) * multiple_of


def _as_lengths(lengths: Any) -> Any:
    if isinstance(lengths, Dataset):  # whose samples numpy would ask for, one after the other, and for ever where no IndexError comes
        raise OptionError(
            f"BatchesByLength: lengths is a number for each sample, not the data set itself ({type(lengths).__name__}); "
            "lengths_of(dataset) gives them"
        )
    if not isinstance(lengths, (Sized, torch.Tensor)):
        raise OptionError(f"BatchesByLength: lengths is a list or array of whole numbers, not {type(lengths).__name__}")
    try:
        found = np.asarray(lengths)
    except (RuntimeError, TypeError, ValueError) as error:  # a tensor elsewhere, lists within lists
        raise OptionError(f"BatchesByLength: lengths is a list or array of whole numbers, one for each sample: {error}") from error
    if found.ndim != 1 or (found.size and found.dtype.kind not in "iu"):
        raise OptionError(
            f"BatchesByLength: lengths is a list or array of whole numbers, one for each sample, not {found.dtype}{list(found.shape)}"
        )
    odd = next((at for at in (found.argmin(), found.argmax()) if not 0 <= found[at] <= MOST), None) if found.size else None
    if odd is not None:
        raise OptionError(f"BatchesByLength: sample {odd} has the length {found[odd]:,}")
    return found.astype(np.int64)


def _place(num_replicas: int | None, rank: int | None) -> tuple[int, int]:
    ready = torch.distributed.is_available() and torch.distributed.is_initialized()
    if num_replicas is None:
        num_replicas = torch.distributed.get_world_size() if ready else 1
    if rank is None:
        rank = torch.distributed.get_rank() if ready else 0
    num_replicas, rank = whole_number("BatchesByLength", "num_replicas", num_replicas), whole_number("BatchesByLength", "rank", rank, 0)
    if not 0 <= rank < num_replicas:
        raise OptionError(f"BatchesByLength: rank {rank} of num_replicas={num_replicas} cannot be: ranks count from 0")
    return num_replicas, rank
