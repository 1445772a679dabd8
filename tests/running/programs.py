"""Small scripts, run by a real Python and by `antifreeze run`."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

LIMIT_S = 150

SQUARES = """
import sys
import torch
from torch.utils.data import DataLoader, Dataset

class Squares(Dataset):
    def __init__(self, bad=()):
        self.bad = bad
    def __len__(self):
        return 16
    def __getitem__(self, index):
        if index in self.bad:
            raise ValueError(f"sample {index} is broken")
        return torch.tensor(index * index)
"""


def ended(
    command: Sequence[str], folder: Path, variables: Mapping[str, str] | None = None, typed: str = ""
) -> subprocess.CompletedProcess[str]:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("ANTIFREEZE_")} | dict(variables or {})
    return subprocess.run(command, cwd=folder, env=environment, input=typed, capture_output=True, text=True, timeout=LIMIT_S, check=False)


def by_python(words: Sequence[str], folder: Path, typed: str = "") -> subprocess.CompletedProcess[str]:
    return ended([sys.executable, *words], folder, typed=typed)


def by_antifreeze(
    words: Sequence[str], folder: Path, variables: Mapping[str, str] | None = None, typed: str = ""
) -> subprocess.CompletedProcess[str]:
    return ended([sys.executable, "-m", "antifreeze", "run", *words], folder, variables, typed)
