"""The first batches of the next epoch, loaded while the last ones of this epoch are used (decision 0011).

    epoch e:  … n-3  n-2  n-1 ┐                          iter(loader): everything is drawn for real
    ahead:                    └▶ 0?  1?  2?  (a guess)  ──┬─ the same? ──▶ batches 0, 1, 2 of epoch e+1, in flight already
                                                          └─ else they are dropped, and loaded as they would have been

1. A guess costs nothing but work of workers that had none: it moves no generator, and takes no more slots than one epoch may have.
2. It is used only where seeds, numbers, positions and indices are those of the epoch as it is. What was loaded is then what would have
   been loaded: the data set of a worker that stays is its own.
3. An error of a guess is no error: the batch is loaded again when its epoch has begun.
4. After MISSES_ENOUGH wrong guesses in a row there are none for some epochs, each time for twice as many.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch

from antifreeze.delivery.ledger import Warmth
from antifreeze.delivery.outside import shares_memory, whose_nameless
from antifreeze.options import Options, UnevenChoice, WorkerKind
from antifreeze.plan.foresight import Foreseen, can_foresee, foresee, likeliest, words_between
from antifreeze.plan.map_plan import PlannedBatch, Quarantine
from antifreeze.plan.order import Drawn
from antifreeze.signals import raise_if_of_signal
from antifreeze.torch_private import is_datapipe, is_iterable_kind
from antifreeze.worker.seeding import task_key

MISSES_ENOUGH, MOST_RESTS = 3, 64


class Giver(Protocol):
    """Whoever gives batches to the workers (flights.py)."""

    def room_left(self) -> int: ...

    def give_ahead(self, planned: PlannedBatch, key: int) -> int: ...


@dataclass
class _Ahead:
    """One guess, and the batches of it that are in flight, by their tickets."""

    foreseen: Foreseen
    key: int
    batches: deque[tuple[int, PlannedBatch]] = field(default_factory=deque)
    at_end: bool = False


class NextEpoch:
    """Of one pool, whose iterators may come and go."""

    def __init__(self, loader: Any, quarantine: Quarantine | None, warmth: Warmth) -> None:
        self._dataset = loader.dataset
        self._index_sampler = loader._index_sampler
        self._auto_collation: bool = loader._auto_collation
        self.generator = loader.generator
        self._keeps_seed: bool = loader.persistent_workers
        self._quarantine = quarantine
        self._warmth = warmth
        self.drawn = Drawn()
        self._ahead: _Ahead | None = None
        self._nameless: dict[str, bool] | None = None
        self._looked = False  # for memory that is shared

    def __repr__(self) -> str:
        ahead = 0 if self._ahead is None else len(self._ahead.batches)
        return f"<NextEpoch: {ahead} batches ahead, {self._warmth.misses} wrong guesses in a row>"

    def look_early(self) -> None:
        """Workers have been started, and the loop will wait for them: what of the look for shared memory takes long is done now, and
        not where a GPU would wait."""
        if not self._looked and self._nameless is None:
            self._nameless = whose_nameless()

    def go_on(self, giver: Giver, base_seed: int, epoch: int) -> None:
        """The order of this epoch is drawn to its end: as much of the next one as there is room for."""
        if self._warmth.why_not:
            return
        room, ahead = giver.room_left(), self._ahead
        if ahead is None:
            if room <= 0 or not self._may_guess():
                return
            ahead = self._ahead = self._guess(base_seed, epoch)
        room -= len(ahead.batches)
        while room > 0 and not ahead.at_end:
            planned = self._draw(ahead)
            if planned is None:
                return
            ahead.batches.append((giver.give_ahead(planned, ahead.key), planned))
            room -= 1

    def _may_guess(self) -> bool:
        if not self._looked:
            self._looked = True
            self._warmth.impossible = shares_memory(self._dataset, self._nameless)
        return not self._warmth.impossible

    def _guess(self, base_seed: int, epoch: int) -> _Ahead:
        self.drawn.forget()
        foreseen = foresee(
            self._index_sampler,
            self._auto_collation,
            self.generator,
            draws_base_seed=not self._keeps_seed,
            between=likeliest(self._warmth.words_between),
            drawn=self.drawn,
            quarantine=self._quarantine,
        )
        # workers that persist keep their seed and count epochs; a new iterator draws a seed, and begins with epoch 0
        key = task_key(base_seed, epoch + 1) if foreseen.base_seed is None else task_key(foreseen.base_seed, 0)
        return _Ahead(foreseen, key)

    def _draw(self, ahead: _Ahead) -> PlannedBatch | None:
        self.drawn.keeps = True
        try:
            planned = ahead.foreseen.plan.draw()
        except Exception as error:  # of the data set's length, say: it is met again where it counts
            raise_if_of_signal(error)
            planned = None
        finally:
            self.drawn.keeps = False
        ahead.at_end = planned is None
        return planned

    def take_over(self, planned: deque[PlannedBatch | BaseException], key: int, state: torch.Tensor) -> list[int]:
        """The next epoch has begun, and this is planned of it: the tickets of its first batches that are in flight already.
        `state`: of the process's generator when iter(loader) began."""
        ahead, self._ahead = self._ahead, None
        self._warmth.rests_for = max(0, self._warmth.rests_for - 1)
        if ahead is None:
            return []
        tickets: list[int] = []
        for (ticket, foreseen), real in zip(ahead.batches, planned, strict=False):
            if key != ahead.key or isinstance(real, BaseException) or not _is_same(real, foreseen):
                break
            tickets.append(ticket)
        self._learn(ahead, bool(tickets), state)
        self._warmth.used += len(tickets)
        self._warmth.dropped += len(ahead.batches) - len(tickets)
        return tickets

    def _learn(self, ahead: _Ahead, right: bool, state: torch.Tensor) -> None:
        warmth = self._warmth
        if not ahead.batches:
            return
        words = likeliest(warmth.words_between) if right else words_between(ahead.foreseen.state, state)
        if words is not None:
            warmth.words_between.append(words)
        warmth.misses = 0 if right else warmth.misses + 1
        if warmth.misses >= MISSES_ENOUGH:
            self.drawn.forget()
            warmth.rests_for = min(MOST_RESTS, 2 ** (warmth.misses - MISSES_ENOUGH + 1))

    def forget(self) -> None:
        """The workers are gone, and with them what they had loaded."""
        if self._ahead is not None:
            self._warmth.dropped += len(self._ahead.batches)
        self._ahead = None
        self.drawn.forget()


def _is_same(one: PlannedBatch, other: PlannedBatch) -> bool:
    return one[:3] == other[:3] and type(one.indices) is type(other.indices)


def why_cold(loader: Any) -> str:
    """Why nothing of the next epoch can be loaded before it begins; empty where it can, as far as the loader's arguments tell."""
    options: Options = loader._own_options
    if not options.warm_epochs:
        return "warm_epochs=False"
    if not loader.num_workers or options.workers is WorkerKind.THREAD:
        return "workers are no processes of their own"
    if is_iterable_kind(loader) or is_datapipe(loader.dataset):
        return "an iterable data set decides by itself what comes next"
    if not loader.persistent_workers and (not loader._is_auto or loader.worker_init_fn is not None):
        return "workers are not kept"
    if not can_foresee(loader._index_sampler, loader._auto_collation):
        return f"the order of {type(loader._index_sampler).__name__} cannot be foreseen"
    if options.uneven_ranks is UnevenChoice.PAD:
        return 'uneven_ranks="pad"'
    return ""
