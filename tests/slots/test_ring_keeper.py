"""A slot that a device may still read from is not used again, and its pages are unlocked before they go."""

from __future__ import annotations

from typing import Any

import pytest

from antifreeze.slots import ring as module
from antifreeze.slots.ring import Ring


class Keeper:
    """A device whose copies end when the test says so."""

    def __init__(self) -> None:
        self.locked: dict[int, int] = {}
        self.calls: list[tuple[str, int]] = []
        self.marks = 0
        self.done_up_to = 0

    def lock(self, slot: int, mapped: Any) -> None:
        if slot not in self.locked:
            self.calls.append(("lock", slot))
            self.locked[slot] = len(mapped)

    def unlock(self, slot: int) -> None:
        if self.locked.pop(slot, None):
            self.calls.append(("unlock", slot))

    def mark(self, slot: int) -> int | None:
        self.marks += 1
        return self.marks

    def is_done(self, mark: int) -> bool:
        return mark <= self.done_up_to

    def close(self) -> None:
        self.done_up_to = self.marks
        for slot in list(self.locked):
            self.unlock(slot)

    def forget(self) -> None:
        self.locked.clear()


@pytest.fixture
def ring() -> Any:
    made = Ring()
    made.keeper = Keeper()
    yield made
    made.close()


def test_a_slot_is_free_only_when_the_device_is_done(ring: Ring) -> None:
    first = ring.take()
    batch = ring.lend(first, 4096)
    del batch
    second = ring.take()
    assert second != first
    ring.keeper.done_up_to = 1  # type: ignore[union-attr]
    assert ring.take() == first


def test_copies_are_waited_for_in_the_order_they_were_issued(ring: Ring) -> None:
    slots = [ring.take() for _ in range(3)]
    batches = [ring.lend(slot, 4096) for slot in slots]
    while batches:
        batches.pop(0)
    taken = {ring.take()}
    assert not taken & set(slots)
    ring.keeper.done_up_to = 2  # type: ignore[union-attr]
    taken = {ring.take(), ring.take()}
    assert taken == set(slots[:2])


def test_a_slot_is_locked_once_and_anew_when_it_grows(ring: Ring) -> None:
    keeper: Any = ring.keeper
    keeper.done_up_to = 10**9
    slot = ring.take()
    for size in (4096, 4096, 1 << 20):
        batch = ring.lend(slot, size)
        del batch
        assert ring.take() == slot
    assert keeper.calls == [("lock", slot), ("unlock", slot), ("lock", slot)]
    assert keeper.locked[slot] >= 1 << 20


def test_pages_are_unlocked_before_they_go(ring: Ring, monkeypatch: pytest.MonkeyPatch) -> None:
    keeper: Any = ring.keeper
    keeper.done_up_to = 10**9
    monkeypatch.setattr(module, "SPARE_SLOTS", 0)
    order: list[tuple[str, int]] = []
    discard = ring.arena.discard
    monkeypatch.setattr(ring.arena, "discard", lambda slot: (order.append(("discard", slot)), discard(slot)))
    monkeypatch.setattr(keeper, "unlock", lambda slot: order.append(("unlock", slot)))
    slots = [ring.take()]
    kept = [ring.lend(slots[0], 4096)]
    for _ in range(4):
        slots.append(ring.take())
        kept.append(ring.lend(slots[-1], 4096))
    kept.clear()
    for _ in range(2 * module.A_WHILE):
        ring.give_back(ring.take())
    gone = [slot for what, slot in order if what == "discard"]
    assert gone
    assert all(order.index(("unlock", slot)) < order.index(("discard", slot)) for slot in gone)


def test_closing_waits_for_the_device_and_unlocks(ring: Ring) -> None:
    keeper: Any = ring.keeper
    batch = ring.lend(ring.take(), 4096)
    ring.close()
    assert keeper.locked == {}
    assert keeper.done_up_to == keeper.marks
    assert len(batch) >= 4096  # what is lent stays valid
