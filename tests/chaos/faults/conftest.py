"""A cluster of sleeping processes and a proxy that only remembers, for faults."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import dataclass, field
from typing import Any

import pytest

from chaos.errors import FaultNotInjected
from chaos.safety.identity import start_ticks_of
from chaos.safety.ledger import Ledger
from chaos.systems.base import Link, Process

_ROLE = "import signal, time\nprint('up', flush=True)\ntime.sleep(60)\n"


def link_of(name: str, owner: str, user: str = "", plane: str = "data") -> Link:
    return Link(
        name=name,
        owner=owner,
        user=user,
        plane=plane,
        rail=name.rpartition(".")[2] if plane == "data" else "",
        proxy=f"proxy-{name}",
        listen="127.0.0.1:9",
        upstream="127.0.0.1:8",
    )


@dataclass
class FakeCluster:
    """Two stores of two rails and a master; roles are processes that sleep."""

    running: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)
    failpoints: dict[tuple[str, str], str] = field(default_factory=dict)
    hits: dict[tuple[str, str], int] = field(default_factory=dict)
    refuse_start: bool = False

    hosts = None
    stores = ("store-0", "store-1")
    masters = ("master",)
    engines = ("engine-0",)
    links = (
        *(
            link_of(f"store-{store}.rail{rail}", f"store-{store}")
            for store in range(2)
            for rail in range(2)
        ),
        link_of("master.rpc@store-0", "master", "store-0", "rpc"),
        link_of("master.rpc@engine-0", "master", "engine-0", "rpc"),
        link_of("master.heartbeat@store-0", "master", "store-0", "heartbeat"),
    )

    def process(self, role: str) -> Process | None:
        popen = self.running.get(role)
        if popen is None or popen.poll() is not None:
            return None
        ticks = start_ticks_of(popen.pid)
        assert ticks is not None
        return Process(role=role, pid=popen.pid, start_ticks=ticks)

    def start_role(self, role: str) -> Process:
        if self.refuse_start:
            message = f"{role} does not start"
            raise RuntimeError(message)
        if role in self.running:
            self.running[role].wait(5)
        popen = subprocess.Popen(
            [sys.executable, "-S", "-c", _ROLE], stdout=subprocess.PIPE
        )
        assert popen.stdout is not None
        popen.stdout.readline()
        popen.stdout.close()
        self.running[role] = popen
        process = self.process(role)
        assert process is not None
        return process

    def stop_role(self, role: str, *, timeout_s: float = 10.0) -> int:
        self.running[role].terminate()
        return self.running[role].wait(timeout_s)

    def set_failpoint(self, role: str, name: str, spec: str) -> None:
        self.failpoints[role, name] = spec

    def failpoint_hits(self, role: str, name: str) -> int:
        return self.hits.get((role, name), 0)

    def role_state(self, role: str) -> dict[str, Any]:
        specs = {n: {"spec": s} for (r, n), s in self.failpoints.items() if r == role}
        return {"failpoints": specs}

    def close(self) -> None:
        for popen in self.running.values():
            popen.kill()
            popen.wait()


@dataclass
class FakeControl:
    """The proxy client's part that faults use; `counted` is what the server counted."""

    placed: dict[str, dict[str, dict[str, Any]]] = field(default_factory=dict)
    counted: dict[str, dict[str, dict[str, int]]] | None = field(default_factory=dict)
    log: list[str] = field(default_factory=list)
    refuse_after: int | None = None
    sticky: bool = False
    how: str = "removed"

    def add_toxic(self, proxy: str, type: str, *, name: str, **given: Any) -> None:  # noqa: A002
        if self.refuse_after is not None and len(self.log) >= self.refuse_after:
            raise FaultNotInjected(fault=type, target=proxy, reason="read back nothing")
        self.log.append(f"+{name}")
        self.placed.setdefault(proxy, {})[name] = {"type": type, **given}

    def remove_toxics(self, placed) -> str:
        found = [(proxy, name) for proxy, name in placed if name in self.toxics(proxy)]
        for proxy, name in found:
            self.log.append(f"-{name}")
            if not self.sticky:
                del self.placed[proxy][name]
        return self.how if found else "nothing was left to remove"

    def toxics(self, proxy: str) -> dict[str, Any]:
        return self.placed.get(proxy, {})

    def counters(self, proxy: str) -> dict[str, dict[str, int]] | None:
        return None if self.counted is None else self.counted.get(proxy, {})

    def count_everything(self, **units: int) -> None:
        """Pretends that traffic went through every toxic that is placed."""
        self.counted = {
            proxy: {name: dict(units) for name in toxics}
            for proxy, toxics in self.placed.items()
        }

    def kinds(self) -> set[tuple[str, str, str]]:
        """(proxy, type, stream) of everything that is placed."""
        return {
            (proxy, toxic["type"], toxic["stream"])
            for proxy, toxics in self.placed.items()
            for toxic in toxics.values()
        }


@pytest.fixture
def cluster():
    cluster = FakeCluster()
    yield cluster
    cluster.close()


@pytest.fixture
def control():
    return FakeControl()


@pytest.fixture
def ledger(tmp_path):
    ledger = Ledger.create(tmp_path)
    yield ledger
    ledger.close()
