"""The one-to-one line: whole packets, whoever dies; none read twice, none lost."""

from __future__ import annotations

import array
import fcntl
import os
import signal
import socket
from collections.abc import Callable, Iterator

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from antifreeze.channel.channel import PACKET_BYTES, Channel, channel_pair
from antifreeze.channel.messages import Message, NewEpoch, Ready, Stop

LARGE = PACKET_BYTES * 3
HEAD = 9  # a NewEpoch is its kind, its epoch, its payload
forks = pytest.mark.filterwarnings("ignore::DeprecationWarning")
"""A child forked while torch has threads touches nothing but its sockets."""


@pytest.fixture
def ends() -> Iterator[tuple[Channel, Channel]]:
    left, right = map(Channel, channel_pair())
    yield left, right
    left.close()
    right.close()


def packet(number: int, size: int = 0) -> NewEpoch:
    """Its payload can be told from any other's, and whether it is whole."""
    return NewEpoch(number, (number % 251).to_bytes(1, "little") * size)


def number_of(message: Message | None) -> int:
    assert isinstance(message, NewEpoch)
    assert set(message.payload) <= {message.epoch % 251}, "a torn packet"
    return message.epoch


def everything(channel: Channel) -> list[Message]:
    found = []
    while (message := channel.try_receive()) is not None:
        found.append(message)
    return found


@settings(deadline=None, derandomize=True, database=None, max_examples=30, suppress_health_check=list(HealthCheck))
@given(st.lists(st.integers(0, 200) | st.integers(PACKET_BYTES - HEAD - 2, PACKET_BYTES - HEAD + 2) | st.just(LARGE), max_size=6))
def test_packets_of_any_size_arrive_whole_and_in_order(sizes: list[int]) -> None:
    left, right = map(Channel, channel_pair())
    sent = [packet(number, size) for number, size in enumerate(sizes)]
    received: list[Message] = []
    for message in sent:
        if not left.try_send(message):
            received += everything(right)
            left.send(message)
    assert [*received, *everything(right)] == sent
    left.close()
    right.close()


@pytest.mark.parametrize(("size", "in_file"), [(0, False), (PACKET_BYTES - HEAD, False), (PACKET_BYTES - HEAD + 1, True), (LARGE, True)])
def test_only_what_is_large_goes_through_a_file(size: int, in_file: bool) -> None:
    left, right = channel_pair()
    with left, right:
        Channel(left).send(packet(1, size))
        content, descriptors, _, _ = socket.recv_fds(right, 2 * LARGE, 4)
        assert len(descriptors) == int(in_file)
        assert len(content) == (1 if in_file else 1 + HEAD + size)
        for descriptor in descriptors:
            assert os.fstat(descriptor).st_size == HEAD + size
            assert os.readlink(f"/proc/self/fd/{descriptor}").startswith("/memfd:antifreeze-packet")
            os.close(descriptor)


@pytest.mark.parametrize("size", [0, LARGE])
@pytest.mark.parametrize("count", [1, 4])
def test_descriptors_arrive_with_their_packet(ends: tuple[Channel, Channel], size: int, count: int) -> None:
    left, right = ends
    files = [os.memfd_create(f"antifreeze-test-{number}") for number in range(count)]
    left.send(packet(0))
    left.send(packet(1, size), tuple(files))
    left.send(packet(2))
    numbers, received = [], []
    for _ in range(3):
        numbers.append(number_of(right.try_receive()))
        received.append(right.descriptors)
    assert numbers == [0, 1, 2]
    assert [len(descriptors) for descriptors in received] == [0, count, 0]
    for sent, got in zip(files, received[1], strict=True):
        assert os.path.sameopenfile(sent, got)
        assert fcntl.fcntl(got, fcntl.F_GETFD) & fcntl.FD_CLOEXEC
        os.close(sent)
        os.close(got)


def test_try_receive_does_not_wait(ends: tuple[Channel, Channel]) -> None:
    left, right = ends
    assert right.try_receive() is None
    left.send(Ready(3, b""))
    assert right.try_receive() == Ready(3, b"")
    assert right.try_receive() is None


@pytest.mark.parametrize("size", [0, LARGE])
def test_try_send_does_not_wait_and_sends_all_or_nothing(ends: tuple[Channel, Channel], size: int) -> None:
    left, right = ends
    count = 0
    while count < 100_000 and left.try_send(packet(count, size)):
        count += 1
    assert 0 < count < 100_000
    assert number_of(right.try_receive()) == 0
    rest = [number_of(message) for message in everything(right)]
    assert rest == list(range(1, count))
    assert left.try_send(packet(count, size))


def test_what_was_sent_before_the_end_arrives_and_then_there_is_none() -> None:
    left, right = map(Channel, channel_pair())
    left.send(packet(0))
    left.send(packet(1, LARGE))
    left.close()
    assert [number_of(right.receive()), number_of(right.receive())] == [0, 1]
    assert right.receive() is None
    assert right.try_receive() is None
    right.close()


def test_sending_to_nobody_raises() -> None:
    left, right = map(Channel, channel_pair())
    right.close()
    with pytest.raises(ConnectionError):
        left.send(Stop(0))
    with pytest.raises(ConnectionError):
        left.try_send(Stop(0))
    left.close()


def test_the_reset_that_a_death_with_unread_packets_leaves_is_no_message() -> None:
    left, right = map(Channel, channel_pair())
    left.send(Stop(0))
    right.close()
    assert left.try_receive() is None
    left.close()


# --- with a real second process ---------------------------------------------------------------------------------------


def child(body: Callable[[], None]) -> int:
    pid = os.fork()
    if not pid:
        try:
            body()
        finally:
            os._exit(0)
    return pid


@forks
def test_each_packet_is_read_once_by_the_worker_or_taken_back() -> None:
    """The parent takes back from the worker's end while the worker reads from it."""
    count = 3000
    parent_end, worker_end = channel_pair()
    told, tell = os.pipe()
    worker, unread = Channel(worker_end), Channel(worker_end)

    def read() -> None:
        numbers = array.array("q")
        while not isinstance(message := worker.receive(), Stop):
            numbers.append(number_of(message))
        os.write(tell, len(numbers).to_bytes(8, "little"))
        os.close(told)
        with open(tell, "wb") as pipe:
            pipe.write(numbers.tobytes())

    pid = child(read)
    os.close(tell)
    parent, taken, at = Channel(parent_end), [], 0
    while at < count:
        if at < count and parent.try_send(packet(at, LARGE if at % 100 == 0 else at % 300)):
            at += 1
        if at % 7 == 0:
            taken += [number_of(message) for message in everything(unread)]
    taken += [number_of(message) for message in everything(unread)]
    parent.send(Stop(0))
    with open(told, "rb") as pipe:
        read_count = int.from_bytes(pipe.read(8), "little")
        read_there = array.array("q", pipe.read())
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    assert len(read_there) == read_count
    assert sorted([*taken, *read_there]) == list(range(count))
    assert taken == sorted(taken)
    assert list(read_there) == sorted(read_there)
    assert taken, "the parent came too late every time: nothing was tested"
    parent.close()
    worker.close()


@forks
@pytest.mark.parametrize("after", [1, 2, 17, 100])
def test_a_writer_killed_at_any_instant_leaves_whole_packets(after: int) -> None:
    parent_end, worker_end = channel_pair()

    def write_for_ever() -> None:
        channel, number = Channel(worker_end), 0
        while True:
            channel.send(packet(number, LARGE if number % 5 == 0 else 10_000))
            number += 1

    pid = child(write_for_ever)
    worker_end.close()
    parent = Channel(parent_end)
    numbers = [number_of(parent.receive()) for _ in range(after)]
    os.kill(pid, signal.SIGKILL)
    while (message := parent.receive()) is not None:
        numbers.append(number_of(message))
    assert numbers == list(range(len(numbers)))
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == -signal.SIGKILL
    parent.close()


@forks
def test_a_reader_killed_at_any_instant_loses_at_most_what_it_was_reading() -> None:
    """What it had not read can still be taken back."""
    parent_end, worker_end = channel_pair()
    worker, unread, parent = Channel(worker_end), Channel(worker_end), Channel(parent_end)

    def read_for_ever() -> None:
        while (message := worker.receive()) is not None:
            worker.send(message)

    pid = child(read_for_ever)
    for number in range(50):
        parent.send(packet(number, 10))
    echoed = [number_of(parent.receive()) for _ in range(5)]
    os.kill(pid, signal.SIGKILL)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == -signal.SIGKILL
    echoed += [number_of(message) for message in everything(parent)]
    taken = [number_of(message) for message in everything(unread)]
    lost = set(range(50)) - {*echoed, *taken}
    assert len(lost) <= 1
    assert [*echoed, *sorted(lost), *taken] == list(range(50))
    parent.close()
    worker.close()
