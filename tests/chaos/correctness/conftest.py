"""A pool in memory with every fault that a schedule may name: no process, no time."""

from __future__ import annotations

import contextlib
import itertools

import pytest

from chaos.correctness.player import Stage
from chaos.errors import HarnessError, NotHere
from chaos.history.history import History
from chaos.systems.base import ClusterSpec, Limits, Process
from chaos.systems.seen import Found, Seen

ABSENT, EXISTS = -704, -705
LIMITS = Limits(
    deadline_base_s=1.0,
    deadline_per_ki_token_s=0.1,
    deadline_max_s=3.0,
    poll_s=0.02,
    client_ttl_s=1.0,
    ping_interval_s=0.1,
    lease_ttl_s=1.0,
    breaker_window_s=1.0,
    breaker_open_for_s=1.0,
    breaker_probes_to_close=3,
    prefill_tokens_per_s=1.0,
    block_tokens=512,
    page_tokens=64,
)


class FakePool:
    """Cluster, injector and what they share. `lies` are the ways in which it is wrong:
    "zeros" after a restart, "loses" every third write, "resurrects" what was removed.
    """

    def __init__(self, *, lies=(), stores=3):
        self.spec = ClusterSpec(stores=stores, engines=0)
        self.limits = LIMITS
        self.masters = ("master",)
        self.stores = tuple(f"store-{number}" for number in range(stores))
        self.lies = set(lies)
        self.values = {}
        self.removed = {}
        self.zeroed = set()
        self.tokens = {}
        self.down = set()
        self.faults = []
        self.clients = 0
        self.now_s = 0.0
        self._counter = itertools.count(1)
        self._puts = itertools.count(1)

    # Cluster

    hosts = None

    def conservation(self):
        return []

    def kv(self, host=""):
        self.clients += 1
        return FakeProbe(self)

    def process(self, role):
        if role in self.down:
            return None
        return Process(role=role, pid=1, start_ticks=1)

    def start_role(self, role):
        self.down.discard(role)

    # Injector

    def kill(self, role):
        return FakeInjection(self, "kill", role)

    def restart(self, role, *, orderly=False):
        return FakeInjection(self, "restart", role)

    def pause(self, role):
        return FakeInjection(self, "pause", role)

    def partition(self, role, **_):
        raise NotHere(capability="partition", target="fake", reason="no network")

    # inside

    def clock(self):
        self.now_s += 0.01
        return self.now_s

    def wait(self, seconds):
        self.now_s += seconds

    def store_of(self, name):
        return self.stores[sum(name.rpartition("-")[2].encode()) % len(self.stores)]

    def lose(self, role):
        lost = [
            name
            for name in self.values
            if role == "master" or self.store_of(name) == role
        ]
        for name in lost:
            if "zeros" in self.lies:
                self.zeroed.add(name)
            else:
                del self.values[name]

    def put(self, name, value):
        if name in self.values and name not in self.zeroed:
            return EXISTS
        self.zeroed.discard(name)
        if "loses" in self.lies and next(self._puts) % 3 == 0:
            return 0
        self.values[name] = value
        return 0

    def look(self, name):
        if "breaks" in self.lies:
            raise HarnessError("the worker broke")
        if name in self.zeroed:
            return Seen(code=0, found=Found.ZEROS)
        if name in self.values:
            return Seen(code=0, found=Found.WHOLE, variant=self.values[name])
        if "resurrects" in self.lies and name in self.removed:
            return Seen(code=0, found=Found.WHOLE, variant=self.removed[name])
        return Seen(code=ABSENT)


class FakeInjection:
    def __init__(self, pool, kind, role):
        self.pool, self.kind, self.role = pool, kind, role

    def start(self):
        self.pool.faults.append(("begin", self.kind, self.role))
        if self.kind == "kill":
            self.pool.down.add(self.role)
        if self.kind in ("kill", "restart"):
            self.pool.lose(self.role)

    def stop(self):
        self.pool.faults.append(("end", self.kind, self.role))
        self.pool.start_role(self.role)


class FakeProbe:
    def __init__(self, pool):
        self.pool = pool
        self.closed = False

    def write(self, names, *, size_bytes, timeout_s, variant=0):
        return [self.pool.put(name, variant) for name in names]

    def read_paths(self):
        return ["plain", "batched"]

    def read_by(self, path, names, *, size_bytes, timeout_s, among=()):
        return [self.pool.look(name) for name in names]

    def exists(self, names, *, timeout_s):
        return [min(self.pool.look(name).code, 0) for name in names]

    def remove(self, names, *, timeout_s):
        return [self._remove(name) for name in names]

    def _remove(self, name):
        if name not in self.pool.values:
            return ABSENT
        self.pool.removed[name] = self.pool.values.pop(name)
        return 0

    def owners(self, names, *, timeout_s):
        return [
            (self.pool.store_of(name),) if name in self.pool.values else ()
            for name in names
        ]

    def start_write(self, name, *, size_bytes, timeout_s):
        token = len(self.pool.tokens) + 1
        self.pool.tokens[name] = token
        return 0, token

    def end_write(self, name, token, *, timeout_s):
        good = self.pool.tokens.get(name) == token or "stale" in self.pool.lies
        return 0 if good else -601

    def close(self):
        self.closed = True


@pytest.fixture
def make_pool():
    return FakePool


@pytest.fixture
def stage_of(tmp_path):
    """A stage on a pool; its history is read back by `read_history(path)`."""
    with contextlib.ExitStack() as stack:

        def make(pool, **more):
            history = stack.enter_context(
                History(tmp_path / "history.jsonl", clock=pool.clock)
            )
            return Stage(
                cluster=pool,
                inject=pool,
                history=history,
                settled=lambda _: not pool.down,
                clock=pool.clock,
                wait=pool.wait,
                **more,
            )

        yield make
