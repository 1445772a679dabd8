"""Ctrl-C while workers are being ended."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
import traceback
from typing import Any

import pytest
from torch.utils.data import Dataset

from antifreeze import DataLoader
from antifreeze.supervisor.interrupts import interrupts_held_back


class SlowToEnd(Dataset[Any]):
    """A thread of the worker, which is no daemon, keeps it from ending when it is asked to."""

    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int) -> int:
        threading.Thread(target=time.sleep, args=(1000,)).start()
        return index


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_first_interrupt_at_the_end_of_an_epoch_is_not_lost() -> None:
    loader = DataLoader(SlowToEnd(), 4, num_workers=1, multiprocessing_context="fork")
    iterator = iter(loader)
    next(iterator)
    presses = threading.Timer(0.1, os.kill, (os.getpid(), signal.SIGINT))
    presses.start()
    with pytest.raises(KeyboardInterrupt):
        while next(iterator, None) is not None or presses.is_alive():
            pass
        presses.join()
    loader.close()


def test_a_first_interrupt_waits_and_a_second_one_changes_nothing() -> None:
    reached = []
    with pytest.raises(KeyboardInterrupt), interrupts_held_back():
        signal.raise_signal(signal.SIGINT)
        reached.append("after the first")
    try:
        raise KeyboardInterrupt
    except KeyboardInterrupt:
        with interrupts_held_back():
            signal.raise_signal(signal.SIGINT)
        reached.append("after the second")
    assert reached == ["after the first", "after the second"]
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def falls_into_a_handler() -> int | None:
    """An interrupt that comes while some exception of ours is being handled."""
    try:
        raise FileNotFoundError("/proc/of/ours")
    except FileNotFoundError:
        signal.raise_signal(signal.SIGINT)
    return None


def test_an_interrupt_is_one_traceback_wherever_it_falls(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("antifreeze.delivery.job.available_memory_bytes", falls_into_a_handler)
    with pytest.raises(KeyboardInterrupt) as at_start:
        iter(DataLoader(range(8), 4))
    monkeypatch.undo()
    loader = DataLoader(range(64), 1, num_workers=1)
    iterator = iter(loader)
    monkeypatch.setattr(iterator, "_look_at_memory", falls_into_a_handler)
    with pytest.raises(KeyboardInterrupt) as in_next:
        list(iterator)
    loader.close()
    for caught in (at_start, in_next):
        assert "".join(traceback.format_exception(caught.value)).count("Traceback (most recent call last)") == 1


def test_where_nobody_hears_an_exception_the_interrupt_comes_a_moment_later() -> None:
    left = []
    with pytest.raises(KeyboardInterrupt):
        with interrupts_held_back(unheard=True):
            signal.raise_signal(signal.SIGINT)
        left.append("the code that cannot be heard")
        while True:
            time.sleep(0.1)
    assert left


IMPATIENT = """
import atexit, os, signal

def cleans_up():
    for press in ("second", "third"):
        os.kill(os.getpid(), signal.SIGINT)
        print(press, flush=True)

signal.signal(signal.SIGINT, signal.default_int_handler)
atexit.register(cleans_up)
import antifreeze.supervisor.interrupts
raise KeyboardInterrupt
"""


def test_at_exit_a_second_interrupt_prints_nothing_and_a_third_ends_it() -> None:
    ended = subprocess.run([sys.executable, "-c", IMPATIENT], check=False, capture_output=True, text=True, timeout=60)
    assert ended.returncode == -signal.SIGINT
    assert ended.stdout.split() == ["second"]
    assert ended.stderr.count("Traceback (most recent call last)") == 1
