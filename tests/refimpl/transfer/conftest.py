"""A small segment served by a real data server, and rails that misbehave."""

from __future__ import annotations

import contextlib
import socket
import time
from typing import TYPE_CHECKING

import numpy as np
import pytest

from refimpl.core.segments import SegmentInfo
from refimpl.failpoints import Failpoints
from refimpl.store.listeners import open_listeners
from refimpl.store.server import DataServer
from refimpl.store.settings import RailSpec
from refimpl.transfer.engine import TransferEngine
from refimpl.transfer.operation import Op, TransferSettings

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

SIZE = 1 << 20


class Shop:
    """A segment with known bytes, its server and its failpoints."""

    def __init__(self, segment: int, rails: int) -> None:
        self.failpoints = Failpoints()
        rng = np.random.default_rng(segment)
        self.bytes = bytearray(rng.integers(0, 256, SIZE, np.uint8).tobytes())
        specs = [RailSpec(name=f"r{i}", listen="127.0.0.1:0") for i in range(rails)]
        self.server = DataServer(segment, open_listeners(specs), self.failpoints)
        self.server.start(memoryview(self.bytes))
        self.info = SegmentInfo(
            id=segment,
            name=f"store-{segment}",
            host_id="h",
            size=SIZE,
            rails=tuple(self.server.addresses.items()),
        )

    def op(self, offsets: list[int], length: int, **more: object) -> Op:
        """Rows 0.. with fresh buffers."""
        return Op(
            segment=more.pop("segment", self.info),
            rows=np.arange(len(offsets)),
            offsets=np.array(offsets, np.uint64),
            buffers=[memoryview(bytearray(length)) for _ in offsets],
            **more,
        )

    def good(self, op: Op) -> bool:
        """The buffers hold what the segment does."""
        return all(
            bytes(view) == self.bytes[offset : offset + len(view)]
            for offset, view in zip(op.offsets.tolist(), op.buffers, strict=True)
        )


@pytest.fixture
def shop() -> Iterator[Callable[..., Shop]]:
    with contextlib.ExitStack() as stack:

        def make(segment: int = 7, rails: int = 1) -> Shop:
            made = Shop(segment, rails)
            stack.callback(made.server.close)
            stack.callback(made.failpoints.clear)
            return made

        yield make


@pytest.fixture
def engine() -> Iterator[Callable[..., TransferEngine]]:
    with contextlib.ExitStack() as stack:

        def make(**settings: object) -> TransferEngine:
            found = TransferEngine(
                TransferSettings(**{"rail_stall_s": 0.08, **settings})
            )
            stack.callback(found.close)
            return found

        yield make


@pytest.fixture
def silent() -> Iterator[str]:
    """An address that connects and never says anything."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield "{}:{}".format(*listener.getsockname())


@pytest.fixture
def refused() -> str:
    """An address where nobody listens."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return "{}:{}".format(*listener.getsockname())


@pytest.fixture
def soon() -> Callable[[float], float]:
    return lambda seconds: time.monotonic() + seconds
