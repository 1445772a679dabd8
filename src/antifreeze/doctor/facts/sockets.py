"""Which socket is connected to whom: /proc/net for TCP, the kernel's socket diagnosis for pairs and UNIX sockets."""

from __future__ import annotations

import contextlib
import socket
import struct

from antifreeze.doctor.facts.model import Socket
from antifreeze.doctor.facts.proc import read_text

TCP_STATES = (
    "-",
    "ESTABLISHED",
    "SYN_SENT",
    "SYN_RECV",
    "FIN_WAIT1",
    "FIN_WAIT2",
    "TIME_WAIT",
    "CLOSED",
    "CLOSE_WAIT",
    "LAST_ACK",
    "LISTEN",
    "CLOSING",
)


def read_sockets(pid: int) -> dict[int, Socket]:
    """inode -> socket, for all sockets of the process's network namespace."""
    found: dict[int, Socket] = {}
    for name in ("tcp", "tcp6", "udp", "udp6"):
        found.update(parse_inet(read_text(f"/proc/{pid}/net/{name}", 1 << 25) or "", name.removesuffix("6")))
    for inode, path in parse_unix(read_text(f"/proc/{pid}/net/unix", 1 << 25) or "").items():
        found[inode] = Socket(family="unix", local=path)
    for inode, peer in _unix_peers().items():
        if inode in found:
            found[inode] = Socket(family="unix", local=found[inode].local, remote_inode=peer)
    return found


def parse_inet(text: str, family: str = "tcp") -> dict[int, Socket]:
    """The lines of /proc/net/tcp and udp; a socket that is not connected has nobody at its other end."""
    rows = [line.split() for line in text.splitlines()[1:]]
    rows = [row for row in rows if len(row) > 9]
    by_ends = {(row[1], row[2]): int(row[9]) for row in rows}
    return {
        int(row[9]): Socket(
            family=family,
            state=(TCP_STATES[int(row[3], 16)] if int(row[3], 16) < len(TCP_STATES) else row[3]) if family == "tcp" else "",
            local=address_text(row[1]),
            remote=address_text(row[2]) if int(row[2].replace(":", ""), 16) else "",
            remote_inode=by_ends.get((row[2], row[1]), 0),
        )
        for row in rows
    }


def address_text(text: str) -> str:
    """ "0100007F:1F90" -> "127.0.0.1:8080"; the kernel prints each 32-bit word in the machine's byte order."""
    address, _, port = text.partition(":")
    words = b"".join(struct.pack("=I", int(address[start : start + 8], 16)) for start in range(0, len(address), 8))
    if len(words) == 4:
        return f"{socket.inet_ntop(socket.AF_INET, words)}:{int(port, 16)}"
    return f"[{socket.inet_ntop(socket.AF_INET6, words)}]:{int(port, 16)}"


def parse_unix(text: str) -> dict[int, str]:
    rows = (line.split(None, 7) for line in text.splitlines()[1:])
    return {int(row[6]): row[7].strip() if len(row) > 7 else "" for row in rows if len(row) > 6}


NETLINK_SOCK_DIAG, SOCK_DIAG_BY_FAMILY, DUMP_REQUEST = 4, 20, 0x301
SHOW_PEER, PEER_ATTRIBUTE, DONE = 4, 2, 3


def _unix_peers() -> dict[int, int]:
    """inode -> inode of the other end, asked over netlink as `ss -xp` does; empty where that is not allowed."""
    peers: dict[int, int] = {}
    with contextlib.suppress(OSError), socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, NETLINK_SOCK_DIAG) as netlink:
        netlink.settimeout(1.0)
        body = struct.pack("=BBHIIIII", socket.AF_UNIX, 0, 0, 0xFFFFFFFF, 0, SHOW_PEER, 0xFFFFFFFF, 0xFFFFFFFF)
        netlink.send(struct.pack("=IHHII", 16 + len(body), SOCK_DIAG_BY_FAMILY, DUMP_REQUEST, 1, 0) + body)
        while True:
            found, done = parse_diagnosis(netlink.recv(1 << 18))
            peers.update(found)
            if done:
                return peers
    return peers


def parse_diagnosis(content: bytes) -> tuple[dict[int, int], bool]:
    peers: dict[int, int] = {}
    at = 0
    while at + 16 <= len(content):
        length, kind = struct.unpack_from("=IH", content, at)
        if kind != SOCK_DIAG_BY_FAMILY or length < 32:
            return peers, True
        (inode,) = struct.unpack_from("=I", content, at + 20)
        attribute = at + 32
        while attribute + 4 <= at + length:
            size, name = struct.unpack_from("=HH", content, attribute)
            if name == PEER_ATTRIBUTE and size >= 8:
                (peers[inode],) = struct.unpack_from("=I", content, attribute + 4)
            attribute += max(4, (size + 3) & ~3)
        at += (length + 3) & ~3
    return peers, False
