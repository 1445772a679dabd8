"""A slot whose memory went back to the system while a worker had it mapped: its pages are taken anew, before they are touched."""

from __future__ import annotations

import os

import torch

from antifreeze.slots.arena import Arena
from antifreeze.slots.layout import learn
from antifreeze.worker.slot_writer import SlotWriter

SLOT, ROWS = 3, 4


def test_pages_that_were_given_back_are_taken_anew() -> None:
    parent = Arena.create()
    worker = Arena(os.dup(parent.descriptor))
    writer = SlotWriter(worker, lambda: (None, "nothing"))
    layout = learn(torch.zeros(1 << 18))
    assert layout is not None
    writer.at_age(SLOT, parent.age(SLOT))
    first = writer.rows(SLOT, layout, ROWS, 0, ROWS)
    assert writer.rows(SLOT, layout, ROWS, 0, ROWS)[0] is first[0], "while nothing happens, they are kept"
    whole = parent.used_bytes()
    assert whole >= ROWS << 20
    parent.discard(SLOT)
    assert parent.used_bytes() == 0
    writer.at_age(SLOT, parent.age(SLOT))
    again = writer.rows(SLOT, layout, ROWS, 0, ROWS)
    assert parent.used_bytes() == whole, "taken before the first byte is written, where a lack of memory is an error and no signal"
    again[0].fill_(7)
    assert torch.frombuffer(parent.map(SLOT, 16), dtype=torch.float32)[0] == 7
    del first, again
    writer.room(SLOT, 1000)
    parent.discard(SLOT)
    writer.at_age(SLOT, parent.age(SLOT))
    writer.room(SLOT, 1000)
    assert parent.used_bytes() > 0
    worker.close()
    parent.close()


def test_the_same_where_one_process_is_both() -> None:
    arena = Arena.create()
    writer = SlotWriter(arena, lambda: (None, "nothing"))
    layout = learn(torch.zeros(1 << 18))
    assert layout is not None
    writer.rows(SLOT, layout, ROWS, 0, ROWS)
    used = arena.used_bytes()
    arena.discard(SLOT)
    writer.rows(SLOT, layout, ROWS, 0, ROWS)
    assert arena.used_bytes() == used
    arena.close()
