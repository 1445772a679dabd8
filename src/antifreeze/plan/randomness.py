"""The random state an epoch's order was drawn from, so that the same order can be drawn again."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence, Set
from contextlib import contextmanager
from operator import eq
from typing import Any

import numpy as np
import torch

from antifreeze.plan.letters import from_letters, in_letters

_OF_THE_PROCESS = frozenset({"torch", "random", "numpy"})


class Moment:
    """All generators a sampler may draw from, as they were when this was made: the process's, and the loader's and the sampler's own.
    `of_torch`: it is known to draw from torch's alone. (To tell them takes most of 0.1 ms, which an epoch that nobody saves is spared.)"""

    def __init__(self, generators: Sequence[torch.Generator] = (), of_torch: bool = False) -> None:
        self._torch = torch.default_generator.get_state()
        self._random = None if of_torch else random.getstate()
        self._numpy: Any = None if of_torch else np.random.get_state(legacy=False)
        self._generators = [generator.get_state() for generator in generators]

    def told(self) -> dict[str, Any]:
        """As plain data; None for what is not drawn from."""
        return {
            "torch": _told(self._torch),
            "random": None if self._random is None else [self._random[0], list(self._random[1]), self._random[2]],
            "numpy": None if self._numpy is None else _numpys(self._numpy),
            "generators": [_told(state) for state in self._generators],
        }


def snapshot(generators: Sequence[torch.Generator] = ()) -> dict[str, Any]:
    return Moment(generators).told()


def _numpys(state: Any) -> list[Any] | None:
    """None where its bit generator was exchanged for one of another kind: an order that is drawn from that one is not drawn again."""
    if state["bit_generator"] != "MT19937":
        return None
    words = state["state"]
    return [state["bit_generator"], words["key"].tolist(), int(words["pos"]), int(state["has_gauss"]), float(state["gauss"])]


def own_generators(loader_generator: torch.Generator | None, sampler: Any) -> list[torch.Generator]:
    """The generators a loader was given: its own, and its sampler's where that is another one."""
    candidates = (loader_generator, getattr(sampler, "generator", None), getattr(getattr(sampler, "sampler", None), "generator", None))
    found: list[torch.Generator] = []
    for candidate in candidates:
        if isinstance(candidate, torch.Generator) and all(candidate is not known for known in found):
            found.append(candidate)
    return found


def generator_states(generators: Sequence[torch.Generator]) -> list[str]:
    return [_told(generator.get_state()) for generator in generators]


def set_generator_states(generators: Sequence[torch.Generator], states: Sequence[str | bytes]) -> None:
    for generator, state in zip(generators, states, strict=False):
        _set(generator, state)


def _told(state: torch.Tensor) -> str:
    return in_letters(state.cpu().numpy().tobytes())


def _set(generator: torch.Generator, state: str | bytes) -> None:
    generator.set_state(torch.frombuffer(bytearray(from_letters(state)), dtype=torch.uint8))


@contextmanager
def as_it_was(saved: dict[str, Any], generators: Sequence[torch.Generator], drawn_before: bool = True) -> Iterator[Set[str]]:
    """The process's generators (whose names it gives) as they were when `saved` was taken, and afterwards as they are now. The loader's
    and the sampler's own stay where the drawing leaves them, as they would have without an interruption; and so does, of the process's,
    what is in that very state again, where nothing had been drawn from it yet."""
    now = snapshot()
    known = {name for name in _OF_THE_PROCESS if now[name] is not None and saved[name] is not None}
    stay = set() if drawn_before else {name for name in known if now[name] == saved[name]}
    _put(saved, known)
    set_generator_states(generators, saved["generators"])
    try:
        yield known
    finally:
        _put(now, known - stay)


class Apart:
    """The process's generators, in the states that they have now, for whoever goes on to draw from them while the process has its own:
    a sampler that is resumed, and draws batch by batch. One that is in the same state on both sides is one again, as it would be without
    an interruption: the user had put it back, and the sampler has caught up."""

    def __init__(self, names: Set[str]) -> None:
        self._states = {name: _READ[name]() for name in names}

    @contextmanager
    def drawing(self) -> Iterator[None]:
        now = {name: _READ[name]() for name in self._states}
        self._states = {name: state for name, state in self._states.items() if not _SAME[name](state, now[name])}
        for name, state in self._states.items():
            _WRITE[name](state)
        try:
            yield
        finally:
            self._states = {name: _READ[name]() for name in self._states}
            for name in self._states:
                _WRITE[name](now[name])


def _same_numpys(one: Any, other: Any) -> bool:
    return bool(one[2:] == other[2:] and np.array_equal(one[1], other[1]))


_READ: dict[str, Callable[[], Any]] = {
    "torch": torch.default_generator.get_state,
    "random": random.getstate,
    "numpy": np.random.get_state,
}
_WRITE: dict[str, Callable[[Any], Any]] = {
    "torch": torch.default_generator.set_state,
    "random": random.setstate,
    "numpy": np.random.set_state,
}
_SAME: dict[str, Callable[[Any, Any], bool]] = {"torch": torch.equal, "random": eq, "numpy": _same_numpys}


def _put(saved: dict[str, Any], names: Set[str]) -> None:
    if "torch" in names:
        _set(torch.default_generator, saved["torch"])
    if "random" in names:
        version, words, gauss = saved["random"]
        random.setstate((version, tuple(words), gauss))
    if "numpy" in names:
        name, keys, position, has_gauss, cached = saved["numpy"]
        np.random.set_state((name, np.array(keys, dtype=np.uint32), position, has_gauss, cached))
