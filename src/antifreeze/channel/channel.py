"""A SOCK_SEQPACKET pair: whole packets, one writer and one reader at each end, and no lock that a dead process could keep.

    parent end ◀──────▶ worker end
    A packet over PACKET_BYTES travels as a descriptor of an anonymous file that holds it.

1. A packet arrives whole or not at all, whatever instant its sender is killed at.
2. `try_send` and `try_receive` never wait; `send` and `receive` may, and are for the worker, whose parent's death ends it.
3. `take_back` gives the parent the packets that the worker has not read yet: the kernel gives each packet to one reader only.
"""

from __future__ import annotations

import array
import mmap
import os
import socket
from collections.abc import Callable
from typing import Any

from antifreeze.channel.messages import Message, decode, encode
from antifreeze.linux import ANCILLARY_CLOEXEC, NO_WAIT, rights_space

PACKET_BYTES = 48 * 1024
_WHOLE, _IN_FILE = b"\x00", b"\x01"
_ANCILLARY_BYTES = rights_space(5)


class Channel:
    def __init__(self, end: socket.socket) -> None:
        self._socket = end
        self.descriptors: list[int] = []  # received with the last packet, for whoever asked for them

    def __repr__(self) -> str:
        return f"<Channel {self._socket.fileno()}>"

    def fileno(self) -> int:
        return self._socket.fileno()

    def send(self, message: Message, descriptors: tuple[int, ...] = ()) -> None:
        """Waits while the other end's queue is full: for the worker, whose parent's death ends it."""
        self._write(encode(message), descriptors, 0)

    def try_send(self, message: Message) -> bool:
        """False when the other end's queue is full."""
        try:
            self._write(encode(message), (), NO_WAIT)
        except BlockingIOError:
            return False
        return True

    def _write(self, packet: bytes, descriptors: tuple[int, ...], flags: int) -> None:
        if len(packet) <= PACKET_BYTES:
            self._socket.sendmsg((_WHOLE, packet), _ancillary(descriptors), flags)
            return
        holder = os.memfd_create("antifreeze-packet")
        try:
            _write_all(holder, packet)
            self._socket.sendmsg((_IN_FILE,), _ancillary((holder, *descriptors)), flags)
        finally:
            os.close(holder)

    def receive(self) -> Message | None:
        """Waits for the next packet; None when the other end is gone."""
        return self._read(0)

    def try_receive(self) -> Message | None:
        """The next packet if one is there."""
        try:
            return self._read(NO_WAIT)
        except (BlockingIOError, InterruptedError):
            return None
        except ConnectionError:
            return None  # the other end died; its process's end is an event of its own

    def listen(self, loop: Any, heard: Callable[[], None]) -> None:
        """In an event loop: `heard` is called as long as there is something to receive, or the other end is gone."""
        loop.add_reader(self.fileno(), heard)

    def unlisten(self, loop: Any) -> None:
        loop.remove_reader(self.fileno())

    def check(self) -> None:
        """Raises OSError where the line was closed under us."""
        self._socket.getpeername()

    def close(self) -> None:
        self._socket.close()

    def _read(self, flags: int) -> Message | None:
        # socket.recv_fds() of Python 3.11 passes no flags on, so it would wait
        packet, ancillary, _, _ = self._socket.recvmsg(PACKET_BYTES + 64, _ANCILLARY_BYTES, flags | ANCILLARY_CLOEXEC)
        if not packet:
            return None
        descriptors = _descriptors(ancillary) if ancillary else []
        if packet[:1] == _IN_FILE:
            holder, *descriptors = descriptors
            packet = _read_all(holder)
            self.descriptors = descriptors
            return decode(packet)
        self.descriptors = descriptors
        return decode(packet[1:])


def _ancillary(descriptors: tuple[int, ...]) -> list[tuple[int, int, array.array[int]]]:
    return [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", descriptors))] if descriptors else []


def _descriptors(ancillary: list[tuple[int, int, bytes]]) -> list[int]:
    numbers = array.array("i")
    for level, kind, content in ancillary:
        if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
            numbers.frombytes(content[: len(content) - len(content) % numbers.itemsize])
    return list(numbers)


def channel_pair() -> tuple[socket.socket, socket.socket]:
    return socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)


def _write_all(descriptor: int, content: bytes) -> None:
    view = memoryview(content)
    while view:
        view = view[os.write(descriptor, view) :]


def _read_all(descriptor: int) -> bytes:
    try:
        with mmap.mmap(descriptor, 0, access=mmap.ACCESS_READ) as content:
            return content[:]
    finally:
        os.close(descriptor)
