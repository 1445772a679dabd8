"""The plan of the next epoch before it begins: a guess, drawn from copies, so that nothing of the user's moves.

    index sampler, generators ──copies──▶ base seed, as iter(loader) would draw it ──▶ MapPlan over a copy of the sampler

1. Known are SequentialSampler, RandomSampler and DistributedSampler, exactly these types, under torch's own BatchSampler or without
   automatic batching, and our BatchesByLength. Of any other nothing is guessed.
2. Whoever uses the guess compares what it gave with what the epoch really is. So it need not be right, only repeatable.
3. The process's own generator may move between two epochs: `words_between` finds out by how much, and the next guess assumes what is
   `likeliest` after the last few times.
"""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils.data import BatchSampler, DistributedSampler, RandomSampler, SequentialSampler

from antifreeze.batching.by_length import BatchesByLength
from antifreeze.plan.map_plan import MapPlan, Quarantine
from antifreeze.plan.order import Drawn

MOST_WORDS = 64
"""A loader that is iterated in between draws two or four of them; dropout in the loop draws thousands, and cannot be foreseen."""


@dataclass(frozen=True)
class Foreseen:
    """`base_seed`: None where the next epoch keeps the one of this epoch. `state`: of the process's generator when it was made."""

    plan: MapPlan
    base_seed: int | None
    state: torch.Tensor


def can_foresee(index_sampler: Any, auto_collation: bool) -> bool:
    if auto_collation and type(index_sampler) is not BatchSampler:
        return type(index_sampler) is BatchesByLength
    source = index_sampler.sampler if auto_collation else index_sampler
    return type(source) in (SequentialSampler, RandomSampler, DistributedSampler)


def foresee(
    index_sampler: Any,
    auto_collation: bool,
    generator: torch.Generator | None,
    *,
    draws_base_seed: bool,
    between: int,
    drawn: Drawn,
    quarantine: Quarantine | None = None,
) -> Foreseen:
    """The next epoch of a loader with this `generator`, where the process's own will have moved by `between` words until then."""
    copies = _Copies(between)
    base_seed = _seed(copies.of(generator)) if draws_base_seed else None
    sampler: Any
    if type(index_sampler) is BatchesByLength:
        sampler = index_sampler.of_next_epoch()
    else:
        source = _copied(index_sampler.sampler if auto_collation else index_sampler, copies)
        sampler = BatchSampler(source, index_sampler.batch_size, index_sampler.drop_last) if auto_collation else source
    return Foreseen(MapPlan(sampler, auto_collation, (), quarantine, drawn), base_seed, copies.state)


def words_between(before: torch.Tensor, after: torch.Tensor) -> int | None:
    """How many words a generator has given from one state to the other; None where they are more than MOST_WORDS, or it was seeded."""
    walker = torch.Generator()
    walker.set_state(before)
    for words in range(MOST_WORDS + 1):
        if torch.equal(walker.get_state(), after):
            return words
        _pass_word(walker)
    return None


def likeliest(words: Sequence[int]) -> int:
    """How many it will be the next time: what it was most often; of two that were as often, the one that is longer ago, for they may take
    turns (validation after every other epoch)."""
    counts, backwards = Counter(words), list(reversed(words))
    return max(counts, key=lambda each: (counts[each], backwards.index(each)), default=0)


class _Copies:
    """One copy of each generator: whoever draws from the same one draws in turn."""

    def __init__(self, between: int) -> None:
        self.state = torch.default_generator.get_state()
        self._copies: list[tuple[Any, torch.Generator]] = []
        for _ in range(between):
            _pass_word(self.of(None))

    def of(self, generator: torch.Generator | None) -> torch.Generator:
        generator = torch.default_generator if generator is None else generator
        known = next((own for original, own in self._copies if original is generator), None)
        if known is None:
            known = torch.Generator()
            known.set_state(generator.get_state())
            self._copies.append((generator, known))
        return known


def _pass_word(generator: torch.Generator) -> None:
    torch.empty((), dtype=torch.int32).random_(generator=generator)


def _seed(generator: torch.Generator) -> int:
    """As torch's iterators and RandomSampler draw one."""
    return int(torch.empty((), dtype=torch.int64).random_(generator=generator).item())


def _copied(sampler: Any, copies: _Copies) -> Any:
    copied = copy.copy(sampler)
    if type(sampler) is RandomSampler:
        if sampler.generator is None:
            copied.generator = torch.Generator().manual_seed(_seed(copies.of(None)))
        else:
            copied.generator = copies.of(sampler.generator)
    elif type(sampler) is DistributedSampler:
        copied.epoch = sampler.epoch + 1  # as the user is about to set it, or we for him (delivery/traps.py)
    return copied
