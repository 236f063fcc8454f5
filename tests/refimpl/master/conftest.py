"""A real master process, or one in this process, for each test that asks for it."""

from __future__ import annotations

import http.client
import json
import os
import signal
import socket
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path

import grpc
import numpy as np
import pytest

from refimpl.master import MasterSettings
from refimpl.master.heartbeat import MAGIC, REPLY, REQUEST
from refimpl.master.process import Master
from refimpl.proto import pool_pb2, pool_pb2_grpc
from refimpl.role import GRPC_OPTIONS

ROOT = Path(__file__).parents[3]
GIB = 1 << 30


@dataclass
class RunningMaster:
    """A master process, and the three doors to it."""

    process: subprocess.Popen[str] | None
    listen: str
    heartbeat: str
    admin: str
    _channels: list[grpc.Channel] = field(default_factory=list)

    def channel(self) -> grpc.Channel:
        channel = grpc.insecure_channel(self.listen, options=list(GRPC_OPTIONS))
        self._channels.append(channel)
        return channel

    @property
    def stub(self) -> pool_pb2_grpc.MasterStub:
        if not hasattr(self, "_stub"):
            self._stub = pool_pb2_grpc.MasterStub(self.channel())
        return self._stub

    def page(self, path: str, method: str = "GET", body: str | None = None) -> str:
        host, port = self.admin.split(":")
        connection = http.client.HTTPConnection(host, int(port), timeout=5)
        try:
            connection.request(method, path, body)
            answer = connection.getresponse()
            text = answer.read().decode()
        finally:
            connection.close()
        assert answer.status < 300, text
        return text

    def state(self) -> dict:
        return json.loads(self.page("/state"))

    def metric(self, line: str) -> float:
        for row in self.page("/metrics").splitlines():
            if row.rpartition(" ")[0] == line:
                return float(row.rpartition(" ")[2])
        raise AssertionError(f"no metric {line}")

    def failpoint(self, name: str, spec: str) -> None:
        self.page(f"/failpoints/{name}", "PUT", spec)

    def beats(self) -> Beater:
        return Beater(self.heartbeat)

    def mount(
        self, number: int, *, size: int = GIB, host: str = "", client=None
    ) -> int:
        segment = pool_pb2.Segment(
            id=number,
            name=f"store-{number}",
            host_id=host or f"host-{number}",
            size=size,
            rails=[pool_pb2.Rail(name="a", address=f"127.0.0.1:{7000 + number}")],
            numa_node=-1,
        )
        request = pool_pb2.MountRequest(segment=segment, client=client or number)
        return self.stub.MountSegment(request, timeout=5).code

    def put_start(self, keys: bytes, size: int = 4096, **more):
        return self.stub.PutStart(
            pool_pb2.PutStartRequest(
                keys=keys, sizes=column([size] * (len(keys) // 32), "<u4"), **more
            ),
            timeout=5,
        )

    def put(self, keys: bytes, size: int = 4096, **more) -> list[int]:
        started = self.put_start(keys, size, client=1, **more)
        ended = self.stub.PutEnd(
            pool_pb2.PutEndRequest(
                keys=keys,
                token=started.token,
                checksum=column([5] * (len(keys) // 32), "<u8"),
                client=1,
            ),
            timeout=5,
        )
        return codes(ended)

    def lookup(self, keys: bytes, **more) -> pool_pb2.LookupResponse:
        return self.stub.Lookup(pool_pb2.LookupRequest(keys=keys, **more), timeout=5)

    @staticmethod
    def codes(answer) -> list[int]:
        return codes(answer)

    @staticmethod
    def column(values, dtype: str) -> bytes:
        return column(values, dtype)

    def close_channels(self) -> None:
        for channel in self._channels:
            channel.close()

    def stop(self) -> int:
        self.close_channels()
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGCONT)
            self.process.terminate()
        code = self.process.wait(timeout=5)
        self.process.stdout.close()
        self.process.stderr.close()
        return code


class Beater:
    """One heartbeat connection."""

    def __init__(self, address: str) -> None:
        host, port = address.split(":")
        self.sock = socket.create_connection((host, int(port)), timeout=5)
        self.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.sequence = 0

    def send(self, client: int) -> None:
        self.sequence += 1
        self.sock.sendall(REQUEST.pack(MAGIC, client, self.sequence))

    def receive(self) -> tuple[bytes, int, int, int]:
        data = b""
        while len(data) < REPLY.size:
            part = self.sock.recv(REPLY.size - len(data))
            if not part:
                raise ConnectionError("the master closed the heartbeat connection")
            data += part
        return REPLY.unpack(data)

    def beat(self, client: int) -> int:
        """Status of one beat."""
        self.send(client)
        return self.receive()[2]

    def __enter__(self) -> Beater:
        return self

    def __exit__(self, *_: object) -> None:
        self.sock.close()


def column(values, dtype: str) -> bytes:
    return np.asarray(values, dtype).tobytes()


def codes(answer) -> list[int]:
    return np.frombuffer(answer.status, "<i2").tolist()


def command(*flags: str) -> list[str]:
    return [sys.executable, "-m", "refimpl", "master", *flags]


def environment(**extra: str) -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(ROOT), **extra}


def start(*flags: str, **extra: str) -> RunningMaster:
    process = subprocess.Popen(
        command(
            *("--listen", "127.0.0.1:0"),
            *("--heartbeat-listen", "127.0.0.1:0"),
            *("--admin-listen", "127.0.0.1:0"),
            *flags,
        ),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment(**extra),
    )
    line = process.stdout.readline()
    if " ready " not in line:
        raise AssertionError(f"not ready: {line!r} {process.communicate()[1]}")
    addresses = json.loads(line[line.index("{") :])
    return RunningMaster(
        process,
        *(addresses[door] for door in ("listen", "heartbeat", "admin")),
    )


@pytest.fixture
def eventually():
    """Waits until a claim is true."""

    def wait(claim, within_s: float = 3.0) -> None:
        ends = time.monotonic() + within_s
        while not claim():
            assert time.monotonic() < ends, "not within the time"
            time.sleep(0.01)

    return wait


@pytest.fixture
def master():
    """A whole master with four stores, in this process: it starts at once."""
    settings = MasterSettings(
        listen="127.0.0.1:0",
        heartbeat_listen="127.0.0.1:0",
        admin_listen="127.0.0.1:0",
        max_objects=1 << 16,
        seed=7,
    )
    with Master(settings) as parts:
        addresses = parts.addresses
        found = RunningMaster(
            None, *(str(addresses[door]) for door in ("listen", "heartbeat", "admin"))
        )
        for number in range(1, 5):
            assert found.mount(number) == 0
        yield found
        found.close_channels()


@pytest.fixture
def run_master():
    """Runs a master that is expected to end by itself."""

    def run(*flags: str, **extra: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            command(*flags),
            capture_output=True,
            text=True,
            timeout=5,
            env=environment(**extra),
            check=False,
        )

    return run


@pytest.fixture
def start_master():
    """Starts masters and ends them after the test."""
    running: list[RunningMaster] = []

    def begin(*flags: str, **extra: str) -> RunningMaster:
        running.append(start(*flags, **extra))
        return running[-1]

    yield begin
    for master in running:
        master.stop()
