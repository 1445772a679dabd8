"""With how many of torch's threads the loop loads batches itself, where workers load others (num_workers="auto").

1. A worker has one thread, and the last bits of a sum depend on how many add it up. So the loop takes one as well, and no bits depend on
   who has made a batch.
2. What only copies (an index, a stack) or multiplies gives the same bits with any number. Where the first batches of a pass did nothing
   else, and no workers are at work for whom the cores are, the loop has all its threads: one instead of two took 64 to
   70 µs in the place of 55 where a batch is one large index.
3. Threads that wait for each other are quick only while each has a core: with another program on the machine that index took 8 ms
   instead of 50 µs. So what one thread takes is measured first, and where all of them take longer the loop has one again, for a while.
4. A later batch may do something else (one in ten is mixed, say): the 8th, 16th, 32nd … are watched too, at 2 µs a call of torch's. The
   first of them that does has one thread before it does, and so have all after it.
5. Not seen: what only batches between those do, what a data set has its own threads do, and what is inside a function of torch.jit.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, TypeVar

import torch
from torch.overrides import TorchFunctionMode

WATCHED_BATCHES, WATCHED_AGAIN = 4, 1
"""Of the first pass, and of each one after it: a data set may have been changed meanwhile."""
SLOWER = 1.3
"""Than with one thread: so many times, and all of them are no help."""
REST_LOOKS, MOST_REST_LOOKS = 25, 1600
"""For which the loop has one thread then, each time twice as long; as many without a complaint, and it is forgotten."""
_COPIES = """
    __getitem__ index_select select gather take unbind split chunk narrow
    view view_as reshape expand permute transpose t T mT squeeze unsqueeze flatten movedim detach
    stack cat concat clone copy_ to type float double half bfloat16 int long short byte bool contiguous flip roll pad pad_sequence repeat
    tensor as_tensor empty empty_like new_empty zeros zeros_like new_zeros ones ones_like full full_like new_full
    fill_ zero_ numpy item tolist
    __get__ __set__ __len__ __iter__ __contains__ size dim ndimension numel nelement element_size stride storage_offset
    is_contiguous is_floating_point is_complex is_pinned is_shared data_ptr untyped_storage get_device
"""
_EXACT = "neg __neg__ eq ne lt le gt ge equal __eq__ __ne__ __lt__ __gt__"
_EXACT_IF_REAL = frozenset({"mul", "mul_", "__mul__", "__rmul__", "div", "div_", "__truediv__", "true_divide"})
"""A complex product is a sum."""
_DRAWN_ONE_BY_ONE = "rand randint randn randperm random_ uniform_ get_state set_state manual_seed"
SAME_BITS = frozenset(f"{_COPIES} {_EXACT} {_DRAWN_ONE_BY_ONE}".split()) | _EXACT_IF_REAL
"""Not the sum of two tensors, whose factor is fused with it or not depending on where a thread's share ends; so it is with a range, which
adds steps. Nor what writes to places (__setitem__): of two values for one place, the thread that is later wins."""

_T = TypeVar("_T")


class _Watching(TorchFunctionMode):
    """Notes what of torch is called while it is in force, in this thread. What is not known to give the same bits has one thread, and so
    has all after it."""

    def __init__(self) -> None:
        super().__init__()
        self.others: set[str] = set()

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = getattr(func, "__name__", repr(func))
        own = [each.__name__ for each in types if each is not torch.Tensor]  # classes that may do anything
        if own or name not in SAME_BITS or (name in _EXACT_IF_REAL and any(map(_is_complex, (*args, *(kwargs or {}).values())))):
            if not self.others:
                torch.set_num_threads(1)
            self.others.add(f"{name} of {own[0]}" if own else name)
        return func(*args, **(kwargs or {}))


def _is_complex(value: Any) -> bool:
    return value.is_complex() if isinstance(value, torch.Tensor) else isinstance(value, complex)


class OneOrAll:
    """Which is faster, one thread or all of torch's, from what batches took. PURE: what it is told is all it knows."""

    def __init__(self) -> None:
        self.one_ns: float | None = None  # what a batch takes with one thread
        self.rest_left = 0  # looks for which there is one
        self._rest, self._well_for = REST_LOOKS, 0

    def __repr__(self) -> str:
        if self.has_all:
            return "<OneOrAll: all threads>"
        return f"<OneOrAll: one thread, {f'for {self.rest_left} looks' if self.rest_left else 'to be measured'}>"

    @property
    def has_all(self) -> bool:
        return self.one_ns is not None and not self.rest_left

    def look(self, mean_ns: float) -> None:
        """What a batch took, on the average since the last look, with as many as there were."""
        if self.has_all:
            self._judge(mean_ns)
            return
        self.one_ns = mean_ns if self.one_ns is None else (self.one_ns + mean_ns) / 2
        self.rest_left = max(0, self.rest_left - 1)

    def _judge(self, mean_ns: float) -> None:
        assert self.one_ns is not None
        if mean_ns > SLOWER * self.one_ns:
            self.rest_left, self._rest, self._well_for = self._rest, min(2 * self._rest, MOST_REST_LOOKS), 0
            return
        self._well_for += 1
        if self._well_for >= self._rest:
            self._rest = REST_LOOKS


class ThreadUse:
    def __init__(self) -> None:
        self._left = WATCHED_BATCHES
        self._number = 0  # of the batch in its pass
        self._others: set[str] = set()
        self._contest = OneOrAll()
        self._last: tuple[int, int] | None = None  # batches and what they took, at the last look, but for those that were watched
        self._watched, self._watched_ns = 0, 0

    def __repr__(self) -> str:
        if self._may_use_all:
            return "<ThreadUse: all threads>"
        if self._others:
            return f"<ThreadUse: one thread, because of {', '.join(sorted(self._others))}>"
        if self._left:
            return f"<ThreadUse: one thread, until {self._left} more batches were watched>"
        return repr(self._contest).replace("OneOrAll", "ThreadUse")

    @property
    def _gives_the_same_bits(self) -> bool:
        return not self._left and not self._others

    @property
    def _may_use_all(self) -> bool:
        return self._gives_the_same_bits and self._contest.has_all

    # --- which are faster ---

    def look(self, batches: int, work_ns: int) -> bool:
        """Now and then, while the loop loads alone: how many there were in all, and what they took. Whether something changes."""
        before, self._last = self._last, (batches - self._watched, work_ns - self._watched_ns)
        if before is None or self._last[0] <= before[0] or not self._gives_the_same_bits:
            return False
        used_all = self._may_use_all
        self._contest.look((self._last[1] - before[1]) / (self._last[0] - before[0]))
        return self._may_use_all != used_all

    def look_away(self) -> None:
        """Other batches are counted from now on."""
        self._last = None

    # --- which give the same bits ---

    def begin_pass(self) -> None:
        self._left, self._number = max(self._left, WATCHED_AGAIN), 0

    def take_unwatched(self) -> int:
        """So many batches that follow, where the loop goes on alone, have all threads and nobody looks at them: `load` is not asked."""
        if not self._may_use_all:
            return 0
        unwatched = (1 << self._number.bit_length()) - 1 - self._number
        self._number += unwatched
        return unwatched

    def give_back_unwatched(self, batches: int) -> None:
        """So many of them were not loaded after all."""
        self._number = max(0, self._number - batches)

    def load(self, load: Callable[[], _T], alone: bool) -> _T:
        """`alone`: no workers load meanwhile."""
        threads = torch.get_num_threads()
        if threads == 1:
            return load()
        self._number += 1
        is_watched = not self._others and (self._left > 0 or self._number & (self._number - 1) == 0)
        if alone and self._may_use_all and not is_watched:
            return load()
        try:  # from before the call: a signal's handler may raise as soon as it returns
            if not (alone and self._may_use_all):
                torch.set_num_threads(1)
            return self._watch(load) if is_watched else load()
        finally:
            torch.set_num_threads(threads)

    def _watch(self, load: Callable[[], _T]) -> _T:
        self._left = max(0, self._left - 1)
        watching, began_ns = _Watching(), time.perf_counter_ns()
        try:
            with watching:
                return load()
        finally:
            self._others |= watching.others
            self._watched, self._watched_ns = self._watched + 1, self._watched_ns + time.perf_counter_ns() - began_ns
