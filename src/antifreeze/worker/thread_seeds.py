"""What SampleSeeds is to a process, for one thread of several: its data set's code, run freely or with the floor (turns.py).

1. Samples that need no turn run freely, and the generators are looked at before and after.
2. Where one has moved meanwhile, they are run again with the floor, each with its own numbers; what a stream has given cannot be run
   again, and its next batch is watched instead.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

from antifreeze.worker.failure import ThreadEnded
from antifreeze.worker.generators import say_initial_seed
from antifreeze.worker.hands import seed_at
from antifreeze.worker.journal import JournalRow
from antifreeze.worker.seeding import batch_seed, epoch_key
from antifreeze.worker.turns import FREELY, Of, Turn, Turns, floor_of, if_it_has_the_floor
from antifreeze.worker.twister import Generator


class ThreadSeeds:
    """One thread's; `turn` is its own, and its parent's to give up."""

    def __init__(self, base_seed: int, epoch: int, turns: Turns, journal: JournalRow) -> None:
        self.turn = Turn(turns, journal)
        self._turns = turns
        self._marks: list[Any] = []
        self._again = False  # what was just run freely is run again, with the floor
        self.begin_epoch(base_seed, epoch)

    def begin_epoch(self, base_seed: int, epoch: int) -> None:
        self._key = epoch_key(base_seed, epoch)

    def use_key(self, key: int) -> None:
        self._key = key

    def seed_of(self, position: int) -> int:
        return seed_at(self._key, position)

    def may_go_plainly(self) -> bool:
        return self.samples_need_none()

    def seeding_each(self, place: Iterator[Any], position: int, count: int, offsets: Sequence[int] | None = None) -> Iterator[Any]:
        return place

    def samples_need_none(self) -> bool:
        return not self._again and self._turns.usage.needs_no_turn(Of.SAMPLE)

    def batches_need_none(self) -> bool:
        return not self._again and self._turns.usage.needs_no_turn(Of.BATCH)

    def watch(self) -> None:
        """Samples run freely from now on, until `late_use` is asked."""
        if self.turn.floor is None:
            self._turns.usage.free.add(self.turn)
        self._marks = self._turns.seen()

    def late_use(self) -> bool:
        """Whether a generator has moved since the watch began, by whomever, and it is worth finding out."""
        self._again = self._turns.seen() != self._marks and self._turns.usage.is_worth_a_look()
        self.turn.end_free()
        return self._again

    def take_waits_ns(self) -> tuple[int, int]:
        """For the floor, since the last call: of samples, and of what collates them."""
        turn = self.turn
        waits = turn.waited_ns, turn.waited_to_collate_ns
        turn.waited_ns = turn.waited_to_collate_ns = 0
        return waits

    def no_code_ran(self) -> None:
        pass

    def look_again(self, moved: Sequence[Generator] | None = None) -> None:
        pass

    def for_each(self, position: int, count: int, fetch: Callable[[int], None], offsets: Sequence[int] | None = None) -> None:
        positions = range(position, position + count) if offsets is None else [position + offset for offset in offsets]
        self.turn.collates = False
        done = 0
        while done < count and not self.samples_need_none():  # until the warm-up is over
            again, self._again = self._again, False
            taken = self._turns.take(self.turn, self.seed_of(positions[done]), partial(fetch, done), Of.SAMPLE, looks=again)
            if taken is FREELY:
                break
            self._again = again
            done += 1
        if self._again:
            self._again = False
            self._turns.usage.was_looked_at()
        if done < count:
            self._freely_from(done, positions, fetch)

    def _freely_from(self, done: int, positions: Sequence[int], fetch: Callable[[int], None]) -> None:
        self.watch()
        try:
            for number in range(done, len(positions)):
                fetch(number)
        except Exception:
            if not self.late_use():
                raise
        if self._again or self.late_use():
            self._again = False
            for number in range(done, len(positions)):
                seed = self.seed_of(positions[number])
                self._turns.take(self.turn, seed, partial(fetch, number), Of.SAMPLE, looks=True)
            self._turns.usage.was_looked_at()

    def around_batch(self, position: int, call: Callable[[], Any], collating: bool = False) -> Any:
        again, self._again = self._again, False
        self.turn.collates = collating
        seed = batch_seed(self.seed_of(position), collating)
        result = FREELY
        if again or not self.batches_need_none():
            result = self._turns.take(self.turn, seed, call, Of.BATCH, looks=again)
        if result is not FREELY:
            return result
        self.watch()
        try:
            result = call()
        except Exception:
            if not self.late_use():
                raise
        if not self._again and not self.late_use():
            return result
        self._again = False
        result = self._turns.take(self.turn, seed, call, Of.BATCH, looks=True)
        self._turns.usage.was_looked_at()
        return result

    def for_batch(self, position: int, collating: bool = False, initial_seed: int | None = None) -> None:
        """Inside `around_stream`: where it has the floor, all are seeded."""
        if if_it_has_the_floor(self.turn, partial(self._seed_all, batch_seed(self.seed_of(position), collating), initial_seed)):
            self.watch()

    def _seed_all(self, seed: int, initial_seed: int | None) -> None:
        for generator in self._turns.usage.generators:
            generator.seed(seed)
        say_initial_seed(self._turns.usage.generators, initial_seed)

    def around_stream(self, of: Of, call: Callable[[], Any]) -> Any:
        """What cannot be run again: where a generator moved while it ran freely, the next batch is watched."""
        usage = self._turns.usage
        if of is Of.STREAM and usage.needs_no_turn(of):
            self.watch()
            try:
                result = call()
            except BaseException:
                self.turn.end_free()
                raise
            if self.late_use():
                self._again = False
                usage.warm_up_left[of] = 1
            return result
        with floor_of(self.turn, of):
            self._marks = self._turns.seen()
            result = call()
            if self.turn.given_up:
                raise ThreadEnded
            usage.used += [generator for generator in self._moved() if generator not in usage.used]
            if usage.warm_up_left[of] and of is Of.STREAM:
                usage.warm_up_left[of] -= 1
            return result

    def _moved(self) -> list[Generator]:
        return [
            generator for generator, mark in zip(self._turns.usage.generators, self._marks[1:], strict=True) if generator.mark() != mark
        ]
