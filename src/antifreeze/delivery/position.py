"""What was delivered of an epoch, as plain data; and whether such data belongs to this loader."""

from __future__ import annotations

from collections.abc import Sequence, Sized
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch

from antifreeze.errors import StateMismatch
from antifreeze.plan.map_plan import MapPlan, MapPosition, PlannedBatch
from antifreeze.plan.randomness import generator_states, own_generators, snapshot
from antifreeze.plan.stream_plan import StreamPosition
from antifreeze.signals import raise_if_of_signal
from antifreeze.torch_private import is_iterable_kind

VERSION = 1
_BEGINNING = MapPosition(0, 0, None)


class MapDelivered(NamedTuple):
    """All batches up to `position`, those `beyond` it that came early (in_order=False), and the samples that moved up:
    `spares` by their position in the order, `moved_up` counted from its end."""

    position: MapPosition = _BEGINNING
    beyond: frozenset[int] = frozenset()
    spares: frozenset[int] = frozenset()
    moved_up: int = 0
    after: tuple[tuple[int, MapPosition], ...] = ()  # of those beyond

    def add(self, planned: PlannedBatch) -> MapDelivered:
        if planned.number != self.position.batches:
            after = (*self.after, (planned.number, planned.after))
            return self._replace(beyond=self.beyond | {planned.number}, after=after)
        if not self.beyond:
            return MapDelivered(planned.after, self.beyond, self.spares, self.moved_up)
        position, beyond, waiting = planned.after, set(self.beyond) - {planned.number}, dict(self.after)
        while position.batches in waiting:
            beyond.discard(position.batches)
            position = waiting.pop(position.batches)
        return self._replace(position=position, beyond=frozenset(beyond), after=tuple(waiting.items()))

    def with_spare(self, position: int) -> MapDelivered:
        return self._replace(spares=self.spares | {position})

    def with_moved_up(self, count: int) -> MapDelivered:
        return self._replace(moved_up=self.moved_up + count)

    def as_dict(self) -> dict[str, Any]:
        return {
            "moved_up": self.moved_up,
            "batches": self.position.batches,
            "samples": self.position.samples,
            "sampler_state": self.position.sampler_state,
            "ended": self.position.ended,
            "beyond": sorted(self.beyond),
            "spares": sorted(spare for spare in self.spares if spare >= self.position.samples),
        }

    @classmethod
    def from_dict(cls, saved: dict[str, Any]) -> MapDelivered:
        position = MapPosition(saved["batches"], saved["samples"], saved["sampler_state"], saved.get("ended", False))
        return cls(position, frozenset(saved["beyond"]), frozenset(saved["spares"]), saved["moved_up"])


class Place(NamedTuple):
    """How far an iteration is."""

    delivered: MapDelivered
    streams: StreamPosition | None
    finished: bool
    sampler_epoch: int | None


@dataclass
class Cursor:
    """Where one iteration is: kept by the loader, so that it outlives the iterator."""

    fingerprint: dict[str, Any]
    base_seed: int = 0
    shared_seed: int | None = None
    epoch: int = 0
    finished: bool = False
    told: bool = False  # the loop, that it is
    sampler_epoch: int | None = None
    plan: MapPlan | None = None
    delivered: MapDelivered = field(default_factory=MapDelivered)
    streams: StreamPosition | None = None
    shown: Place | None = None  # where batches are drawn ahead of the loop: how far the loop is
    called: tuple[int, MapDelivered, StreamPosition | None] | None = None
    """How far the loop was, in batches of the pass too, when it called a next() that was left by an exception which nobody has seen to."""
    broken_off: dict[str, Any] | None = None
    """What the pass goes on from after that: its state, until it does so, however often that is broken off itself."""

    def place(self) -> Place:
        _, delivered, streams = self.called or (0, self.delivered, self.streams)
        return Place(delivered, streams, self.finished, self.sampler_epoch)

    def state(self, generators: Sequence[torch.Generator]) -> dict[str, Any]:
        if self.broken_off is not None:
            return dict(self.broken_off)
        delivered, streams, finished, sampler_epoch = self.shown or self.place()
        finished = finished and self.told  # else the loop, when it goes on from here, is told first
        state: dict[str, Any] = {
            "version": VERSION,
            "fingerprint": self.fingerprint,
            "base_seed": self.base_seed,
            "shared_seed": self.shared_seed,
            "epoch": self.epoch,
            "finished": finished,
            "sampler_epoch": sampler_epoch,
            "generators": generator_states(generators),
        }
        if self.plan is not None:
            return state | {
                "delivered": delivered.as_dict(),
                "randomness": self.plan.randomness or snapshot(generators),
                "drawn": self.plan.randomness is not None,
                "beginning": self.plan.beginning,
                "asked": self.plan.asked,
                "sampler_state_at_end": self.plan.sampler_state() if finished else None,
            }
        assert streams is not None
        return state | {"streams": streams.as_dict()}


def fingerprint(loader: Any) -> dict[str, Any]:
    """What must be the same for a position to mean the same."""
    return {
        "kind of data set": "iterable" if is_iterable_kind(loader) else "map-style",
        "number of samples": length_of(loader.dataset),
        "number of batches": None if is_iterable_kind(loader) else length_of(loader._index_sampler),
        "batch_size": loader.batch_size,
        "drop_last": loader.drop_last,
        "sampler": type(loader._index_sampler if loader.batch_size is None else loader.sampler).__name__,
    }


def fresh_state(loader: Any) -> dict[str, Any]:
    """Of a loader that was not iterated yet: the next epoch begins at its beginning."""
    generators = generator_states(own_generators(loader.generator, loader._index_sampler))
    return {"version": VERSION, "fingerprint": fingerprint(loader), "finished": True, "sampler_epoch": None, "generators": generators}


def check_fits(state: Any, loader: Any) -> None:
    """Raises StateMismatch with a sentence that says what differs."""
    if not isinstance(state, dict) or "fingerprint" not in state:
        raise StateMismatch(f"load_state_dict() expects what state_dict() of an antifreeze DataLoader returned, not {type(state).__name__}")
    if state.get("version") != VERSION:
        raise StateMismatch(f"the state has version {state.get('version')!r}; this antifreeze reads version {VERSION}")
    now = fingerprint(loader)
    lacking = _needed(state) - state.keys()
    if lacking:
        raise StateMismatch(f"the state is not whole: it lacks {', '.join(sorted(lacking))}")
    differing = [
        f"{name} was {before!r} and is now {now.get(name)!r}" for name, before in state["fingerprint"].items() if now.get(name) != before
    ]
    had, has = len(state["generators"]), len(own_generators(loader.generator, loader._index_sampler))
    if had != has and not state["finished"]:
        differing.append(f"it had {had} generators of its own and has now {has}: an order drawn from one cannot be drawn again without it")
    if differing:
        raise StateMismatch("the state does not fit this loader: " + "; ".join(differing))


_ALWAYS = {"finished", "sampler_epoch", "generators"}
_UNFINISHED = {"base_seed", "shared_seed", "epoch"}
_OF_A_PLAN, _OF_STREAMS = {"delivered", "randomness", "beginning"}, {"streams"}


def _needed(state: dict[str, Any]) -> set[str]:
    if state.get("finished"):
        return _ALWAYS
    is_map = state["fingerprint"].get("kind of data set") == "map-style"
    return _ALWAYS | _UNFINISHED | (_OF_A_PLAN if is_map else _OF_STREAMS)


def length_of(dataset: Any) -> int | None:
    """Where the data set tells."""
    try:
        return len(dataset) if isinstance(dataset, Sized) else None
    except Exception as error:  # whoever needs to know it asks, and sees it, himself; torch asks only for len(loader)
        raise_if_of_signal(error)
        return None
