"""An accelerator that is not CUDA, with two devices and copies that really run later: accelerator/cases.py, in a process of its own,
because torch cannot forget a device that it has met."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from delivery.accelerator.later import compiled

CASES = Path(__file__).parent / "accelerator" / "cases.py"
COMPILER = shutil.which("g++")


@pytest.mark.skipif(COMPILER is None, reason="there is no g++ here to compile accelerator/later.cpp")
@pytest.mark.skipif(
    not hasattr(torch.Stream, "__enter__"), reason="torch before 2.7: other accelerators than CUDA are copied to synchronously"
)
def test_on_two_devices_whose_copies_run_later(tmp_path: Path) -> None:
    assert COMPILER is not None
    environment = {**os.environ, "LATER_LIBRARY": str(compiled(COMPILER, tmp_path))}
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-q", str(CASES)]
    ended = subprocess.run(command, env=environment, cwd=tmp_path, capture_output=True, text=True, timeout=180, check=False)
    assert ended.returncode == 0, ended.stdout + ended.stderr
