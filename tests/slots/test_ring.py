"""The ring: a slot is nobody else's while anybody may still look at it, and memory goes back when it is not needed."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from antifreeze.slots.ring import A_WHILE, MAX_LENT, SPARE_SLOTS, Ring, mark_own_fork

SIZE = 1 << 16
calm = settings(deadline=None, derandomize=True, database=None, max_examples=40, suppress_health_check=list(HealthCheck))


@pytest.fixture
def ring() -> Iterator[Ring]:
    ring = Ring()
    yield ring
    ring.close()


def lend(ring: Ring) -> tuple[int, Any]:
    slot = ring.take()
    owner = ring.lend(slot, SIZE)
    owner[:] = 1
    return slot, owner


# --- leases -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "over",
    [
        lambda owner: owner,
        lambda owner: owner[10:20],
        torch.from_numpy,
        lambda owner: torch.frombuffer(owner, dtype=torch.float32)[3:].view(-1, 1),
        lambda owner: torch.frombuffer(owner, dtype=torch.uint8).untyped_storage(),
        lambda owner: memoryview(owner)[5:],
        lambda owner: [torch.from_numpy(owner)[:5], owner[7:]],
        lambda owner: torch.from_numpy(owner).numpy(),
    ],
    ids=["array", "slice", "tensor", "view", "storage", "memory", "both", "there and back"],
)
def test_a_lease_ends_with_the_last_that_looks_at_the_slot(ring: Ring, over: Any) -> None:
    slot, owner = lend(ring)
    looker = over(owner)
    del owner
    assert ring.take() != slot
    del looker
    assert ring.take() == slot


def test_the_slot_used_last_is_used_first(ring: Ring) -> None:
    slots = [ring.take() for _ in range(3)]
    for slot in slots:
        ring.give_back(slot)
    assert ring.take() == slots[-1]


def test_it_never_waits_for_the_user_but_grows(ring: Ring) -> None:
    lent = [lend(ring) for _ in range(10)]
    assert len({slot for slot, _ in lent}) == 10
    assert repr(ring) == "<Ring 10 slots: 0 free, 0 filling, 10 lent>"


@calm
@given(st.lists(st.tuples(st.sampled_from(["take", "take", "lend", "lend", "give back", "drop", "drop", "recall"]), st.integers(0, 20))))
def test_no_slot_is_ever_in_two_hands(steps: list[tuple[str, int]]) -> None:
    ring = Ring()
    filling: list[int] = []
    lent: dict[int, torch.Tensor] = {}
    for what, at in steps:
        if what == "take":
            slot = ring.take()
            assert slot not in lent
            assert slot not in filling
            filling.append(slot)
        elif what == "lend" and filling:
            slot = filling.pop(at % len(filling))
            lent[slot] = torch.from_numpy(ring.lend(slot, SIZE))
            lent[slot][:] = slot
        elif what == "give back" and filling:
            ring.give_back(filling.pop(at % len(filling)))
        elif what == "recall":
            ring.recall_filling()
            filling.clear()
        elif what == "drop" and lent:
            del lent[list(lent)[at % len(lent)]]
        assert all((tensor[::4096] == slot).all() for slot, tensor in lent.items())
    ring.close()


def test_a_slot_that_was_abandoned_is_never_used_again(ring: Ring) -> None:
    slot = ring.take()
    ring.abandon(slot)
    ring.recall_filling()
    assert slot not in [ring.take() for _ in range(5)]


# --- memory -------------------------------------------------------------------------------------------------------------


def test_memory_goes_back_when_the_user_lets_go(ring: Ring) -> None:
    lent = [lend(ring) for _ in range(20)]
    full_bytes = ring.used_bytes()
    assert full_bytes == 20 * SIZE
    lent.clear()
    for _ in range(2 * A_WHILE):
        ring.give_back(ring.take())
    assert ring.used_bytes() <= (1 + SPARE_SLOTS) * SIZE
    slots = [lend(ring) for _ in range(20)]
    assert len({slot for slot, _ in slots}) == 20
    assert ring.used_bytes() == full_bytes


def test_what_is_in_flight_keeps_its_memory(ring: Ring) -> None:
    filling = [ring.take() for _ in range(8)]
    for slot in filling:
        ring.lend(slot, SIZE)[:] = 1
    ring.give_back(ring.take())
    assert ring.used_bytes() == 8 * SIZE


def test_from_a_certain_number_on_batches_are_to_be_copied_out(ring: Ring) -> None:
    lent = [lend(ring) for _ in range(MAX_LENT - 1)]
    assert not ring.crowded
    lent.append(lend(ring))
    assert ring.crowded
    lent.pop()
    assert not ring.crowded


# --- who else may look --------------------------------------------------------------------------------------------------


def test_a_slot_lent_while_a_worker_was_forked_waits_for_the_end_of_its_pool(ring: Ring) -> None:
    slot, owner = lend(ring)
    ring.quarantine(7)
    ring.quarantine(8)
    del owner
    assert ring.take() != slot
    ring.release_quarantine(7)
    assert slot not in [ring.take(), ring.take()]
    ring.release_quarantine(8)
    assert ring.take() == slot


def test_the_end_of_the_pool_does_not_end_the_lease(ring: Ring) -> None:
    slot, owner = lend(ring)
    ring.quarantine(7)
    ring.release_quarantine(7)
    assert ring.take() != slot
    del owner
    assert ring.take() == slot


def test_what_is_lent_after_the_fork_is_not_held_back(ring: Ring) -> None:
    ring.quarantine(7)
    slot, owner = lend(ring)
    del owner
    assert ring.take() == slot


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # a fork while torch has threads: the child does nothing
@pytest.mark.parametrize("own", [False, True])
def test_what_is_lent_while_the_user_forks_stays_as_it_is_for_ever(ring: Ring, own: bool) -> None:
    slot, owner = lend(ring)
    mark_own_fork(own)
    try:
        pid = os.fork()
        if not pid:
            os._exit(0 if ring.closed and owner[0] == 1 else 1)
    finally:
        mark_own_fork(False)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0, "the child's ring is closed and what it held can be read"
    assert not ring.closed
    del owner
    ring.release_quarantine(7)
    assert (ring.take() == slot) is own


def test_close_may_be_called_twice_and_what_is_lent_stays_valid() -> None:
    ring = Ring()
    _, owner = lend(ring)
    owner[:] = 3
    ring.close()
    ring.close()
    assert ring.closed
    assert np.array_equal(owner, np.full(SIZE, 3, dtype=np.uint8))


def test_slots_that_are_needed_now_and_then_keep_their_memory(ring: Ring) -> None:
    """A device that is late by some batches, then not: what it gives back will be needed again."""
    made = set()
    for turn in range(A_WHILE):
        lent = [lend(ring) for _ in range(6 if turn % 4 == 0 else 1)]
        made |= {slot for slot, _ in lent}
        lent.clear()
        assert turn < 4 or ring.used_bytes() == 6 * SIZE
    assert len(made) == 6
