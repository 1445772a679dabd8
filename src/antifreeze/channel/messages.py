"""What crosses between the parent and a worker: short fixed records, one per packet.

    parent  ── Welcome, OpenStream, Work, NewEpoch, Stop ──▶  worker
            ◀── Ready, LayoutFound, Hoards, StreamState, SampleFailed, ItemLeftOut, RowsDone, ParcelDone, Bounced, StreamEnded,
                TaskFailed ──

A record is a NamedTuple whose integers are packed by its FORMAT; `payload`, where it has one, follows as raw bytes.
Nothing here is pickled; a payload that holds a pickle (an error, a layout, a stream's state) is made by whoever needs it.
"""

from __future__ import annotations

import struct
from typing import Any, NamedTuple

# --- parent to worker -------------------------------------------------------------------------------------------------


class Welcome(NamedTuple):
    """The first packet: brings the descriptors of the arena, the journal, the lifeline and the file for stacks.
    `workers`: how many there are now, which a pool that was resized knows better than their spec."""

    journal_row: int
    workers: int


class OpenStream(NamedTuple):
    """An iterable data set: begin (or resume) stream `stream` of `streams`; payload: the pickled StreamProgress that it had made.
    `replay`: without a state, draw again what it had given and drop it; otherwise that is only counted.
    `stop_at`: the item before which it comes to its end; none where negative.
    `streams` = 0 means a stream that was begun without workers, where get_worker_info() is None."""

    stream: int
    streams: int
    batch_rows: int
    replay: int
    stop_at: int
    payload: bytes


WITH_OFFSETS = 2
"""As `pickled` of a Work: the payload is pickled indices and the offsets of their positions, which have gaps."""


class Work(NamedTuple):
    """Fill rows first_row… of a batch; payload: the indices as int64, or pickled where they are no ints.
    `whole`: the task is the whole batch, so the worker itself chooses between rows and parcel. `singly`: try each sample alone first.
    `slot_age`: how often the slot's memory went back to the system. `key`: what the random numbers of its epoch are made from."""

    task: int
    batch: int
    slot: int
    batch_rows: int
    first_row: int
    rows: int
    position: int
    stream: int
    whole: int
    singly: int
    slot_age: int
    key: int
    pickled: int
    payload: bytes


class NewEpoch(NamedTuple):
    """A persistent worker begins another epoch; payload: pickled base seed, and shared seed of DataPipes."""

    epoch: int
    payload: bytes


class Stop(NamedTuple):
    reason: int


# --- worker to parent -------------------------------------------------------------------------------------------------


class Ready(NamedTuple):
    """After worker_init_fn; `user_seeded` has a bit for each generator that it seeded by itself. Where it raised, and nothing can be
    loaded here, payload is a pickled Failure."""

    user_seeded: int
    payload: bytes


class LayoutFound(NamedTuple):
    """payload: the pickled RowLayout that `key` stands for in this worker's later RowsDone."""

    key: int
    payload: bytes


class StreamState(NamedTuple):
    """Of the batch that comes next: how many items it drew, good and bad, and whether its iterator has ended with it; payload: the data
    set's pickled state_dict, or nothing."""

    stream: int
    drawn: int
    ended: int
    payload: bytes


class Hoards(NamedTuple):
    """The worker has grown; payload: what its data set keeps ever more of, in words."""

    payload: bytes


class SampleFailed(NamedTuple):
    """One row of a task is bad; payload: a pickled Failure. The task goes on."""

    task: int
    row: int
    payload: bytes


class ItemLeftOut(NamedTuple):
    """A bad item of a stream, which its task goes on without; payload: a pickled Failure."""

    task: int
    payload: bytes


class RowsDone(NamedTuple):
    """Times as in ParcelDone."""

    task: int
    layout: int
    rows: int
    began_ns: int
    fetch_ns: int
    write_ns: int
    cpu_ns: int
    queued_ns: int


class ParcelDone(NamedTuple):
    """When the task began (on the monotonic clock, which all processes share), how long each stage took, and how much of it all was
    computing (`cpu_ns`) or waiting for a core (`queued_ns`)."""

    task: int
    rows: int
    size_bytes: int
    began_ns: int
    fetch_ns: int
    collate_ns: int
    write_ns: int
    cpu_ns: int
    queued_ns: int


class Collated(NamedTuple):
    """From a worker in the parent's own process: the batch itself. It never becomes bytes."""

    task: int
    rows: int
    began_ns: int
    fetch_ns: int
    collate_ns: int
    cpu_ns: int
    batch: Any


class Ended(NamedTuple):
    """The last word of a worker in the parent's own process, however it ended. (The end of a process is an event of its own.)"""

    reason: int


class Bounced(NamedTuple):
    """Part of a batch that cannot be written as rows (or lacks a bad row before its collate): load the batch whole."""

    task: int


class StreamEnded(NamedTuple):
    task: int
    stream: int


class TaskFailed(NamedTuple):
    """payload: a pickled Failure."""

    task: int
    payload: bytes


Message = (
    Welcome
    | OpenStream
    | Work
    | NewEpoch
    | Stop
    | Ready
    | LayoutFound
    | Hoards
    | StreamState
    | SampleFailed
    | ItemLeftOut
    | RowsDone
    | ParcelDone
    | Bounced
    | StreamEnded
    | TaskFailed
    | Collated
    | Ended
)
NEVER_BYTES = (Collated, Ended)
"""Only between a parent and a worker in its own process."""


_RECORDS: tuple[Any, ...] = (
    Welcome,
    OpenStream,
    Work,
    NewEpoch,
    Stop,
    Ready,
    LayoutFound,
    Hoards,
    StreamState,
    SampleFailed,
    ItemLeftOut,
    RowsDone,
    ParcelDone,
    Bounced,
    StreamEnded,
    TaskFailed,
)
_NUMBER = {record: number for number, record in enumerate(_RECORDS)}
_HAS_PAYLOAD = [record._fields[-1] == "payload" for record in _RECORDS]
_STRUCTS = [
    struct.Struct("<B" + "q" * (len(record._fields) - with_payload)) for record, with_payload in zip(_RECORDS, _HAS_PAYLOAD, strict=True)
]


def encode(message: Message) -> bytes:
    number = _NUMBER[type(message)]
    if _HAS_PAYLOAD[number]:
        return _STRUCTS[number].pack(number, *message[:-1]) + message[-1]  # type: ignore[operator]
    return _STRUCTS[number].pack(number, *message)


def decode(packet: bytes) -> Message:
    number = packet[0]
    layout = _STRUCTS[number]
    fields = layout.unpack_from(packet)[1:]
    if _HAS_PAYLOAD[number]:
        return _RECORDS[number](*fields, packet[layout.size :])  # type: ignore[no-any-return]
    return _RECORDS[number](*fields)  # type: ignore[no-any-return]
