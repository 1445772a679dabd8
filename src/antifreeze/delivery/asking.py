"""iter(sampler), called as often as torch calls it, and what it found: some samplers draw their whole order there, or count their epochs.

1. Without workers torch asks once, with workers twice (persistent ones: once per later epoch), and uses the last answer. So do we.
2. The random state of that moment is kept for a resume, and put in place in one; so is the epoch of a sampler that counts by itself.
3. torch's own samplers draw with their first batch, and nothing before.
"""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

from torch.utils.data import BatchSampler, RandomSampler, SequentialSampler

from antifreeze.delivery.position import length_of
from antifreeze.plan.randomness import as_it_was, own_generators, snapshot

_DRAW_LATER = (BatchSampler, RandomSampler, SequentialSampler)


def sampler_within(index_sampler: Any) -> Any:
    """Whoever decides the order, and may count epochs: a batch sampler itself, or the sampler that it is made over."""
    within = getattr(index_sampler, "sampler", None)
    return index_sampler if within is None or hasattr(index_sampler, "set_epoch") or hasattr(index_sampler, "load_state_dict") else within


class Asked:
    """Of one pass over a map-style data set."""

    def __init__(self, loader: Any, resume: dict[str, Any] | None) -> None:
        index_sampler = loader._index_sampler
        self._sampler = sampler_within(index_sampler)
        loader._traps.other_lengths(self._sampler, length_of(loader.dataset))
        if not resume:
            loader._traps.advance_epoch(self._sampler)
        self._generators = own_generators(loader.generator, index_sampler)
        self._draws_now = type(index_sampler) not in _DRAW_LATER
        self._resumes = resume is not None
        self.randomness: dict[str, Any] | None = resume.get("asked") if resume else None
        self.epoch = self.epoch_now()

    def epoch_now(self) -> int | None:
        """A sampler that counts by itself has counted this pass when it ends."""
        return getattr(self._sampler, "epoch", None)

    def asking(self) -> Any:
        """Around each call; the last one counts."""
        if not self._resumes:
            self.epoch = self.epoch_now()
            self.randomness = snapshot(self._generators) if self._draws_now else None
            return nullcontext()
        if self.epoch != self.epoch_now() and hasattr(self._sampler, "set_epoch"):
            self._sampler.set_epoch(self.epoch)  # it counted the first call
        return nullcontext() if self.randomness is None else as_it_was(self.randomness, self._generators)
