"""The samples of a folder, as one process sees and writes them: no lock, and no file with two writers.

    NAME.data    payload · payload · payload · …
    NAME.index   |sample offset size crc check|sample offset size crc check| …     32 bytes each

1. Each process that writes has a NAME of its own, made at its first write; it begins with its job, which all copies of one data set
   share. A record is written, in one call, after its payload: whoever is killed in between leaves bytes that nobody looks for. What is
   torn or bad in an index is passed over.
2. Others see a record when they next read the index, from where they left off: at a miss, and at most every LOOK_S.
3. In memory a sample has 16 bytes: where it is (segment, offset), how long, and its crc. The first record that is seen stays.
4. What is read is checked. A payload that is not what was written is struck out (its record is overwritten with zeros, the one thing
   that is ever written to another's file), and the sample is loaded and written anew.
5. Nothing is evicted: when `max_bytes` or the disk has no room, or a write fails, this process writes no more.
"""

from __future__ import annotations

import os
import shutil
import threading
import time
import zlib
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import numpy as np

from antifreeze.descriptors import Held
from antifreeze.linux import resource

LOOK_S = 0.2
UNIT = 8
"""Payloads are filled up to a multiple of so many bytes."""
RECORD = np.dtype([("sample", "<i8"), ("offset", "<i8"), ("size", "<i8"), ("crc", "<u4"), ("check", "<u4")])
_SEGMENT = 1 << 40  # bytes that a place has for an offset
_LONGEST = UNIT * (2**32 - 1)
_LOOK_SHARE = 20  # a look that takes long is not repeated before so many times as long
_RECORDS_AT_ONCE = 1 << 20
_MOST_OPEN = 32
_USUALLY_HALF = 512  # of the descriptors that a process may have
_WAIT_S = 5.0
_KEPT_FREE, _KEPT_FREE_SHARE = 1 << 30, 20
"""Of the disk: so many bytes, or one byte in so many of a small one."""
_BINARY = getattr(os, "O_BINARY", 0)
_FACTORS = np.array([0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB, 0xD6E8FEB86659FD93], dtype=np.uint64)


def checks_of(records: Any) -> Any:
    """What their last field must be: a hash of the others, of a million records in some milliseconds."""
    mixed = np.full(len(records), _FACTORS[0], dtype=np.uint64)
    for factor, name in zip(_FACTORS, ("sample", "offset", "size", "crc"), strict=True):
        mixed = (mixed ^ records[name].astype(np.uint64)) * factor
        mixed ^= mixed >> np.uint64(29)
    return mixed.astype(np.uint32)


class Files:
    """One process's; none of it is used after a fork. Without a __dict__, so that it is nothing that the data set holds."""

    __slots__ = (
        *("folder", "stopped", "bad", "stale", "refused", "said", "unsure", "kept", "compared_write", "_compared", "_count", "_max_bytes"),
        *("_why_full", "_place", "_units", "_crc", "_lock", "_next_look_s", "_bytes", "_room", "_allowance", "_names", "_numbers", "_seen"),
        *("_open", "_own", "_data_end", "_index_end", "_job"),
    )

    def __init__(self, folder: str, count: int, max_bytes: int | None, stopped: str = "", job: str = "") -> None:
        self.folder = folder
        self.stopped = stopped  # why nothing is written any more
        self.bad = 0  # payloads that were not what was written
        self._count, self._max_bytes, self._job = count, max_bytes, job
        self._place = np.zeros(count, dtype=np.int64)
        self._units = np.zeros(count, dtype=np.uint32)  # 0: not there. Set last, so whoever sees it sees the rest
        self._crc = np.zeros(count, dtype=np.uint32)
        self._lock = threading.RLock()
        self._next_look_s = 0.0
        self._bytes = self._room = self._allowance = 0
        self._why_full = ""
        self._names: list[str] = []
        self._numbers: dict[str, int] = {}
        self._seen: dict[str, int] = {}
        self._open: dict[int, tuple[Held, int]] = {}
        self._own: tuple[int, Held, int, int] | None = None  # number, owner of the descriptors, data, index
        self._data_end = self._index_end = 0
        # of whoever asks: what it has compared, refused and said in this process
        self._compared: list[bool] = []  # by segment
        self.compared_write = False
        self.stale = ""
        self.refused: list[tuple[int, str]] = []
        self.said: set[str] = set()
        self.unsure = self.kept = 0

    # --- reading ---

    def read(self, sample: int) -> Any:
        """Its payload, which is the caller's; None where there is none, or none that is whole."""
        if not self._units[sample]:
            self.look()
            if not self._units[sample]:
                return None
        for _ in range(2):  # once more, before it is called bad
            place, size, crc = int(self._place[sample]), UNIT * int(self._units[sample]), int(self._crc[sample])
            number, offset = divmod(place, _SEGMENT)
            payload: Any = np.empty(size, dtype=np.uint8)
            if not size:  # struck out by another thread
                return None
            try:
                held, data = self._opened(number)
                whole = self._read_into(data, payload, offset)
                del held
            except FileNotFoundError:
                whole = False
            if whole and zlib.crc32(payload) == crc:
                return payload
        self.bad += 1
        self._strike(sample, place)
        return None

    def is_compared(self, sample: int) -> bool:
        """Whether a sample that is of the same job as this one's record was compared."""
        return self._compared[int(self._place[sample]) // _SEGMENT]

    def note_compared(self, sample: int) -> None:
        with self._locked():
            job = _job_of(self._names[int(self._place[sample]) // _SEGMENT])
            self._compared = [done or _job_of(name) == job for done, name in zip(self._compared, self._names, strict=True)]

    def _opened(self, number: int) -> tuple[Held, int]:
        """The descriptor lives as long as somebody has its owner, also where it is no longer among those kept open."""
        found = self._open.get(number)
        if found is None:
            held = Held()
            found = held, held.open(os.open, self._path(self._names[number], "data"), os.O_RDONLY | _BINARY)
            if found[1] >= _most_descriptors():  # of a hundred data sets, say: it is opened for this one read
                return found
            self._open[number] = found
            for oldest in list(self._open)[:-_MOST_OPEN]:
                self._open.pop(oldest, None)
        return found

    def _read_into(self, data: int, payload: Any, offset: int) -> bool:
        left = memoryview(payload)
        while left:
            if hasattr(os, "preadv"):
                got = os.preadv(data, [left], offset)
            else:
                with self._lock:
                    os.lseek(data, offset, os.SEEK_SET)
                    piece = os.read(data, len(left))
                got = len(piece)
                left[:got] = piece
            if not got:
                return False
            left, offset = left[got:], offset + got
        return True

    def _strike(self, sample: int, place: int) -> None:
        with self._locked() as mine, suppress(OSError):
            if not mine or int(self._place[sample]) != place:
                return
            self._units[sample] = 0
            number, offset = divmod(place, _SEGMENT)
            path = self._path(self._names[number], "index")
            records = np.fromfile(path, dtype=RECORD)
            (found,) = np.nonzero((records["sample"] == sample) & (records["offset"] == offset))
            with open(path, "r+b", buffering=0) as index:
                for record in found.tolist():
                    index.seek(record * RECORD.itemsize)
                    index.write(bytes(RECORD.itemsize))

    # --- what others have written ---

    def look(self, now: bool = False) -> None:
        """At all indexes, for what is new; not `now`: unless that was done a moment ago."""
        began_s = time.monotonic()
        if not now and began_s < self._next_look_s:
            return
        with self._locked() as mine:
            if not mine:
                return
            try:
                self._look()
            except OSError as error:
                self.stopped = self.stopped or f"its folder cannot be read: {error}"
            ended_s = time.monotonic()
            self._next_look_s = ended_s + max(LOOK_S, _LOOK_SHARE * (ended_s - began_s))

    def _look(self) -> None:
        found, names = 0, os.listdir(self.folder)
        if self._own is not None and f"{self._names[self._own[0]]}.data" not in names:
            raise FileNotFoundError("what this process has written was deleted")  # it would go on in a file that nobody sees
        for name in names:
            stem, _, kind = name.rpartition(".")
            if kind not in ("data", "index"):
                continue
            with suppress(FileNotFoundError, PermissionError):
                size = os.stat(os.path.join(self.folder, name)).st_size
                found += size
                if kind == "index" and size > self._seen.get(stem, 0):
                    self._take_in(stem)
        disk = shutil.disk_usage(self.folder)
        self._bytes = found
        self._room = disk.free - min(_KEPT_FREE, disk.total // _KEPT_FREE_SHARE) if disk.total else _LONGEST
        self._why_full = f"its disk is nearly full ({disk.free:,} bytes are free)"
        if self._max_bytes is not None and self._max_bytes - found < self._room:
            self._room, self._why_full = self._max_bytes - found, f"max_bytes={self._max_bytes:,} is reached"
        self._allowance = self._room // (len(self._names) + 1) ** 2  # of all that write together less than the room, before anybody looks

    def _take_in(self, stem: str) -> None:
        with open(self._path(stem, "index"), "rb", buffering=0) as index:
            at = self._seen.get(stem, 0)
            index.seek(at)
            while (new := index.read(RECORD.itemsize * _RECORDS_AT_ONCE)) and len(new) >= RECORD.itemsize:
                records = np.frombuffer(new, dtype=RECORD, count=len(new) // RECORD.itemsize)
                size, sample, offset = records["size"], records["sample"], records["offset"]
                good = (records["check"] == checks_of(records)) & (sample >= 0) & (sample < self._count)
                good &= (size > 0) & (size <= _LONGEST) & (size % UNIT == 0) & (offset >= 0) & (offset < _SEGMENT)
                if good.any():
                    self._seen[stem] = at + RECORD.itemsize * (int(np.flatnonzero(good)[-1]) + 1)  # the last may not be written yet
                    self._put(self._number_of(stem), records[good])
                at += RECORD.itemsize * len(records)
                index.seek(at)

    def _put(self, number: int, records: Any) -> None:
        records = records[self._units[records["sample"]] == 0]
        sample = records["sample"]
        self._place[sample] = number * _SEGMENT + records["offset"]
        self._crc[sample] = records["crc"]
        self._units[sample] = records["size"] // UNIT

    def held(self) -> tuple[int, int]:
        """Samples, and bytes of all files."""
        self.look(now=True)
        return int(np.count_nonzero(self._units)), self._bytes

    def missing(self) -> Any:
        self.look(now=True)
        return np.flatnonzero(self._units == 0)

    # --- writing ---

    def write(self, sample: int, payload: Any) -> str:
        """Why it could not be; empty where it is there now. `payload`: a multiple of UNIT bytes."""
        with self._locked() as mine:
            if not mine:
                return f"another thread has been writing for {_WAIT_S:g} s"
            try:
                if len(payload) > _LONGEST:
                    return f"its {len(payload):,} bytes are too many"
                if self._has_room(len(payload) + RECORD.itemsize):
                    self._append(sample, payload)
            except OSError as error:
                self.stopped = f"writing there failed: {error}"
            return self.stopped

    def _has_room(self, size: int) -> bool:
        if not self.stopped and (self._own is None or size > self._allowance):
            self.look(now=True)
        if not self.stopped and size > self._room:
            self.stopped = self._why_full
        if not self.stopped and (self._own is None or self._data_end + size > _SEGMENT):
            self._own = self._new_segment()
            self._data_end = self._index_end = 0
            self.look(now=True)  # now that the others see that there is one more
        return not self.stopped

    def _append(self, sample: int, payload: Any) -> None:
        """Where an earlier try was broken off, over what it left."""
        assert self._own is not None
        number, _, data, index = self._own
        record = np.array([(sample, self._data_end, len(payload), zlib.crc32(payload), 0)], dtype=RECORD)
        record["check"] = checks_of(record)
        _write_at(data, memoryview(payload), self._data_end)
        _write_at(index, memoryview(record.tobytes()), self._index_end)
        self._data_end += len(payload)
        self._index_end += RECORD.itemsize
        self._seen[self._names[number]] = self._index_end
        self._room -= len(payload) + RECORD.itemsize
        self._allowance -= len(payload) + RECORD.itemsize
        self._put(number, record)

    def _new_segment(self) -> tuple[int, Held, int, int]:
        name = f"{self._job or f'{time.time_ns():x}'}-{os.getpid()}-{os.urandom(4).hex()}"
        held, flags = Held(), os.O_WRONLY | os.O_CREAT | os.O_EXCL | _BINARY
        data = held.open(os.open, self._path(name, "data"), flags, 0o666)
        return self._number_of(name), held, data, held.open(os.open, self._path(name, "index"), flags, 0o666)

    # --- ---

    def _number_of(self, stem: str) -> int:
        number = self._numbers.setdefault(stem, len(self._names))
        if number == len(self._names):
            job = _job_of(stem)
            self._compared.append(any(done and _job_of(name) == job for done, name in zip(self._compared, self._names, strict=True)))
            self._names.append(stem)
        return number

    def _path(self, stem: str, kind: str) -> str:
        return os.path.join(self.folder, f"{stem}.{kind}")

    @contextmanager
    def _locked(self) -> Iterator[bool]:
        """Among threads of this process; whether it came to that: one that is stuck in a write holds up nobody for long."""
        mine = self._lock.acquire(timeout=_WAIT_S)
        try:
            yield mine
        finally:
            if mine:
                self._lock.release()


def _most_descriptors() -> int:
    """Numbers from here on are for whoever needs them: the lowest that is free is given, so as many are in use."""
    try:
        soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    except (AttributeError, OSError):  # another system
        return _USUALLY_HALF
    return soft // 2 if soft > 0 else _USUALLY_HALF


def _job_of(name: str) -> str:
    return name.rsplit("-", 2)[0]


def _write_at(file: int, left: memoryview, offset: int) -> None:
    os.lseek(file, offset, os.SEEK_SET)
    while left:
        left = left[os.write(file, left) :]
