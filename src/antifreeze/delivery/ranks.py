"""Ranks that have different numbers of batches: found before a collective waits for a rank that is done.

    every rank, at the start of an epoch ──▶ store: "rank 1 has 3 batches of the loader made at train.py:88, in its 5th epoch"
    before a batch                       ──▶ store: what do the others say?

1. It uses the key-value store of the process group and no collective: a rank that iterates alone (and validates, say) waits for
   nobody, except, once per line that makes loaders, up to PATIENCE_S for the others' first word.
2. The store is asked before batches 0, 1, 2, 4, 8 … and the last one, until everybody has spoken; after that, never again in the epoch.
   Who is past its first collective knows that all others have begun, and so have spoken.
3. A store that was inherited by a fork is left alone: its connection is the parent's. (A loader within a worker is no rank's.)
4. Loaders are known by the line that made them. Ranks that count different things, or cannot count, are not compared.
"""

from __future__ import annotations

import itertools
import json
import os
import sys
import time
from collections import defaultdict
from collections.abc import Callable
from typing import Any

import torch

import antifreeze.errors
from antifreeze.errors import UnevenRanks
from antifreeze.linux import on_fork
from antifreeze.options import UnevenChoice
from antifreeze.signals import raise_if_of_signal
from antifreeze.torch_private import default_store

PATIENCE_S = 1.0
ASK_EVERY_S = 0.02
_NEVER = sys.maxsize
alone: set[str] = set()
"""Lines whose loaders had nobody to be compared with."""
_made: dict[str, itertools.count[int]] = defaultdict(itertools.count)
_OURS = tuple(os.path.dirname(file) + os.sep for file in (antifreeze.errors.__file__, torch.__file__))


_inherited: Any = None


def _after_fork_in_child() -> None:
    global _inherited
    _inherited = default_store()


on_fork(child=_after_fork_in_child)


def made_at() -> str:
    """The user's line that makes a loader, and the how many-th it is there: the same on all ranks of one program."""
    frame = sys._getframe(1)
    while frame.f_back is not None and frame.f_code.co_filename.startswith(_OURS):
        frame = frame.f_back
    place = f"{os.path.basename(frame.f_code.co_filename)}:{frame.f_lineno}"
    return f"{place}#{next(_made[place])}"


class AtTheStore:
    """Whoever compares ranks by what they wrote to the store of the process group."""

    def __init__(self, store: Any, say: Callable[[str], None]) -> None:
        self._store = store
        self._say = say

    def _ask(self, question: Callable[[Any], Any]) -> Any:
        """None where the store does not answer: then this is not ours to find out."""
        try:
            return question(self._store)
        except Exception as error:
            raise_if_of_signal(error)
            self._store = None
            self._say(f"ranks could not compare their numbers of batches: {type(error).__name__}: {error}")
            return None


class Ranks(AtTheStore):
    """What one loader knows of its counterparts on the other ranks."""

    def __init__(
        self, store: Any, choice: UnevenChoice, place: str, kind: str, rank: int, world_size: int, say: Callable[[str], None]
    ) -> None:
        super().__init__(store, say)
        self._choice = choice
        self._place = place
        self._kind = kind
        self._rank = rank
        self._world_size = world_size
        self._line = place.partition("#")[0]
        self._patience_s = 0.0 if self._line in alone else PATIENCE_S
        self._epoch = 0
        self._own: int | None = None
        self._delivered = 0
        self._next_look = 0
        self._ends_at: int | None = None
        self._missing = 0

    def __repr__(self) -> str:
        return f"<Ranks of the loader made at {self._place}: rank {self._rank} of {self._world_size}, epoch {self._epoch}>"

    def begin(self, batches: int | None) -> None:
        """An epoch of that many batches; None where nobody knows."""
        self._own, self._delivered, self._next_look = batches, 0, 0
        self._ends_at, self._missing = None, 0
        self._epoch += 1
        if self._store is not None:
            word = json.dumps({"batches": batches, "kind": self._kind})
            self._ask(lambda store: store.set(self._key(self._rank), word))
            if self._epoch > 2:  # a rank that is two epochs behind does not exist where it would matter
                self._ask(lambda store: store.delete_key(self._key(self._rank, self._epoch - 2)))

    def step(self) -> bool:
        """Called before each batch: whether this rank's epoch ends here."""
        if self._delivered >= self._next_look and self._store is not None:
            self._look()
        ends = self._ends_at is not None and self._delivered >= self._ends_at
        self._delivered += 1
        return ends

    def take_missing(self) -> int:
        """How many batches this rank must repeat, at its end, to have as many as the others."""
        if self._next_look != _NEVER and self._store is not None and self._choice is UnevenChoice.PAD:
            self._look()
        missing, self._missing = self._missing, 0
        return missing

    # --- the store ---

    def _key(self, rank: int, epoch: int | None = None) -> str:
        return f"antifreeze/{self._place}/{self._epoch if epoch is None else epoch}/{rank}"

    def _look(self) -> None:
        last = (self._own or 1) - 1
        following = max(1, 2 * self._delivered)
        self._next_look = last if self._delivered < last < following else following
        words = self._words()
        if words is None:
            return
        self._next_look = _NEVER
        told = [json.loads(word) for word in words]
        counts = [one["batches"] for one in told]
        if None not in counts and len({one["kind"] for one in told}) == 1 and len(set(counts)) > 1:
            self._uneven(counts)

    def _words(self) -> list[bytes] | None:
        """Of all ranks, where all have spoken."""
        keys = [self._key(rank) for rank in range(self._world_size)]
        deadline_s = time.monotonic() + (0.0 if self._delivered else self._patience_s)
        while self._store is not None and not self._ask(lambda store: store.check(keys)):
            if time.monotonic() >= deadline_s:
                alone.add(self._line)
                self._patience_s = 0.0
                return None
            time.sleep(ASK_EVERY_S)
        words = self._ask(lambda store: [store.get(key) for key in keys]) if self._store is not None else None
        return words if isinstance(words, list) else None

    # --- what is done ---

    def _uneven(self, counts: list[int]) -> None:
        own, least, most = counts[self._rank], min(counts), max(counts)
        few, many = counts.index(least), counts.index(most)
        text = f"rank {few} has {least:,} batches and rank {many} has {most:,} (loader made at {self._line})"
        if self._choice is UnevenChoice.TRIM:
            self._ends_at = least
            self._say(f'{text}: every rank ends after {least:,}, because of uneven_ranks="trim"')
        elif self._choice is UnevenChoice.PAD:
            self._missing = most - own
            self._say(f'{text}: ranks with fewer repeat some, because of uneven_ranks="pad"')
            if not least:
                raise UnevenRanks(f"{text}: there is nothing to repeat on rank {few}")
        elif torch.is_grad_enabled():
            raise UnevenRanks(
                f"{text}: a collective in the loop (as DDP's backward has) would wait for ever for the rank that is done\n"
                '  what to do: give all ranks the same number of samples (DistributedSampler does), or uneven_ranks="trim" (all end with '
                'the first), "pad" (the others repeat some), or "ignore" (the loop has no collective, or uses Join)'
            )
        else:
            self._say(f"{text}: a collective in the loop would wait for ever; without gradients it is assumed that there is none")


def store_of_ranks(choice: UnevenChoice, world_size: int) -> Any:
    """What the ranks of this process's group tell each other things by; None where there is nobody to tell, or nobody wants to know."""
    store = None if world_size <= 1 or choice is UnevenChoice.IGNORE else default_store()
    return None if store is _inherited else store


def watch_ranks(loader: Any, choice: UnevenChoice, rank: int, world_size: int, say: Callable[[str], None]) -> Ranks | None:
    """None where there is nobody to compare with, or nobody wants to know."""
    store = store_of_ranks(choice, world_size)
    if store is None:
        return None
    kind = f"{type(loader.dataset).__qualname__} in batches of {loader.batch_size}"
    return Ranks(store, choice, loader._made_at, kind, rank, world_size, say)
