"""What no client of Python asks a broker: who is open in a partition, and to end it.

Requests as in Kafka's own definitions: DescribeProducers 0, DescribeTransactions 0 and
WriteTxnMarkers 1, each of its newest header.
"""

from __future__ import annotations

import contextlib
import io
import socket
import struct
from typing import Final, NamedTuple

from support.waiting import ANSWERED

_UNKNOWN_ID: Final = 105


class Open(NamedTuple):
    """A producer whose transaction is open in a partition."""

    producer: int
    epoch: int
    coordinator_epoch: int


class Ended(NamedTuple):
    """A transactional id as its coordinator has it."""

    state: str
    producer: int
    epoch: int


def open_in(address: str, topic: str, partition: int) -> list[Open]:
    """Return whose transactions are open in a partition."""
    asked = b"\x02" + _text(topic) + b"\x02" + struct.pack(">i", partition) + b"\0\0"
    answer = _ask(address, 61, 0, asked)
    answer.read(4)
    assert _number(answer) == 2
    _read_text(answer)
    assert _number(answer) == 2
    _, error = struct.unpack(">ih", answer.read(6))
    assert error == 0, error
    _read_text(answer)
    found = []
    for _ in range(_number(answer) - 1):
        producer, epoch, _, _, coordinator, start = struct.unpack(
            ">qiiqiq", answer.read(36)
        )
        answer.read(1)
        if start >= 0:
            found.append(Open(producer, epoch, coordinator))
    return found


def ended(address: str, transactional_id: str) -> Ended:
    """Return how the coordinator has ended an id's last transaction; "" if expired."""
    answer = _ask(address, 65, 0, b"\x02" + _text(transactional_id) + b"\0")
    answer.read(4)
    assert _number(answer) == 2
    (error,) = struct.unpack(">h", answer.read(2))
    if error == _UNKNOWN_ID:
        return Ended("", -1, -1)
    assert error == 0, error
    _read_text(answer)
    state = _read_text(answer)
    _, _, producer, epoch = struct.unpack(">iqqh", answer.read(22))
    return Ended(state, producer, epoch)


def write_marker(
    address: str, topic: str, partition: int, who: Open, *, commit: bool
) -> None:
    """End a transaction in a partition, as its coordinator would have."""
    marker = struct.pack(">qh?", who.producer, who.epoch, commit)
    topics = b"\x02" + _text(topic) + b"\x02" + struct.pack(">i", partition) + b"\0"
    epoch = struct.pack(">i", max(0, who.coordinator_epoch))
    answer = _ask(address, 27, 1, b"\x02" + marker + topics + epoch + b"\0\0")
    assert _number(answer) == 2
    answer.read(8)
    assert _number(answer) == 2
    _read_text(answer)
    assert _number(answer) == 2
    _, error = struct.unpack(">ih", answer.read(6))
    assert error == 0, error


def _ask(address: str, key: int, version: int, body: bytes) -> io.BytesIO:
    host, _, port = address.rpartition(":")
    header = struct.pack(">hhih", key, version, 1, -1) + b"\0"
    with contextlib.closing(
        socket.create_connection((host, int(port)), ANSWERED)
    ) as connection:
        connection.sendall(struct.pack(">i", len(header + body)) + header + body)
        with connection.makefile("rb") as stream:
            (size,) = struct.unpack(">i", stream.read(4))
            answer = io.BytesIO(stream.read(size))
    answer.read(5)
    return answer


def _text(text: str) -> bytes:
    return bytes([len(text) + 1]) + text.encode()


def _read_text(answer: io.BytesIO) -> str:
    return answer.read(max(0, _number(answer) - 1)).decode()


def _number(answer: io.BytesIO) -> int:
    number = shift = 0
    while True:
        (byte,) = answer.read(1)
        number |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            return number
