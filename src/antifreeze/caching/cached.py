"""`cached`: a map-style data set whose samples are read from slow storage once, and afterwards from local files.

    dataset[i] ──in the files?──▶ read, checked, handed out                                   files.py, folder.py
                └─ no ──▶ asked, its draws watched ──▶ written beside the others, handed out   draws.py

1. What is handed out is what the data set gave: equal in type, dtype, shape and value, and the user's own to change.
2. A sample that drew random numbers is handed out and never kept, nor one that cannot be pickled, nor None: said once, with the sample.
3. With `check`, the first sample that a process writes and the first that it reads of each job are loaded once more and compared. The
   one tells of samples that differ from one loading to the next: none are kept. The other tells of files that are of another data set,
   an earlier one or one of another job that writes there too: StaleCache. (A job: one call of `cached`, and all copies in workers.)
4. The random numbers of whatever comes after it are the same as without it.
5. Whatever is wrong with the files or the disk, the run goes on, from the data set.
6. How it is asked is how the data set is: with `__getitems__` where that has it (what is missing comes in one call), awaited where
   that is.
"""

from __future__ import annotations

import operator
import os
import time
from functools import partial
from inspect import isawaitable
from typing import Any

import numpy as np
from torch.utils.data import Dataset, IterableDataset

from antifreeze.caching.draws import Draws, at_once, put_back_after
from antifreeze.caching.files import UNIT, Files
from antifreeze.caching.fill import fill
from antifreeze.caching.folder import claim, facts_of, is_first_to_say
from antifreeze.caching.same import difference
from antifreeze.errors import OptionError, OptionTypeError, StaleCache
from antifreeze.saying import say
from antifreeze.signals import raise_if_of_signal
from antifreeze.slots.parcel import pack_any, unpack
from antifreeze.worker.awaiting import awaits
from antifreeze.worker.ways import ways_to_fetch

_MISSING: Any = object()
_MOST_REFUSED = 10_000
_OFTEN_UNSURE = 200


def cached(
    dataset: Any, folder: str | os.PathLike[str], *, max_bytes: int | None = None, version: str = "", check: bool = True
) -> CachedDataset:
    """The same data set, for any loader, with its samples kept in `folder` (on a local disk, for any number of processes and jobs).

    max_bytes   what the files may take; the disk is never filled up in any case
    version     say another one when what the data set does to its samples has changed: files of an earlier one are refused
    check       compare the first sample of each writing job that a process takes from the files with what the data set gives now
    """
    if isinstance(dataset, IterableDataset) or not hasattr(type(dataset), "__getitem__"):
        raise OptionError(f"cached: {type(dataset).__qualname__} has no samples by number (__getitem__), only such can be kept")
    try:
        count = len(dataset)
    except (TypeError, NotImplementedError) as error:
        raise OptionError(f"cached: {type(dataset).__qualname__} has no len(): {error}") from error
    if not isinstance(folder, (str, os.PathLike)) or isinstance(os.fspath(folder), bytes) or not os.fspath(folder):
        raise OptionTypeError(f"cached: folder={folder!r} is not the path of a folder")
    if max_bytes is not None and (isinstance(max_bytes, bool) or not isinstance(max_bytes, int) or max_bytes <= 0):
        raise OptionError(f"cached: max_bytes={max_bytes!r} must be None or a number of bytes, 1 or more")
    if not isinstance(version, str):
        raise OptionTypeError(f"cached: version={version!r} must be a text")
    if not isinstance(check, bool):
        raise OptionTypeError(f"cached: check={check!r} must be True or False")
    together = ways_to_fetch(dataset)[1] is not None
    kind = _KINDS[awaits(dataset), together]
    return kind(dataset, os.path.abspath(os.path.expanduser(os.fspath(folder))), count, max_bytes, version, check)


class _Here:
    """What this process knows of the files. It is not pickled or copied, and after a fork the child begins anew."""

    __slots__ = ("_by_pid",)

    def __init__(self) -> None:
        self._by_pid: dict[int, Files] = {}

    def __reduce__(self) -> Any:
        return _Here, ()

    def files(self, *of: Any) -> Files:
        pid = os.getpid()
        found = self._by_pid.get(pid)
        if found is None:
            found = self._by_pid.setdefault(pid, Files(*of))
            for other in list(self._by_pid):
                if other != pid:
                    self._by_pid.pop(other, None)
        return found


class CachedDataset(Dataset[Any]):
    """What `cached` gives; `dataset` is the one it was made of."""

    _waits = False

    def __init__(self, dataset: Any, folder: str, count: int, max_bytes: int | None, version: str, check: bool) -> None:
        self.dataset = dataset
        self.folder = folder
        self._count, self._max_bytes, self._check = count, max_bytes, check
        self._job = f"{time.time_ns():x}{os.urandom(4).hex()}"
        self._here = _Here()
        self._cannot = claim(folder, facts_of(dataset, version))
        if self._cannot:
            self._say("writing", f"no samples are written to {folder}: {self._cannot}")

    def __len__(self) -> int:
        return self._count

    def __repr__(self) -> str:
        samples, size = self.held()
        return f"<cached {type(self.dataset).__qualname__}: {samples:,} of {self._count:,} samples in {self.folder}, {size:,} bytes>"

    def held(self) -> tuple[int, int]:
        """How many samples are in the files now, whoever wrote them, and how many bytes the files have."""
        return self._files().held()

    def fill(self, num_workers: int | str = "auto", progress: bool = True, **options: Any) -> int:
        """Reads every sample that is missing once, in workers; gives how many are in the files then. Few large files of many small ones.

        progress               how far it is, on stderr, every few seconds; what could not be kept is said in any case
        num_workers, options   as for DataLoader (`sample_timeout_s`, `on_bad_sample`, `workers` …)
        """
        return fill(self, self._files(), num_workers, progress, options)

    def take_refused(self) -> list[tuple[int, str]]:
        """Which samples this process could not keep since this was last asked, and why."""
        files = self._files()
        taken, files.refused = files.refused, []
        return taken

    def _files(self) -> Files:
        return self._here.files(self.folder, self._count, self._max_bytes, self._cannot, self._job)

    def _index(self, key: Any) -> int:
        try:
            index = operator.index(key)
        except TypeError:
            raise TypeError(
                f"cached: the sample {key!r:.100} is not asked for by a number; only data sets whose keys are 0 … can be kept"
            ) from None
        if not 0 <= index < self._count:
            raise IndexError(f"cached: there is no sample {index}: they are 0 … {self._count - 1}")
        return index

    # --- from the files ---

    def _kept(self, files: Files, index: int) -> Any:
        """The sample; _MISSING where it is not in the files, or not whole."""
        if files.stale:
            raise StaleCache(files.stale)
        bad = files.bad
        try:
            payload = files.read(index)
        except OSError as error:
            self._say("reading", f"{self.folder} cannot be read, samples are loaded from the data set: {error}")
            return _MISSING
        if files.bad > bad:
            self._say("bad", f"the file of sample {index} in {self.folder} is damaged or gone; it is loaded again, and written anew")
        if payload is None:
            return _MISSING
        try:
            return unpack(payload)
        except Exception as error:
            raise_if_of_signal(error)
            self._say("unpickling", f"sample {index} in {self.folder} cannot be unpickled here, it is loaded again: {_told(error)}")
            files.stopped = "what others wrote there cannot be unpickled here"
            return _MISSING

    async def _compare(self, files: Files, index: int, kept: Any, together: bool) -> None:
        """Once in a process, for each job that has written: whether the data set gives what is in the files."""
        files.note_compared(index)
        try:
            now, _ = await self._ask_again(index, together)
        except Exception as error:
            raise_if_of_signal(error)
            self._say(
                "comparing", f"sample {index} in {self.folder} could not be compared with what the data set gives now: {_told(error)}"
            )
            return
        if differs := difference(kept, now):
            files.stale = (
                f"{self.folder} holds other samples than the data set gives now: sample {index}, {differs}\n"
                "  why: the data set or its files have changed since; or each loading gives another one (its own generator, a time)\n"
                "  what to do: another folder, or version=, for changed samples (the old folder can be deleted, it is a copy); let what\n"
                "  differs come after cached(…); check=False where the difference does not matter"
            )
            raise StaleCache(files.stale)

    # --- from the data set ---

    async def _ask(self, indices: list[int], together: bool) -> Any:
        source, many = ways_to_fetch(self.dataset)
        if together and many is not None:
            samples = many(indices)
            return await samples if self._waits and isawaitable(samples) else samples
        sample = source[indices[0]]
        return [await sample if self._waits and isawaitable(sample) else sample]

    async def _ask_again(self, index: int, together: bool) -> tuple[Any, Draws]:
        """One that need not be asked for: whatever it draws, the numbers that come are those that would have come."""
        draws = Draws(partial(self._ask, [index], together))
        samples = await draws if self._waits else put_back_after(partial(at_once, draws))
        return samples[0], draws

    async def _load(self, files: Files, indices: list[int], together: bool) -> Any:
        """What the data set gives for these, which are not in the files."""
        draws = Draws(partial(self._ask, indices, together))
        samples = await draws
        if not isinstance(samples, (list, tuple)) or len(samples) != len(indices):
            return samples
        for index, sample in zip(indices, samples, strict=True):
            if draws.unsure:
                self._refuse_drawn(files, index, draws)
            elif sample is not None:
                await self._keep(files, index, sample, together)
        return samples

    async def _keep(self, files: Files, index: int, sample: Any, together: bool) -> None:
        if files.stopped:
            self._refuse_written(files, index, files.stopped)
            return
        if self._check and not files.compared_write and not await self._is_constant(files, index, sample, together):
            return
        try:
            parcel = pack_any(sample)
            payload = np.zeros(-(-parcel.size_bytes // UNIT) * UNIT, dtype=np.uint8)
            parcel.write(payload)
        except Exception as error:
            raise_if_of_signal(error)
            self._refuse(files, index, "cannot be pickled", f"sample {index} cannot be pickled, and is not kept: {_told(error)}")
            return
        files.compared_write = True
        if why := files.write(index, payload):
            self._refuse_written(files, index, why)
        else:
            files.kept += 1

    async def _is_constant(self, files: Files, index: int, sample: Any, together: bool) -> bool:
        """The first one that is kept: whether it is the same when it is loaded once more."""
        try:
            again, draws = await self._ask_again(index, together)
        except Exception as error:
            raise_if_of_signal(error)
            self._refuse(files, index, "it could not be loaded once more", "")  # but it is there, so nothing is wrong with it
            return False
        if draws.unsure:
            self._refuse_drawn(files, index, draws)
            return False
        if differs := difference(sample, again):
            files.stopped = "samples differ from one loading to the next"
            text = (
                f"samples are not kept in {self.folder}: sample {index} is another one when it is loaded again, {differs}\n"
                "  what to do: wrap the part that only reads, cached(reads, folder), and let what differs come after it"
            )
            self._refuse(files, index, files.stopped, text, topic="writing")
        return not differs

    # --- what is not kept ---

    def _refuse_drawn(self, files: Files, index: int, draws: Draws) -> None:
        if draws.names:
            text = (
                f"sample {index} draws random numbers ({draws.names}): such samples are not kept, they would be the same in every epoch\n"
                "  what to do: wrap the part that only reads, cached(reads, folder), and let the random part come after it"
            )
            self._refuse(files, index, f"random numbers are drawn ({draws.names})", text, topic="random")
            return
        files.unsure += 1
        text = "many samples are not kept, since other threads draw random numbers while they load; .fill() keeps them all"
        often = files.unsure > _OFTEN_UNSURE + files.kept
        self._refuse(files, index, "another thread drew random numbers meanwhile", text if often else "", topic="unsure")

    def _refuse_written(self, files: Files, index: int, why: str) -> None:
        news = files.stopped and files.stopped != self._cannot  # that was said at once
        self._refuse(files, index, why, f"no more samples are written to {self.folder}: {why}" if news else "", topic="writing")

    def _refuse(self, files: Files, index: int, why: str, text: str, topic: str = "refused") -> None:
        if len(files.refused) < _MOST_REFUSED:
            files.refused.append((index, why))
        if text:
            self._say(topic, text)

    def _say(self, topic: str, text: str) -> None:
        said = self._files().said
        if topic not in said:
            said.add(topic)
            if is_first_to_say(self.folder, self._job, topic):
                say(text)

    # --- all of it, for those who wait and those who do not ---

    async def _get(self, files: Files, index: int, sample: Any) -> Any:
        if sample is _MISSING:
            return (await self._load(files, [index], together=False))[0]
        if self._check and not files.is_compared(index):
            await self._compare(files, index, sample, together=False)
        return sample

    async def _get_many(self, indices: list[int]) -> Any:
        files = self._files()
        samples = [self._kept(files, index) for index in indices]
        missing = [index for index, sample in zip(indices, samples, strict=True) if sample is _MISSING]
        for index, sample in zip(indices, samples, strict=True):
            if self._check and sample is not _MISSING and not files.is_compared(index):
                await self._compare(files, index, sample, together=True)
        if not missing:
            return samples
        loaded = await self._load(files, missing, together=True)
        if isinstance(loaded, (list, tuple)) and len(loaded) == len(missing):
            rest = iter(loaded)
            return [next(rest) if sample is _MISSING else sample for sample in samples]
        return loaded if len(missing) == len(indices) else await self._ask(indices, together=True)


class Cached(CachedDataset):
    def __getitem__(self, key: Any) -> Any:
        index, files = self._index(key), self._files()
        sample = self._kept(files, index)
        if sample is not _MISSING and (not self._check or files.is_compared(index)):
            return sample
        return at_once(self._get(files, index, sample))


class CachedMany(Cached):
    def __getitems__(self, keys: Any) -> Any:
        return at_once(self._get_many([self._index(key) for key in keys]))


class CachedAwaited(CachedDataset):
    _waits = True

    async def __getitem__(self, key: Any) -> Any:
        index, files = self._index(key), self._files()
        return await self._get(files, index, self._kept(files, index))


class CachedManyAwaited(CachedAwaited):
    async def __getitems__(self, keys: Any) -> Any:
        return await self._get_many([self._index(key) for key in keys])


_KINDS: dict[tuple[bool, bool], type[CachedDataset]] = {
    (False, False): Cached,
    (False, True): CachedMany,
    (True, False): CachedAwaited,
    (True, True): CachedManyAwaited,
}
"""By whether it is awaited, and whether it gives many in one call."""


def _told(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}"[:300]
