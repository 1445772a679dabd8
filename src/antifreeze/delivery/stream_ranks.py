"""Ranks that iterate streams, whose numbers of batches nobody knows before their ends: still found before a collective waits.

    rank with batch k in hand ──▶ store: "rank 1 has 8 batches"        at its end ──▶ store: "rank 1 has 5 batches, and that is all"
    before it hands batch k over: has every other rank one, too?

1. A batch is handed over when every rank has one of that number. What a rank has ready ahead is said at once, so that the store is
   asked once for several batches.
2. Ranks wait for each other's word as long as the collective in the loop would make them wait, but never longer than PATIENCE_S; for a
   rank that has not begun, which may never iterate this loader, FIRST_PATIENCE_S, once per line that makes loaders. After that the
   numbers of this epoch are not compared.
3. With "error", and without gradients, there is no collective to be afraid of: nothing is asked, and nobody waits.
4. "trim" ends all ranks with the first one; "pad" repeats a rank's first batch until the last one is done; "error" raises on every
   rank that is still there.
"""

from __future__ import annotations

import copy
import json
import time
from collections.abc import Callable
from typing import Any

import torch

from antifreeze.delivery.ranks import ASK_EVERY_S, AtTheStore, alone, store_of_ranks
from antifreeze.delivery.ranks import PATIENCE_S as FIRST_PATIENCE_S
from antifreeze.errors import UnevenRanks
from antifreeze.options import UnevenChoice

PATIENCE_S = 30.0


class StreamRanks(AtTheStore):
    """What one loader knows of its counterparts on the other ranks."""

    def __init__(self, store: Any, choice: UnevenChoice, place: str, rank: int, world_size: int, say: Callable[[str], None]) -> None:
        super().__init__(store, say)
        self._choice = choice
        self._place = place
        self._line = place.partition("#")[0]
        self._rank = rank
        self._others = [other for other in range(world_size) if other != rank]
        self._epoch = 0
        self._begin_epoch()

    def __repr__(self) -> str:
        return f"<StreamRanks of the loader made at {self._place}: rank {self._rank}, epoch {self._epoch}, {self._delivered} delivered>"

    def begin(self) -> None:
        """An epoch."""
        self._epoch += 1
        self._begin_epoch()
        self._tell(0, ended=False)
        if self._epoch > 2:
            self._ask(lambda store: store.delete_key(self._key(self._rank, self._epoch - 2)))

    def _begin_epoch(self) -> None:
        self._delivered = self._told = self._safe = 0
        self._ended = self._compares_not = False
        self._held: list[Any] = []  # a batch that was in hand when the error was raised
        self._first: Any = None  # with "pad", to be repeated

    def next(self, load: Callable[[], Any], ready: Callable[[], int], end: Callable[[], None]) -> Any:
        """The next batch of this rank: `load` gives it, or raises StopIteration; `ready` says how many more are there already; `end`
        makes the stream end here."""
        if self._held:
            self._delivered += 1
            return self._held.pop()
        if self._ended:
            return self._after_the_end()
        try:
            data = load()
        except StopIteration:
            self._ended = True
            self._tell(self._delivered, ended=True)
            return self._after_the_end()
        if self._watches and not self._every_rank_has_one(ready):
            return self._one_has_ended(data, load, end)
        if self._choice is UnevenChoice.PAD and self._first is None:
            self._first = copy.deepcopy(data)
        self._delivered += 1
        return data

    @property
    def _watches(self) -> bool:
        if self._store is None or self._compares_not:
            return False
        return self._choice is not UnevenChoice.ERROR or torch.is_grad_enabled()

    def _every_rank_has_one(self, ready: Callable[[], int]) -> bool:
        if self._told <= self._delivered:
            self._tell(self._delivered + 1 + ready(), ended=False)
        if self._safe <= self._delivered:
            words = self._wait_for_words(self._delivered)
            if words is None:
                return True  # nobody knows
            self._safe = min(word["has"] for word in words)
        return self._safe > self._delivered

    def _one_has_ended(self, data: Any, load: Callable[[], Any], end: Callable[[], None]) -> Any:
        text = f"a rank has {self._safe:,} batches and rank {self._rank} has more (loader made at {self._line})"
        if self._choice is UnevenChoice.TRIM:
            self._say(f'{text}: every rank ends with the first, because of uneven_ranks="trim"')
            self._tell(self._delivered, ended=True)
            self._compares_not = True
            end()
            return load()
        if self._choice is UnevenChoice.PAD:
            self._say(f'{text}: ranks with fewer repeat one, because of uneven_ranks="pad"')
            self._safe = self._delivered + 1  # the other one follows
            self._delivered += 1
            return data
        self._compares_not = True
        self._held.append(data)
        raise UnevenRanks(self._error_text(text))

    def _after_the_end(self) -> Any:
        """This rank is done; the others may not be."""
        if not self._watches or self._choice is UnevenChoice.TRIM:
            raise StopIteration
        words = self._wait_for_words(self._delivered)
        goes_on = words is not None and any(word["has"] > self._delivered for word in words)
        if not goes_on:
            self._compares_not = True
            raise StopIteration
        text = f"rank {self._rank} has {self._delivered:,} batches and another rank has more (loader made at {self._line})"
        if self._choice is UnevenChoice.ERROR:
            self._compares_not = True
            raise UnevenRanks(self._error_text(text))
        if self._first is None:
            self._compares_not = True
            raise UnevenRanks(f"{text}: there is nothing to repeat on rank {self._rank}")
        self._say(f'{text}: ranks with fewer repeat one, because of uneven_ranks="pad"')
        self._delivered += 1
        return copy.deepcopy(self._first)

    @staticmethod
    def _error_text(text: str) -> str:
        return (
            f"{text}: a collective in the loop (as DDP's backward has) would wait for ever for the rank that is done\n"
            '  what to do: give all ranks streams of the same length, or uneven_ranks="trim" (all end with the first), "pad" (the others '
            'repeat a batch), or "ignore" (the loop has no collective, or uses Join)'
        )

    # --- the store ---

    def _key(self, rank: int, epoch: int | None = None) -> str:
        return f"antifreeze/streams/{self._place}/{self._epoch if epoch is None else epoch}/{rank}"

    def _tell(self, has: int, ended: bool) -> None:
        if self._store is not None:
            self._told = has
            word = json.dumps({"has": has, "ended": ended})
            self._ask(lambda store: store.set(self._key(self._rank), word))

    def _wait_for_words(self, batch: int) -> list[dict[str, Any]] | None:
        """Of all others, when each of them has that batch or has ended; None where one of them does not say so in time."""
        began_s = time.monotonic()
        while True:
            words = self._words()
            if words is not None and all(word["has"] > batch or word["ended"] for word in words):
                return words
            patience_s = PATIENCE_S if words is not None else 0.0 if self._line in alone else FIRST_PATIENCE_S
            if self._store is None or time.monotonic() - began_s >= patience_s:
                break
            time.sleep(min(ASK_EVERY_S, 0.0005 + (time.monotonic() - began_s) / 10))
        self._compares_not = True
        if words is None:
            alone.add(self._line)
        else:
            self._say(f"another rank says nothing of its batch {batch} (loader made at {self._line}): numbers are not compared")
        return None

    def _words(self) -> list[dict[str, Any]] | None:
        """None where not all have begun."""
        keys = [self._key(other) for other in self._others]
        if not self._ask(lambda store: store.check(keys)):
            return None
        told = self._ask(lambda store: [store.get(key) for key in keys])
        return None if told is None else [json.loads(word) for word in told]


def watch_stream_ranks(loader: Any, choice: UnevenChoice, rank: int, world_size: int, say: Callable[[str], None]) -> StreamRanks | None:
    """None where there is nobody to compare with, or nobody wants to know."""
    store = store_of_ranks(choice, world_size)
    return None if store is None else StreamRanks(store, choice, loader._made_at, rank, world_size, say)
