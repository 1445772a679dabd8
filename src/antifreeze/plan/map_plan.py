"""The plan of a map-style data set: batches of indices, drawn from the user's sampler exactly as torch draws them.

    sampler ──▶ [i₀ i₁ i₂ …] ──▶ batch 0, batch 1, …          position: the ordinal of a sample in its epoch

1. The sampler is advanced by `draw()` alone, one batch at a time, never further.
2. A resumed plan draws the same order again from the random state of the epoch's start and passes over what was delivered;
   a sampler with state_dict()/load_state_dict() is asked instead. An order that begins otherwise than the first time is refused.
   A sampler that draws from the process's generators batch by batch goes on from where the passed batches left them.
3. `draw_spare` takes the next sample of the order for a batch that lost one; later batches begin after it. (`composes`: where the
   loader itself makes the batches.)
"""

from __future__ import annotations

import zlib
from array import array
from collections.abc import Iterable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from itertools import islice
from typing import Any, NamedTuple

import torch
from torch.utils.data import BatchSampler

from antifreeze.batching.by_length import BatchesByLength
from antifreeze.errors import OptionError, StateMismatch
from antifreeze.naming import shown
from antifreeze.plan.given import taken
from antifreeze.plan.order import ArrayOrder, Drawn, draws_from_torch_alone, order_of
from antifreeze.plan.randomness import Apart, Moment, as_it_was
from antifreeze.signals import raise_if_of_signal

_MANY = (list, tuple, array)


class PlannedBatch(NamedTuple):
    """Batch `number` of the epoch; `indices` is a list, an array of int64, or the single index of a loader without automatic
    batching."""

    number: int
    indices: Any
    position: int
    after: MapPosition

    @property
    def rows(self) -> int:
        drawn, indices = self.after.samples - self.position, self.indices
        if drawn == 1 or not isinstance(indices, _MANY) or len(indices) >= drawn:
            return drawn
        return len(indices)  # samples at its end have moved up to earlier batches since


class MapPosition(NamedTuple):
    """How far a plan is after a batch: enough to go on from there. `ended`: that batch has shown the sampler's end, of which its own word
    for where it is may know nothing any more."""

    batches: int
    samples: int
    sampler_state: Any
    ended: bool = False


@dataclass(frozen=True)
class Quarantine:
    """Samples (by the repr of their index) that are left out, or, where `samples` is told, give way to another one."""

    listed: frozenset[str]
    samples: int | None = None

    def filter(self, indices: Iterable[Any], sampler: Any = None) -> Iterator[Any]:
        for index in indices:
            if shown(index) not in self.listed:
                yield index
            elif self.samples:
                yield self._other(index, sampler)

    def filter_batches(self, batches: Iterable[Any], sampler: Any = None) -> Iterator[Any]:
        for batch in batches:
            kept = list(self.filter(batch, sampler))
            if kept:
                yield kept

    def _other(self, index: Any, sampler: Any) -> int:
        assert self.samples is not None
        first = zlib.crc32(shown(index).encode())
        for some in (stand_ins(sampler, index, self.samples), range(self.samples)):
            others = (int(some[(first + step) % len(some)]) for step in range(len(some)))
            other = next((other for other in others if repr(other) not in self.listed), None)
            if other is not None:
                return other
        raise OptionError(
            f"quarantine: all {self.samples:,} samples of the data set are listed, so that no other can take the place of one"
        )


def stand_ins(index_sampler: Any, index: Any, samples: int | None) -> Sequence[int]:
    """Who may take the place of a bad sample: anybody, unless the batch sampler says whom it can have there."""
    if isinstance(index_sampler, BatchesByLength):
        fitting: Sequence[int] = index_sampler.stand_ins(index)
        return fitting
    return range(samples or 0)


class MapPlan:
    def __init__(
        self,
        index_sampler: Any,
        auto_collation: bool,
        generators: Sequence[torch.Generator] = (),
        quarantine: Quarantine | None = None,
        drawn: Drawn | None = None,
    ) -> None:
        self._drawn = drawn
        self._index_sampler = index_sampler
        self._auto_collation = auto_collation
        self._quarantine = quarantine
        self._generators = generators
        self.composes = auto_collation and type(index_sampler) is BatchSampler
        self._source = index_sampler.sampler if self.composes else index_sampler
        self._iterator: Iterator[Any] | None = None
        self._adopted: Iterator[Any] | None = None
        self._spares: frozenset[int] = frozenset()
        self._drawn_before = True
        self._apart: Apart | None = None
        self._stateful: Any = self._find_stateful()
        self._moment: Moment | None = None
        self._randomness: dict[str, Any] | None = None
        self.beginning: int | None = None
        self.asked: dict[str, Any] | None = None
        """The random state in which the adopted iterator was asked for."""
        self.position = MapPosition(0, 0, None)

    def resume(
        self,
        position: MapPosition,
        randomness: dict[str, Any] | None,
        beginning: int | None,
        spares: frozenset[int] = frozenset(),
        drawn: bool = True,
    ) -> None:
        """Before the first draw: go on after `position` of an epoch whose order was drawn from `randomness` and began so;
        the samples at `spares` have moved up already. (Not `drawn`: it was about to be.)"""
        self.position = position
        self._spares = spares
        self._drawn_before = drawn
        self._randomness = randomness
        self.beginning = beginning

    @property
    def randomness(self) -> dict[str, Any] | None:
        """The random state that the epoch's order was drawn from; None where it is not drawn yet."""
        if self._randomness is None and self._moment is not None:
            self._randomness = self._moment.told()
        return self._randomness

    def stand_ins(self, index: Any, samples: int | None) -> Sequence[int]:
        return stand_ins(self._index_sampler, index, samples)

    def adopt(self, iterator: Iterator[Any]) -> None:
        """Before the first draw: torch's iterator has asked the sampler for this one already."""
        if not self.composes:
            self._adopted = iterator

    def draw(self, as_list: bool = False) -> PlannedBatch | None:
        """The next batch; None at the end. May raise what the user's sampler raises. `as_list`: also where its indices could be an array,
        for whoever takes them as they are."""
        if self._iterator is None:
            with self._beginning() as replayed:
                self._iterator = self._begin()
                self._stateful = self._find_stateful()
                self._pass_spares()
                self._apart = None if replayed is None else Apart(replayed)
        elif self._spares:
            with self._drawing():
                self._pass_spares()
        apart = self._apart
        indices = self._next_indices(self._iterator, as_list) if apart is None else self._next_apart(self._iterator, apart, as_list)
        if indices is _END:
            return None
        before = self.position
        if self._auto_collation and not self.composes:
            indices = taken(indices)
        if self.beginning is None:
            self.beginning = _check_sum([indices.tolist() if isinstance(indices, array) else indices])
        count = len(indices) if self._auto_collation and isinstance(indices, _MANY) else 1
        state = None if self._stateful is None else self.sampler_state()
        ended = self.composes and count < self._index_sampler.batch_size
        self.position = after = MapPosition(before.batches + 1, before.samples + count, state, ended)
        return PlannedBatch(before.batches, indices, before.samples, after)

    def repeat(self, indices: Any) -> PlannedBatch:
        """After the end: one more batch, of samples that came before, at positions of its own."""
        begin, rows = self.position, len(indices) if self._auto_collation else 1
        self.position = begin._replace(batches=begin.batches + 1, samples=begin.samples + rows)
        return PlannedBatch(begin.batches, indices, begin.samples, self.position)

    def draw_spare(self) -> tuple[Any, int] | None:
        """(index, position) of the next sample, where this plan makes the batches itself."""
        if not self.composes or self._iterator is None:
            return None
        with self._drawing():
            index = next(self._iterator, _END)
        if index is _END:
            return None
        before = self.position
        self.position = MapPosition(before.batches, before.samples + 1, self.sampler_state())
        return index, before.samples

    def _pass_spares(self) -> None:
        """Batches begin after a spare, never across one: it was drawn between two of them."""
        while self._spares and self._iterator is not None and self.position.samples in self._spares:
            next(self._iterator, None)
            self.position = self.position._replace(samples=self.position.samples + 1)

    def _beginning(self) -> Any:
        """Around the beginning of a resumed epoch the generators are as they were at its start."""
        if self._randomness is None:
            self._moment = Moment(self._generators, of_torch=self._is_torchs)
            return nullcontext()
        return as_it_was(self._randomness, self._generators, self._drawn_before)

    @property
    def _is_torchs(self) -> bool:
        """A sampler that draws from the process's torch alone, and that with its first batch."""
        return self.composes and draws_from_torch_alone(self._source)

    def _drawing(self) -> Any:
        return nullcontext() if self._apart is None else self._apart.drawing()

    def _next_apart(self, iterator: Iterator[Any], apart: Apart, as_list: bool) -> Any:
        with apart.drawing():
            indices = self._next_indices(iterator, as_list)
        if self._is_torchs or self._stateful is not None:
            self._apart = None  # it has drawn all it needs; or it knows by itself where it is, and draws as it would have
        return indices

    def _next_indices(self, iterator: Iterator[Any], as_list: bool) -> Any:
        if not self.composes:
            return next(iterator, _END)
        size = self._index_sampler.batch_size
        batch: list[Any] | array[int]
        if not isinstance(iterator, ArrayOrder):
            batch = list(islice(iterator, size))
        else:
            batch = iterator.take_list(size) if as_list else iterator.take(size)
        return _END if len(batch) < size and (not batch or self._index_sampler.drop_last) else batch

    def _begin(self) -> Any:
        saved = self.position.sampler_state
        if saved is not None and hasattr(self._source, "load_state_dict"):
            self._source.load_state_dict(saved)
        iterator: Any = self._adopted
        if iterator is None or (saved is not None and hasattr(self._source, "load_state_dict")):
            iterator = (self.composes and order_of(self._source, self._drawn)) or iter(self._source)
        if saved is not None and not hasattr(self._source, "load_state_dict"):
            iterator.load_state_dict(saved)
        if self._quarantine is not None:
            whole_batches = self._auto_collation and not self.composes
            sampler = self._index_sampler
            iterator = self._quarantine.filter_batches(iterator, sampler) if whole_batches else self._quarantine.filter(iterator)
        if saved is None:
            self._pass_over(iterator)
        elif self.position.ended:
            return iter(())
        return iterator

    def _pass_over(self, iterator: Iterator[Any]) -> None:
        """What was delivered before; in passing, whether the order is the one it was."""
        if not self.position.batches:
            return
        passed = self.position.samples if self.composes else self.position.batches
        first = list(islice(iterator, min(passed, self._index_sampler.batch_size) if self.composes else 1))
        indices = (
            first
            if self.composes
            else [_listed(index) if self._auto_collation and not isinstance(index, tuple) else index for index in first]
        )
        if _check_sum([indices] if self.composes else indices) != self.beginning:
            raise StateMismatch(
                f"the sampler {type(self._source).__name__} gives another order than when the state was taken, so it cannot be resumed;\n"
                "  what to do: give the loader a generator=, seed the sampler by itself, or give it state_dict() and load_state_dict()"
            )
        if isinstance(iterator, ArrayOrder):
            iterator.skip(passed - len(first))
        else:
            next(islice(iterator, passed - len(first), passed - len(first)), None)

    def sampler_state(self) -> Any:
        """The sampler's own word for where it is, where it has one."""
        return None if self._stateful is None else self._stateful.state_dict()

    def _find_stateful(self) -> Any:
        for source in (self._source, self._iterator):
            if hasattr(source, "state_dict") and hasattr(source, "load_state_dict"):
                return source
        return None


def _listed(indices: Any) -> Any:
    """A list of any iterable; what is none is left for the data set to refuse."""
    return list(indices) if isinstance(indices, Iterable) else indices


def _check_sum(indices: list[Any]) -> int:
    try:
        return zlib.crc32(repr(indices).encode())
    except Exception as error:  # a key without a repr
        raise_if_of_signal(error)
        return zlib.crc32("".join(shown(key) for part in indices for key in (part if isinstance(part, list) else [part])).encode())


_END = object()
