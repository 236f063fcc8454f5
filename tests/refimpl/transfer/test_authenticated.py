"""Reads and writes behind the handshake, over real sockets."""

from __future__ import annotations

import contextlib
import socket
import threading
import time

import numpy as np
import pytest

from refimpl.core.codes import Code
from refimpl.core.segments import SegmentInfo
from refimpl.failpoints import Failpoints
from refimpl.security.secret import Secret
from refimpl.store.listeners import open_listeners
from refimpl.store.server import DataServer
from refimpl.store.settings import RailSpec
from refimpl.transfer.engine import TransferEngine
from refimpl.transfer.operation import Op, TransferSettings

SECRET = Secret(b"the secret of this cluster")
OTHER = Secret(b"the secret of another one")
SIZE = 1 << 20
ROWS = 64


class Vault:
    """A segment that asks for a secret, or none."""

    def __init__(self, secret: Secret | None, segment: int = 7, rails: int = 2) -> None:
        self.bytes = bytearray(np.random.default_rng(1).bytes(SIZE))
        specs = [RailSpec(name=f"r{i}", listen="127.0.0.1:0") for i in range(rails)]
        self.server = DataServer(
            segment, open_listeners(specs), Failpoints(), secret=secret
        )
        self.server.start(memoryview(self.bytes))
        self.info = self.named(segment)

    def named(self, segment: int) -> SegmentInfo:
        return SegmentInfo(
            id=segment,
            name="store",
            host_id="h",
            size=SIZE,
            rails=tuple(self.server.addresses.items()),
        )

    def op(self, info: SegmentInfo | None = None, fill: int = 0) -> Op:
        length = SIZE // ROWS
        return Op(
            segment=info or self.info,
            rows=np.arange(ROWS),
            offsets=np.arange(ROWS, dtype=np.uint64) * length,
            buffers=[memoryview(bytearray([fill]) * length) for _ in range(ROWS)],
        )

    def unproved(self) -> int:
        rails = self.server.snapshot()["rails"].values()
        return sum(rail["not_authenticated"] for rail in rails)

    def errors(self) -> int:
        return sum(rail["errors"] for rail in self.server.snapshot()["rails"].values())


@pytest.fixture
def vault():
    with contextlib.ExitStack() as stack:

        def make(secret: Secret | None, **more) -> Vault:
            made = Vault(secret, **more)
            stack.callback(made.server.close)
            return made

        yield make


@pytest.fixture
def engine():
    with contextlib.ExitStack() as stack:

        def make(secret: Secret | None) -> TransferEngine:
            settings = TransferSettings(rail_stall_s=0.2, frame_bytes=64 << 10)
            made = TransferEngine(settings, secret=secret)
            stack.callback(made.close)
            return made

        yield make


def _soon() -> float:
    return time.monotonic() + 5


def _eventually(condition) -> bool:
    end = time.monotonic() + 5
    while not condition() and time.monotonic() < end:
        threading.Event().wait(0.005)
    return condition()


def test_reads_and_writes_go_through(vault, engine):
    store, client = vault(SECRET), engine(SECRET)
    op = store.op()

    assert client.read([op], _soon()) == [Code.OK] * ROWS
    assert b"".join(op.buffers) == store.bytes
    assert client.write([store.op(fill=9)], _soon()) == [Code.OK] * ROWS
    assert store.bytes == bytes([9]) * SIZE
    assert store.unproved() == client.state()["not_authenticated"] == 0


def test_the_handshake_is_paid_once_a_connection(vault, engine):
    store, client = vault(SECRET, rails=1), engine(SECRET)
    for _ in range(5):
        client.read([store.op()], _soon())
    rail = store.server.snapshot()["rails"]["r0"]

    assert rail["connections"] == 1
    assert rail["requests"] >= 5


@pytest.mark.parametrize("write", [False, True])
@pytest.mark.parametrize(
    ("ours", "theirs"),
    [(OTHER, SECRET), (None, SECRET), (SECRET, None)],
    ids=["wrong", "caller without", "store without"],
)
def test_who_does_not_share_the_secret_gets_its_own_code(
    vault, engine, ours, theirs, write
):
    store, client = vault(theirs), engine(ours)
    before, began = bytes(store.bytes), time.monotonic()
    op = store.op(fill=1)
    move = client.write if write else client.read

    assert move([op], _soon()) == [Code.NOT_AUTHENTICATED] * ROWS
    assert time.monotonic() - began < 2
    assert store.bytes == before
    assert all(bytes(view) == bytes([1]) * len(view) for view in op.buffers)
    if theirs is not None:
        assert _eventually(lambda: store.unproved() > 0)
    assert client.state()["not_authenticated"] > 0


def test_another_segment_at_the_address_is_a_stale_location(vault, engine):
    """A caller with the secret and an old location is no intruder."""
    store, client = vault(SECRET), engine(SECRET)
    codes = client.read([store.op(store.named(8))], _soon())

    assert set(codes) == {Code.SEGMENT_NOT_FOUND}
    assert client.state()["not_authenticated"] == 0
    assert store.unproved() == 0


def test_a_process_that_took_the_address_cannot_answer_as_the_store(engine):
    """It replays what the store once said, and echoes; the caller believes none."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.settimeout(5)

        def impostor() -> None:
            with contextlib.suppress(OSError):
                while True:
                    sock, _ = listener.accept()
                    with sock:
                        sock.sendall(b"MQG1\0\0\0\0" + (7).to_bytes(8, "little"))
                        sock.sendall(bytes(48))
                        sock.recv(4096)

        thread = threading.Thread(target=impostor)
        thread.start()
        address = "{}:{}".format(*listener.getsockname())
        info = SegmentInfo(
            id=7, name="s", host_id="h", size=SIZE, rails=(("r0", address),)
        )
        op = Op(
            segment=info,
            rows=np.arange(1),
            offsets=np.zeros(1, np.uint64),
            buffers=[memoryview(bytearray(b"kept"))],
        )
        codes = engine(SECRET).read([op], _soon())
        listener.shutdown(socket.SHUT_RDWR)
        thread.join()

    assert codes == [Code.NOT_AUTHENTICATED]
    assert bytes(op.buffers[0]) == b"kept"


def test_a_true_rail_carries_what_an_impostor_of_another_did_not(vault, engine):
    store, liar = vault(SECRET, rails=1), vault(OTHER, rails=1)
    rails = (*liar.info.rails, ("true", store.info.rails[0][1]))
    info = SegmentInfo(id=7, name="s", host_id="h", size=SIZE, rails=rails)
    op = store.op(info)
    client = engine(SECRET)

    assert client.read([op], _soon()) == [Code.OK] * ROWS
    assert b"".join(op.buffers) == store.bytes
    assert client.state()["not_authenticated"] > 0


def test_a_silent_peer_is_no_hang(engine, silent):
    info = SegmentInfo(id=7, name="s", host_id="h", size=SIZE, rails=(("r", silent),))
    op = Op(
        segment=info,
        rows=np.arange(1),
        offsets=np.zeros(1, np.uint64),
        buffers=[memoryview(bytearray(4))],
    )
    began = time.monotonic()
    codes = engine(SECRET).read([op], began + 0.3)

    assert codes == [Code.RPC_TIMEOUT]
    assert time.monotonic() - began < 1


def test_a_look_whether_it_listens_is_no_intrusion(vault):
    store = vault(SECRET, rails=1)
    host, _, port = store.server.addresses["r0"].rpartition(":")
    socket.create_connection((host, int(port))).close()

    assert _eventually(lambda: store.server.snapshot()["connections"] == 0)
    assert store.unproved() == 0


@pytest.mark.parametrize("said", [b"MQH1", b"GET / HTTP/1.1\r\n\r\n" * 4, bytes(32)])
def test_half_a_hello_or_another_language_is_counted_and_ended(vault, said):
    store = vault(SECRET, rails=1)
    host, _, port = store.server.addresses["r0"].rpartition(":")
    with socket.create_connection((host, int(port))) as sock:
        sock.sendall(said)
        sock.settimeout(5)
        with contextlib.suppress(OSError):  # it may have hung up already
            sock.shutdown(socket.SHUT_WR)
            while sock.recv(4096):
                pass

    assert _eventually(lambda: store.unproved() == 1)


def test_a_read_that_was_cut_from_behind_a_hello_is_not_served(vault):
    """An intruder cannot skip the proof and send a frame."""
    from refimpl.security.handshake import GREETING, CallerHandshake
    from refimpl.transfer.frames import FrameOp, encode_request

    store = vault(SECRET, rails=1)
    host, _, port = store.server.addresses["r0"].rpartition(":")
    request = encode_request(
        FrameOp.READ, 0, 7, np.zeros(1, np.uint64), np.full(1, 64, np.uint32)
    )
    with socket.create_connection((host, int(port))) as sock:
        sock.settimeout(5)
        sock.sendall(CallerHandshake(OTHER, 7).hello + request)
        said = b""
        with contextlib.suppress(ConnectionResetError):
            while piece := sock.recv(4096):
                said += piece

    assert len(said) == GREETING.size
    assert _eventually(lambda: store.unproved() == 1)
