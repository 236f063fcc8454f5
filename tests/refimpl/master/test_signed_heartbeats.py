"""Signed beats: genuine ones count, forged and recorded ones do not."""

from __future__ import annotations

import socket
import time

import pytest

from refimpl.master import heartbeat as door
from refimpl.master.heartbeat import (
    GREETING,
    SIGNED_MAGIC,
    SIGNED_REPLY,
    SIGNED_REQUEST,
    Beats,
    HeartbeatServer,
    request_text,
)
from refimpl.store import heartbeat as child
from refimpl.store.heartbeat import Heart

CLIENT, VIEW = 4711, 9
KEY, OTHER = b"k" * 32, b"o" * 32


class Door:
    def __init__(self) -> None:
        self.beats = Beats()
        listener = socket.create_server(("127.0.0.1", 0))
        self.address = listener.getsockname()
        self.server = HeartbeatServer(
            listener, self.beats, view=VIEW, clock=time.monotonic, signed=True
        )
        self.server.start()

    def know(self, client: int = CLIENT, key: bytes = KEY) -> None:
        self.beats.admit(client, key)
        self.beats.publish(frozenset({client}))


@pytest.fixture
def at():
    made = Door()
    yield made
    made.server.stop()


class Raw:
    """A connection to the door, greeted."""

    def __init__(self, address) -> None:
        self.sock = socket.create_connection(address, 5)
        _, self.nonce = GREETING.unpack(self.receive(GREETING.size))

    def receive(self, size: int) -> bytes:
        data = b""
        while len(data) < size and (piece := self.sock.recv(size - len(data))):
            data += piece
        return data

    def beat(self, sequence: int, key: bytes = KEY, nonce: bytes = b"") -> bytes:
        import hmac

        text = request_text(nonce or self.nonce, CLIENT, sequence)
        mac = hmac.digest(key, text, "sha256")
        return SIGNED_REQUEST.pack(SIGNED_MAGIC, CLIENT, sequence, mac)

    def ask(self, beat: bytes) -> int | None:
        """The status, None when the door ended the connection."""
        try:
            self.sock.sendall(beat)
            answer = self.receive(SIGNED_REPLY.size)
        except ConnectionError:
            return None
        return SIGNED_REPLY.unpack(answer)[2] if answer else None


@pytest.fixture
def raw(at):
    made = []

    def connect() -> Raw:
        made.append(Raw(at.address))
        return made[-1]

    yield connect
    for one in made:
        one.sock.close()


@pytest.fixture
def heart(at):
    made = []

    def make(key: bytes = KEY, address=None) -> Heart:
        made.append(Heart(address or at.address, CLIENT, 1.0, key))
        return made[-1]

    yield make
    for one in made:
        one.close()


def test_both_sides_speak_the_same_wire():
    names = ("SIGNED_MAGIC", "GREETING", "SIGNED_REQUEST", "SIGNED_REPLY")
    values = [
        [getattr(getattr(m, n), "format", getattr(m, n)) for n in names]
        for m in (door, child)
    ]

    assert values[0] == values[1]


def test_a_genuine_heart_is_known(at, heart):
    at.know()
    beating = heart()

    assert [beating.beat() for _ in range(3)] == ["known"] * 3
    assert at.beats.answered == 3
    assert CLIENT in at.beats.drain()


def test_a_client_that_is_not_known_is_told_to_mount(at, heart):
    assert heart().beat() == "remount"
    assert at.beats.refused == 1


def test_a_heart_with_another_key_does_not_count(at, heart):
    at.know()

    assert heart(OTHER).beat() == "lost"
    assert at.beats.drain() == {}
    assert at.beats.forged == 1


def test_an_unsigned_heart_does_not_count(at, heart):
    at.know()

    assert heart(b"").beat() == "lost"
    assert at.beats.drain() == {}


def test_a_key_is_forgotten_with_its_client(at, heart):
    at.know()
    at.beats.publish(frozenset())

    assert at.beats.key_of(CLIENT) is None
    assert heart().beat() == "remount"


def test_a_beat_sent_twice_counts_once(at, raw):
    at.know()
    line = raw()
    beat = line.beat(5)

    assert line.ask(beat) == 0
    assert line.ask(beat) is None
    assert (at.beats.answered, at.beats.forged) == (1, 1)


def test_sequences_rise(at, raw):
    at.know()
    line = raw()

    assert [line.ask(line.beat(n)) for n in (3, 4, 9)] == [0, 0, 0]
    assert line.ask(line.beat(8)) is None


def test_a_recorded_beat_is_no_good_on_another_connection(at, raw):
    at.know()
    first, second = raw(), raw()
    recorded = first.beat(1)

    assert first.nonce != second.nonce
    assert second.ask(recorded) is None
    assert at.beats.answered == 0


def test_an_answer_that_nobody_signed_is_no_answer(heart):
    """Somebody who took the master's address keeps no store from noticing."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        beating = heart(address=listener.getsockname())
        beating._sock = socket.create_connection(listener.getsockname(), 1)
        beating._nonce = bytes(16)
        peer, _ = listener.accept()
        with peer:
            peer.sendall(SIGNED_REPLY.pack(SIGNED_MAGIC, CLIENT, 0, VIEW, bytes(32)))

            assert beating.beat() == "lost"


def test_a_signed_heart_does_not_beat_at_an_unsigned_door(heart):
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.settimeout(0.0)
        beating = Heart(listener.getsockname(), CLIENT, 0.05, KEY)

        assert beating.beat() == "lost"
