"""Systems that are not Linux: everything imports, loaders work through torch's own iterators, and one warning says what is missing."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = Path(__file__).with_name("elsewhere.py")


@pytest.mark.parametrize("system", ["macos", pytest.param("windows", marks=pytest.mark.slow)])
def test_it_works_through_torch_and_says_so_once(system: str) -> None:
    done = subprocess.run([sys.executable, str(PROGRAM), system], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    warned = [line for line in done.stdout.splitlines() if line.startswith("warned: antifreeze")]
    assert len(warned) == 1
    assert "through torch's own iterators here" in warned[0]
    assert "memfd_create" in warned[0]
    assert "not measured: torch's own iterators are at work" in done.stdout
    assert "refused: state_dict() is not available here" in done.stdout
