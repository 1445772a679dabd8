"""Randomness keyed on the sample: `random`, `numpy.random` and `torch` start each sample from (base seed, epoch, position).

1. A position is the ordinal of a sample in its epoch, so the same sample drawn twice is augmented in two ways, and the number of
   workers, a restart or a resume change nothing.
2. Seeding all three costs about 7 µs. So the first WARM_UP samples (BATCH_WARM_UP batches, for what is called once per batch) seed
   all three and watch which ones the data set uses; after that only those are seeded. The others are looked at after each task: if
   one has moved after all, the task's samples are fetched again, seeded, and from then on it counts as used. (`look_again`: somebody
   else may have moved them in the meantime.)
3. One that is used is dealt a hand of words, and seeded in full only where samples have drawn more than that (hands.py): this, too, is
   looked at after each task, which is fetched again where it had drawn on what was not its own.
4. A generator that `worker_init_fn` seeded is the user's: it is left alone.
5. Whoever shares a process with the user's own code (no workers) puts the generators back as they were.
6. `torch.initial_seed()` stays what torch says: the seed of the worker (of the stream, whoever hosts it), or of the user's own process.
   Data sets have their workers agree on an order by it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from operator import itemgetter
from typing import Any, Protocol

from antifreeze.signals import came_from_signal
from antifreeze.worker.generators import glance_at, global_generators, say_initial_seed
from antifreeze.worker.hands import Dealer, mix, seed_at, seed_for_sample
from antifreeze.worker.turns import has_floor, in_worker_thread, losers, unless_given_up, wait_for_losers
from antifreeze.worker.twister import Generator

WARM_UP = 4
BATCH_WARM_UP = 2
_MASK = (1 << 64) - 1
_COLLATE = 0x5851F42D4C957F2D


_FIRST = itemgetter(0)


class Seeds(Protocol):
    """How a data set's code is run so that each sample sees its own random numbers: SampleSeeds says what each of these does."""

    def begin_epoch(self, base_seed: int, epoch: int) -> None: ...

    def use_key(self, key: int) -> None: ...

    def for_each(self, position: int, count: int, fetch: Callable[[int], None], offsets: Sequence[int] | None = None) -> None: ...

    def for_batch(self, position: int, collating: bool = False, initial_seed: int | None = None) -> None: ...

    def around_batch(self, position: int, call: Callable[[], Any], collating: bool = False) -> Any: ...

    def may_go_plainly(self) -> bool: ...

    def seeding_each(self, place: Iterator[Any], position: int, count: int, offsets: Sequence[int] | None = None) -> Iterator[Any]: ...

    def samples_need_none(self) -> bool: ...

    def batches_need_none(self) -> bool: ...

    def watch(self) -> None: ...

    def late_use(self) -> bool: ...

    def no_code_ran(self) -> None: ...

    def look_again(self, moved: Sequence[Generator] | None = None) -> None: ...

    def seed_of(self, position: int) -> int: ...


class SampleSeeds:
    """Runs a data set's code so that each sample sees its own random numbers."""

    def __init__(self, base_seed: int, epoch: int, generators: Sequence[Generator] | None = None) -> None:
        self._unused: list[Generator] = list(global_generators() if generators is None else generators)
        self._used: list[Generator] = []
        self._used_by_batches: list[Generator] = []  # by what is called once per batch
        self._dealers = {generator: Dealer(generator) for generator in self._unused}
        self._count = len(self._unused)
        self._glance: Callable[[], Any] = glance_at(self._unused)
        self._glanced: Any = None
        self._looked = self._seeded = False  # since begin_call
        self._warm_up_left = WARM_UP
        self._batch_warm_up_left = BATCH_WARM_UP
        self._dealing: list[Dealer] = []  # since `watch`
        self._marks: list[tuple[Generator, Any]] | None = None  # of the unused ones, while nobody has moved or seeded them
        self.begin_epoch(base_seed, epoch)

    def begin_epoch(self, base_seed: int, epoch: int) -> None:
        self._key = epoch_key(base_seed, epoch)

    def go_on_from(self, other: SampleSeeds) -> None:
        """What the same data set was seen to draw before need not be found out again."""
        self._warm_up_left, self._batch_warm_up_left = other._warm_up_left, other._batch_warm_up_left
        self._promote([generator for generator in self._unused if _is_among(generator, other._used)])
        self._used_by_batches = [generator for generator in self._dealers if _is_among(generator, other._used_by_batches)]
        seeded_in_full = [generator for generator, dealer in other._dealers.items() if dealer.in_full]
        for generator, dealer in self._dealers.items():
            dealer.in_full |= _is_among(generator, seeded_in_full)

    def use_key(self, key: int) -> None:
        """Of the task that comes: it may be of another epoch than the last one (task_key)."""
        self._key = key

    def leave_to_user(self, generators: Sequence[Generator]) -> None:
        self._unused = [generator for generator in self._unused if generator not in generators]
        self._used_by_batches = [generator for generator in self._used_by_batches if generator not in generators]
        self._marks = None

    def look_again(self, moved: Sequence[Generator] | None = None) -> None:
        """These (None: any of them) were moved by somebody who is no data set."""
        if moved is None or any(generator in self._unused for generator in moved):
            self._marks = None

    @property
    def used(self) -> Sequence[Generator]:
        """By samples, as far as is known."""
        return self._used

    def seed_of(self, position: int) -> int:
        """What every generator is seeded with before the sample at `position`."""
        return seed_at(self._key, position)

    def for_each(self, position: int, count: int, fetch: Callable[[int], None], offsets: Sequence[int] | None = None) -> None:
        """Calls fetch(0) … fetch(count - 1), the sample at position + k (or + offsets[k]) seeded before fetch(k)."""
        positions = range(position, position + count) if offsets is None else [position + offset for offset in offsets]
        done = 0
        while self._warm_up_left and done < count:
            self._seed_and_watch(self.seed_of(positions[done]), fetch, done)
            done += 1
        while done < count:  # again for each generator that turns out to be used, or to be used for more than a hand
            self.watch()
            try:
                for number in self._seeding_each(iter(range(done, count)), positions[done:]):
                    fetch(number)
            except Exception as error:
                if not self.late_use() or came_from_signal(error):
                    raise
            else:
                if not self.late_use():
                    return

    def may_go_plainly(self) -> bool:
        """Samples may be loaded one right after the other, between `watch` and `late_use`, `seeding_each` of them."""
        return not self._warm_up_left

    def seeding_each(self, place: Iterator[Any], position: int, count: int, offsets: Sequence[int] | None = None) -> Iterator[Any]:
        """What `place` gives: with each the generators become those of the sample at position + k (or + offsets[k])."""
        if not self._used:
            return place
        return self._seeding_each(
            place, range(position, position + count) if offsets is None else [position + offset for offset in offsets]
        )

    def samples_need_none(self) -> bool:
        """No sample so far has used a generator: they may be loaded unseeded, between `watch` and `late_use`."""
        return not self._warm_up_left and not self._used

    def batches_need_none(self) -> bool:
        """The same for what is called once per batch."""
        return not self._batch_warm_up_left and not self._used_by_batches

    def watch(self) -> None:
        self._looked = False
        self._dealing = []  # an exception may have left some
        if self._marks is None:
            self._marks = [(generator, generator.mark()) for generator in self._unused]
            self._glance = glance_at(self._unused)
            self._glanced = self._glance()

    def late_use(self) -> bool:
        """Whether a generator was used after all since the watch began, or for more than it was dealt; from now on it is seeded."""
        beyond = bool(self._dealing) and self._drew_beyond()
        if self._marks is None or self._glance() == self._glanced:  # None: `around_batch` has looked, and has run it again
            self._looked = not beyond
            return beyond
        late = [generator for generator, mark in self._marks if generator.moved_since(mark)]
        self._looked = not late
        if late:
            self._promote(late)
        return beyond or bool(late)

    @property
    def others_rest(self) -> bool:
        """After a `late_use` that found none: since the watch began only the `used` ones have moved, and none by a collate function."""
        return self._marks is not None

    def begin_call(self) -> None:
        self._looked = self._seeded = False

    def no_code_ran(self) -> None:
        """Nothing of the user's was called, so no generator can have moved."""
        self.watch()
        self._looked = True

    @property
    def untouched(self) -> bool:
        """Since begin_call all generators have been looked at, and none was seeded or moved."""
        return self._looked and not self._seeded and self._marks is not None and len(self._marks) == self._count

    def for_batch(self, position: int, collating: bool = False, initial_seed: int | None = None) -> None:
        """Seeds everything once, for code that handles a batch at a time and cannot be run again: iterables. `initial_seed`: what
        torch.initial_seed() says from now on."""
        seed, generators = self._batch_seed(position, collating), (*self._used, *self._unused)
        self._seed(generators, seed)
        say_initial_seed(generators, initial_seed)
        self._marks = None

    def around_batch(self, position: int, call: Callable[[], Any], collating: bool = False) -> Any:
        """What `call` returns, seeded once: __getitems__ and collate functions. As for samples, only generators that such code uses
        are seeded after the warm-up, and a late first use makes it run again."""
        everyone = (*self._used, *self._unused)
        warm = self._batch_warm_up_left > 0
        self._batch_warm_up_left -= warm
        while True:  # again for each generator that turns out to be used; what was raised meanwhile may come of others' numbers
            self._seed_for_batch(everyone if warm else self._used_by_batches, position, collating)
            self.watch()
            marks = [(generator, generator.mark()) for generator in everyone if generator not in self._used_by_batches]
            try:
                result = call()
            except Exception as error:
                if not self._note_used_by_batches(marks) or warm or came_from_signal(error):
                    raise
            else:
                if not self._note_used_by_batches(marks) or warm:
                    return result

    def _note_used_by_batches(self, marks: list[tuple[Generator, Any]]) -> bool:
        """Whether a generator has moved that none of them had used before."""
        late = [generator for generator, mark in marks if generator.moved_since(mark)]
        self._looked = not late
        self._used_by_batches += late
        if self._used_by_batches:
            self._marks = None  # it was no sample that moved them
        return bool(late)

    def _seed_for_batch(self, generators: Sequence[Generator], position: int, collating: bool) -> None:
        if generators:
            self._seed(generators, self._batch_seed(position, collating))
            self._marks = None

    def _seed(self, generators: Sequence[Generator], seed: int) -> None:
        for generator in generators:
            self._seeded = True
            generator.seed(seed)

    def _batch_seed(self, position: int, collating: bool) -> int:
        return batch_seed(self.seed_of(position), collating)

    def _seeding_each(self, place: Iterator[Any], positions: Sequence[int]) -> Iterator[Any]:
        if not self._used:
            return place
        self._seeded = True
        self._dealing = [self._dealers[generator] for generator in self._used]
        return map(_FIRST, zip(place, *(dealer.deal(self._key, positions) for dealer in self._dealing), strict=False))

    def _drew_beyond(self) -> bool:
        """Whether a sample has used more than its hand; from now on such a generator is seeded in full."""
        dealing, self._dealing = self._dealing, []
        return sum(map(Dealer.drew_beyond, dealing)) > 0

    def _seed_and_watch(self, seed: int, fetch: Callable[[int], None], number: int) -> None:
        for generator in (*self._used, *self._unused):
            seed_for_sample(generator, seed)
        self._seeded = True
        self._marks = None
        self.watch()
        self._warm_up_left -= 1
        self._dealing = list(self._dealers.values())
        for dealer in self._dealing:
            dealer.watch()
        try:
            fetch(number)
        finally:
            self.late_use()

    def note_used(self, generators: Sequence[Generator]) -> None:
        """Somebody else saw the data set use them."""
        self._promote([generator for generator in self._unused if generator in generators])

    def _promote(self, generators: list[Generator]) -> None:
        self._marks = None
        self._used += generators
        self._unused = [generator for generator in self._unused if generator not in generators]


def _is_among(generator: Generator, others: Sequence[Generator]) -> bool:
    return any(type(other) is type(generator) for other in others)


class KeptState:
    """The generators of the user's own process, put back as they were after each call that loads something; `seeds`: by which it is
    loaded."""

    def __init__(self, generators: Sequence[Generator] | None = None, seeds: SampleSeeds | None = None) -> None:
        self._generators = list(global_generators() if generators is None else generators)
        self.seeds = seeds
        self._saved = {generator: (generator.mark(), generator.save()) for generator in self._generators}
        self._glance = glance_at(self._generators)
        self._glanced = self._glance()
        self._is_open = False  # from `begin` until everything is put back

    def begin(self) -> None:
        if losers:
            wait_for_losers()
        if self._glance() != self._glanced:
            self._keep_what_moved()  # by the user's own code, since the last time
        self._is_open = True

    def settle(self) -> None:
        """Where a signal's handler may have broken off the putting back: it is done again."""
        if self._is_open:
            self._put_back(in_turn=in_worker_thread())

    def end(self, seeded: bool = False) -> bool:
        """Whether a generator had moved since `begin`, with nobody seeding it: it is as it was, and from now on seeded. In a worker's
        thread that has not the floor, it may be the loop that moved it: nothing is put back, and nothing is known."""
        if self._glance() == self._glanced:
            self._is_open = False
            return False
        if not has_floor():
            self._is_open = False
            return True
        moved = self._put_back(in_turn=in_worker_thread())
        if self.seeds is not None and not seeded:
            self.seeds.note_used(moved)
        return not seeded

    def end_of(self, used: Sequence[Generator]) -> None:
        """After `begin`, where no others than these can have moved."""
        for generator in used:
            generator.restore(self._saved[generator][1])
        self._is_open = False

    def run(self, call: Callable[[], Any], in_turn: bool = False) -> Any:
        """`in_turn`: within a worker's thread, which has the floor; should it lose it meanwhile, nothing is put back."""
        self.begin()
        if self.seeds is not None:
            self.seeds.begin_call()
        try:
            return call()
        finally:
            if self.seeds is None or not self.seeds.untouched:
                self._put_back(in_turn)
            self._is_open = False

    def _keep_what_moved(self) -> None:
        for generator in self._moved():
            self._saved[generator] = (generator.mark(), generator.save())
        self._glance = glance_at(self._generators)  # where they lie now
        self._glanced = self._glance()

    def _put_back(self, in_turn: bool) -> list[Generator]:
        moved = self._moved()
        if in_turn:
            unless_given_up(partial(self.end_of, moved))
            self._is_open = False
        else:
            self.end_of(moved)
        return moved

    def _moved(self) -> list[Generator]:
        moved = [generator for generator in self._generators if generator.moved_since(self._saved[generator][0])]
        if self.seeds is not None:
            self.seeds.look_again(moved)
        return moved


def sample_seed(base_seed: int, epoch: int, position: int) -> int:
    """What the generators are seeded with before a sample: to run it again by itself."""
    return seed_at(epoch_key(base_seed, epoch), position)


def batch_seed(sample_seed: int, collating: bool) -> int:
    """For what is called once per batch, whose first sample would have `sample_seed`."""
    return mix(sample_seed ^ (_COLLATE if collating else 0))


def epoch_key(base_seed: int, epoch: int) -> int:
    return mix((base_seed & _MASK) ^ mix(epoch + 1))


def task_key(base_seed: int, epoch: int) -> int:
    """The epoch's key as it travels with a task: as a signed number, which `seed_at` takes for the same."""
    key = epoch_key(base_seed, epoch)
    return key - (1 << 64) if key >> 63 else key
