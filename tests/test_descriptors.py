"""Who owns a descriptor closes it once, and nothing that is not his."""

from __future__ import annotations

import gc
import os

from antifreeze.descriptors import Held, identity_of


def test_what_is_held_goes_with_its_owner_and_is_closed_once() -> None:
    held = Held()
    reading, writing = held.open_pipe()
    file = held.open(os.memfd_create, "held")
    held.close(reading)
    assert identity_of(reading) is None
    assert identity_of(writing) and identity_of(file)
    held.close()
    assert held.is_empty()
    assert not identity_of(writing) and not identity_of(file)
    held.close()
    forgotten = held.open(os.memfd_create, "held")
    del held
    gc.collect()
    assert identity_of(forgotten) is None


def test_a_number_that_is_somebody_elses_by_now_is_not_closed() -> None:
    held = Held()
    number = held.open(os.memfd_create, "held")
    other = held.open(os.memfd_create, "held too")
    assert held.is_whole()
    os.close(number)
    assert not held.is_whole()
    theirs = os.memfd_create("theirs")
    assert theirs == number
    try:
        held.close()
        assert identity_of(theirs) is not None
        assert identity_of(other) is None
    finally:
        os.close(theirs)
