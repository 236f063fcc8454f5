from __future__ import annotations

import contextlib
import os
import socket
import threading
import time

import numpy as np
import pytest

from refimpl.core.codes import Code
from refimpl.errors import PortTaken
from refimpl.failpoints import Failpoints
from refimpl.store.listeners import open_listeners
from refimpl.store.server import DataServer
from refimpl.store.settings import RailSpec
from refimpl.transfer import frames
from refimpl.transfer.frames import FrameOp

SEGMENT = 7


class Peer:
    """A client that says exactly what it is told."""

    def __init__(self, address):
        host, port = address.split(":")
        self.sock = socket.create_connection((host, int(port)), timeout=3)

    def ask(self, op, extents, *, segment=SEGMENT, payload=b"", sequence=0):
        offsets = np.array([o for o, _n in extents], np.uint64)
        lengths = np.array([n for _o, n in extents], np.uint32)
        head = frames.encode_request(op, sequence, segment, offsets, lengths)
        self.sock.sendall(head + payload)
        return self.answer(len(extents))

    def answer(self, count):
        reply = frames.decode_reply(self.exactly(32))
        codes = None
        if reply.has_statuses:
            codes = np.frombuffer(self.exactly(2 * count), "<i2").tolist()
        return reply, codes, self.exactly(reply.payload_bytes)

    def exactly(self, count):
        data = b""
        while len(data) < count:
            some = self.sock.recv(count - len(data))
            if not some:
                raise EOFError
            data += some
        return data

    @property
    def is_closed(self):
        try:
            return self.sock.recv(1) == b""
        except ConnectionResetError:
            return True


@pytest.fixture
def memory():
    return bytearray(os.urandom(100_000))


@pytest.fixture
def failpoints():
    found = Failpoints()
    yield found
    found.clear()


@pytest.fixture
def serve(memory, failpoints):
    made = []

    def make(**settings):
        rails = [RailSpec(name="a", listen="127.0.0.1:0")]
        server = DataServer(SEGMENT, open_listeners(rails), failpoints, **settings)
        server.start(memoryview(memory))
        made.append(server)
        return server

    yield make
    for server in made:
        server.close()


@pytest.fixture
def dial():
    made = []

    def make(server):
        peer = Peer(server.addresses["a"])
        made.append(peer)
        return peer

    yield make
    for peer in made:
        peer.sock.close()


def test_neighbours_and_strangers_are_read_in_request_order(serve, dial, memory):
    peer = dial(serve())

    reply, codes, data = peer.ask(FrameOp.READ, [(10, 5), (15, 5), (0, 3), (90_000, 9)])

    assert (reply.code, codes) == (0, None)
    assert data == memory[10:20] + memory[0:3] + memory[90_000:90_009]


def test_a_write_is_acknowledged_when_it_is_in_the_segment(serve, dial, memory):
    peer = dial(serve())

    reply, _codes, _data = peer.ask(FrameOp.WRITE, [(5, 3), (100, 2)], payload=b"abcde")

    assert reply.code == 0
    assert memory[5:8] == b"abc"
    assert memory[100:102] == b"de"


def test_a_connection_serves_many_requests_in_a_row(serve, dial):
    server = serve()
    peer = dial(server)

    for turn in range(50):
        reply, _, _ = peer.ask(FrameOp.READ, [(turn, 1)], sequence=turn)
        assert reply.sequence == turn

    assert server.wait_idle(1)
    assert server.snapshot()["rails"]["a"]["requests"] == 50


@pytest.mark.parametrize(
    "noise",
    [
        b"GET / HTTP/1.1\r\nHost: pool\r\n\r\n" + bytes(32),
        bytes(32),
        frames.REQUEST_HEAD.pack(b"MQD1", 1, 0, 5000, 0, SEGMENT, 0),
        frames.REQUEST_HEAD.pack(b"MQD1", 2, 0, 1, 0, SEGMENT, 1 << 40),
        # A write whose payload is not what its extents say.
        frames.REQUEST_HEAD.pack(b"MQD1", 2, 0, 1, 0, SEGMENT, 9)
        + np.array([(0, 5)], frames.EXTENT).tobytes(),
    ],
)
def test_malformed_bytes_end_the_connection_and_nothing_else(serve, dial, noise):
    server = serve()
    peer = dial(server)

    peer.sock.sendall(noise)

    assert peer.is_closed
    reply, _, _ = dial(server).ask(FrameOp.READ, [(0, 1)])
    assert reply.code == 0
    assert server.wait_idle(1)
    _until(lambda: server.snapshot()["rails"]["a"]["errors"] == 1)


def test_random_noise_never_hurts_the_server(serve, dial):
    server = serve()
    rng = np.random.default_rng(3)
    for _ in range(30):
        peer = dial(server)
        with contextlib.suppress(OSError):  # it may have hung up by now
            peer.sock.sendall(b"MQD1" + rng.bytes(int(rng.integers(28, 200))))
            peer.sock.shutdown(socket.SHUT_WR)

    assert dial(server).ask(FrameOp.READ, [(0, 1)])[0].code == 0


def test_half_a_request_leaves_no_thread_behind(serve, dial):
    server = serve()
    before = threading.active_count()
    peer = dial(server)
    peer.sock.sendall(b"MQD1")
    peer.sock.close()

    assert server.wait_idle(2)
    _until(lambda: threading.active_count() == before)


def test_a_read_beyond_the_frame_limit_is_refused_and_harmless(serve, dial):
    peer = dial(serve())

    reply, _, data = peer.ask(FrameOp.READ, [(0, 2**31), (0, 2**31)])

    assert reply.code == Code.INVALID_PARAMS
    assert data == b""
    assert peer.ask(FrameOp.READ, [(0, 1)])[0].code == 0


def test_more_connections_than_allowed_are_refused_at_the_door(serve, dial):
    server = serve(max_connections=2)
    peers = [dial(server) for _ in range(2)]
    for peer in peers:
        peer.ask(FrameOp.READ, [(0, 1)])
    third = dial(server)

    assert third.is_closed
    assert server.snapshot()["rails"]["a"]["refused"] == 1
    peers[0].sock.close()
    _until(lambda: server.snapshot()["connections"] == 1)
    assert dial(server).ask(FrameOp.READ, [(0, 1)])[0].code == 0


def test_a_host_without_threads_refuses_a_caller_and_the_rail_lives_on(
    serve, dial, monkeypatch
):
    server = serve()
    start = threading.Thread.start

    def short(thread):
        if thread.name == "a":
            raise RuntimeError("can't start new thread")
        start(thread)

    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", short)
        refused = dial(server).is_closed

    assert refused
    assert server.snapshot()["connections"] == 0
    assert dial(server).ask(FrameOp.READ, [(0, 1)])[0].code == 0


def test_240_clients_that_come_at_once_are_all_served(serve, dial):
    server = serve()
    peers = [dial(server) for _ in range(240)]

    codes = [peer.ask(FrameOp.READ, [(n, 1)])[0].code for n, peer in enumerate(peers)]

    assert codes == [0] * 240


def test_an_idle_connection_is_closed(serve, dial):
    peer = dial(serve(idle_s=0.05))

    assert peer.is_closed


def test_a_failpoint_code_is_answered_and_nothing_is_written(
    serve, dial, memory, failpoints
):
    peer = dial(serve())
    before = bytes(memory)
    failpoints.set("store.write", "1*return(-500)")
    failpoints.set("store.read", "1*on")

    written, _, _ = peer.ask(FrameOp.WRITE, [(0, 4)], payload=b"xxxx")
    read, _, _ = peer.ask(FrameOp.READ, [(0, 4)])

    assert written.code == Code.WRITE_FAIL
    assert read.code == Code.TRANSFER_FAIL
    assert memory == before
    assert peer.ask(FrameOp.READ, [(0, 4)])[2] == before[:4]


def test_corruption_flips_one_bit_of_what_is_sent_and_none_of_the_segment(
    serve, dial, memory, failpoints
):
    before = bytes(memory)
    failpoints.set("store.corrupt", "1*on")
    peer = dial(serve())

    _, _, data = peer.ask(FrameOp.READ, [(0, 100)])

    wrong = np.frombuffer(data, np.uint8) ^ np.frombuffer(before[:100], np.uint8)
    assert np.unpackbits(wrong).sum() == 1
    assert memory == before
    assert peer.ask(FrameOp.READ, [(0, 100)])[2] == before[:100]


def test_a_renewed_segment_refuses_the_old_id_and_drops_its_connections(serve, dial):
    server = serve()
    old = dial(server)
    old.ask(FrameOp.READ, [(0, 1)])

    assert server.renew(8, 1.0)

    assert old.is_closed
    fresh = dial(server)
    assert fresh.ask(FrameOp.READ, [(0, 1)])[0].code == Code.SEGMENT_NOT_FOUND
    assert fresh.ask(FrameOp.READ, [(0, 1)], segment=8)[0].code == 0


def test_a_request_that_waited_over_a_renewal_is_refused(serve, dial, failpoints):
    server = serve()
    failpoints.set("store.read", "pause")
    peer = dial(server)
    answers = []
    thread = threading.Thread(
        target=lambda: answers.append(_ask_or_end(peer, FrameOp.READ, [(0, 1)]))
    )
    thread.start()
    _until(lambda: server.in_flight == 1)

    assert not server.renew(8, 0.05)
    failpoints.clear()
    thread.join()

    assert answers == ["ended"]
    assert server.wait_idle(1)


def test_waiting_for_idle_ends_with_the_last_request(serve, dial, failpoints):
    server = serve()
    failpoints.set("store.read", "sleep(200)")
    peer = dial(server)
    thread = threading.Thread(target=lambda: peer.ask(FrameOp.READ, [(0, 1)]))
    thread.start()
    _until(lambda: server.in_flight == 1)

    assert not server.wait_idle(0.01)
    assert server.wait_idle(2)
    thread.join()


def test_a_taken_port_is_named_and_the_others_are_given_back(serve):
    server = serve()
    rail = RailSpec(name="b", listen=server.addresses["a"])

    with pytest.raises(PortTaken, match=server.addresses["a"]):
        open_listeners([RailSpec(name="a", listen="127.0.0.1:0"), rail])


def test_closing_ends_every_thread(serve, dial):
    before = threading.active_count()
    server = serve()
    peers = [dial(server) for _ in range(5)]
    for peer in peers:
        peer.ask(FrameOp.READ, [(0, 1)])

    server.close()

    assert threading.active_count() == before
    assert all(peer.is_closed for peer in peers)


def _ask_or_end(peer, op, extents):
    try:
        return peer.ask(op, extents)[0].code
    except (EOFError, OSError):
        return "ended"


def _until(condition, seconds=2.0):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.005)
