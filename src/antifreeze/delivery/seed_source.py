"""The generator that torch's iterator draws its base seed from, to be put back after a resume."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch


@dataclass
class SeedSource:
    generator: Any

    def __post_init__(self) -> None:
        self._source = torch.default_generator if self.generator is None else self.generator
        # what is no generator is refused where torch draws from it
        self._state = self._source.get_state() if isinstance(self._source, torch.Generator) else None

    def put_back(self) -> None:
        if self._state is not None:
            self._source.set_state(self._state)
