"""The pool against a naive model: a dict of objects and a dict of segments."""

from __future__ import annotations

import random
from dataclasses import dataclass, field

import numpy as np
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    rule,
)

from refimpl.core.codes import Code
from refimpl.core.pool import Pool, PoolSettings, SegmentInfo

LEASE_S, DISCARD_S, RELEASE_S = 4.0, 2.0, 7.0
TTL_S = 6.0
NUMBERS = range(1, 8)
KEYS = st.lists(st.sampled_from(NUMBERS), min_size=1, max_size=5)
CLIENTS = st.sampled_from([1, 2])
STORES = st.integers(1, 4)


@dataclass
class Model:
    """One object as a reader of the specification would keep it."""

    token: int
    client: int
    size: int
    parts: int
    started: float
    pin: str
    segments: list[int]
    ended: set[int] = field(default_factory=set)
    checksum: int = 0
    lease: float = 0.0

    @property
    def complete(self):
        return len(self.ended) == self.parts


class PoolMachine(RuleBasedStateMachine):
    def __init__(self):
        super().__init__()
        self.now = 100.0
        self.objects = {}
        self.segments = {}
        self.deadlines = {}
        self.stale = {}
        self.latest = {}
        self.ids = 0
        self.orphans = set()
        self.kept = []

    @initialize(strategy=st.sampled_from(["random", "free_ratio_first", "local_first"]))
    def begin(self, strategy):
        self.pool = Pool(
            PoolSettings(
                max_objects=8,
                allocation_strategy=strategy,
                default_kv_lease_ttl_s=LEASE_S,
                put_start_discard_timeout_s=DISCARD_S,
                put_start_release_timeout_s=RELEASE_S,
                client_ttl_s=TTL_S,
                eviction_high_watermark_ratio=0.7,
            ),
            random.Random(3),
        )
        for store in (1, 2):
            self.mount(store)

    # --- rules ------------------------------------------------------------------------

    @rule(store=STORES)
    def mount(self, store):
        self.ids += 1
        info = SegmentInfo(
            id=self.ids,
            name=f"store-{store}",
            host_id=f"host-{store % 3}",
            size=20 * 1024,
            rails=(),
        )
        code = self.pool.mount(info, 100 + store, self.now)
        assert code == Code.OK
        self.segments = {i: s for i, s in self.segments.items() if s != store}
        self.segments[self.ids] = store

    @rule(seconds=st.sampled_from([0.0, 2.5]))
    def a_rolling_restart(self, seconds):
        """Every store comes back empty while the pool holds something."""
        for store in range(1, 5):
            self.mount(store)
            self.time_passes(seconds)
            self.put_start([store], 1, 1024, 1, 1, "", "")

    @rule(store=STORES, grace=st.booleans())
    def unmount(self, store, grace):
        for segment in [i for i, s in self.segments.items() if s == store]:
            grace_s = 2.0 if grace else 0.0
            code = self.pool.unmount(segment, 100 + store, self.now, grace_s)
            assert code == Code.OK
            if grace:
                old = self.deadlines.get(segment, np.inf)
                self.deadlines[segment] = min(old, self.now + 2.0)
            else:
                del self.segments[segment]

    @rule(
        numbers=KEYS,
        client=CLIENTS,
        size=st.sampled_from([64, 1024, 3000]),
        parts=st.sampled_from([1, 1, 2]),
        replicas=st.sampled_from([1, 2]),
        pin=st.sampled_from(["", "", "soft", "hard"]),
        host=st.sampled_from(["", "host-1", "pod"]),
    )
    def put_start(self, numbers, client, size, parts, replicas, pin, host):
        started = self.pool.put_start(
            keys_of(numbers),
            np.full(len(numbers), size, dtype=np.uint32),
            self.now,
            client=client,
            host_id=host,
            replicas=replicas,
            parts=parts,
            pin=pin,
        )
        for row, number in enumerate(numbers):
            self._started(number, started, row, client, size, parts, pin)

    def _started(self, number, started, row, client, size, parts, pin):
        code = Code(int(started.status[row]))
        old = self.readable(number)
        token = int(started.token[row])
        if old is not None and old.complete:
            assert code == Code.OBJECT_ALREADY_EXISTS
        elif old is not None and old.started + DISCARD_S >= self.now:
            joins = parts > 1 and (old.parts, old.size) == (parts, size)
            assert code == (Code.OK if joins else Code.OBJECT_ALREADY_EXISTS)
            assert token == (old.token if joins else 0)
        else:
            assert code in (Code.OK, Code.NO_AVAILABLE_HANDLE)
            if code == Code.NO_AVAILABLE_HANDLE:
                assert not self.could_take(size), "refused although there is room"
            self.objects.pop(number, None)
            if code == Code.OK:
                assert token != self.latest.get(number)
                self.stale[number] = self.latest.get(number, token - 1)
                self.latest[number] = token
                segments = [int(s) for s in started.segment[row] if s]
                assert len(set(segments)) == len(segments) > 0
                self.orphans.discard(number)
                self.objects[number] = Model(
                    token, client, size, parts, self.now, pin, segments
                )

    @rule(numbers=KEYS, client=CLIENTS, part=st.integers(0, 1))
    def put_end(self, numbers, client, part):
        tokens = [self.objects[n].token if n in self.objects else 1 for n in numbers]
        checksums = [n * 16 + part for n in numbers]
        status = self.pool.put_end(
            keys_of(numbers),
            np.array(tokens, dtype=np.uint64),
            np.array(checksums, dtype=np.uint64),
            self.now,
            client=client,
            part=part,
        )
        before = {n: self.objects.get(n) for n in numbers}
        for number, code in zip(numbers, status.tolist(), strict=True):
            if number in self.orphans and before[number] is None:
                assert code < 0
            else:
                assert code == self._ended(number, before[number], client, part)

    def _ended(self, number, entry, client, part):
        if entry is None:
            return Code.OBJECT_NOT_FOUND
        if entry.parts == 1 and entry.client != client:
            return Code.ILLEGAL_CLIENT
        if part >= entry.parts:
            return Code.INVALID_PARAMS
        if number not in self.objects or not self.alive(entry):
            self.objects.pop(number, None)
            return Code.REPLICA_IS_GONE
        if part not in entry.ended:
            entry.ended.add(part)
            entry.checksum ^= number * 16 + part
        return Code.OK

    @rule(
        numbers=KEYS,
        client=CLIENTS,
        parts=st.sampled_from([1, 2]),
        replicas=st.sampled_from([1, 2, 2]),
        pin=st.sampled_from(["", "", "hard"]),
    )
    def put(self, numbers, client, parts, replicas, pin):
        self.put_start(numbers, client, 1024, parts, replicas, pin, "host-1")
        for part in reversed(range(parts)):
            self.put_end(numbers, client, part)

    @rule(numbers=KEYS, client=CLIENTS, revoke=st.booleans())
    def stale_token(self, numbers, client, revoke):
        chosen = [n for n in numbers if n in self.stale and n in self.objects]
        tokens = np.array([self.stale[n] for n in chosen], dtype=np.uint64)
        if revoke:
            status = self.pool.put_revoke(
                keys_of(chosen), tokens, self.now, client=client
            )
        else:
            status = self.pool.put_end(
                keys_of(chosen), tokens, tokens, self.now, client=client
            )
        assert set(status.tolist()) <= {Code.INVALID_WRITE, Code.ILLEGAL_CLIENT}

    @rule(numbers=KEYS, client=CLIENTS)
    def put_revoke(self, numbers, client):
        tokens = [self.objects[n].token if n in self.objects else 1 for n in numbers]
        status = self.pool.put_revoke(
            keys_of(numbers), np.array(tokens, dtype=np.uint64), self.now, client=client
        )
        for number, code in zip(numbers, status.tolist(), strict=True):
            entry = self.objects.get(number)
            if number in self.orphans and entry is None:
                assert code < 0
            elif entry is None:
                assert code == Code.OBJECT_NOT_FOUND
            elif entry.parts == 1 and entry.client != client:
                assert code == Code.ILLEGAL_CLIENT
            elif entry.complete:
                assert code == Code.INVALID_WRITE
            else:
                assert code == Code.OK
                del self.objects[number]

    @rule(numbers=KEYS, lease=st.booleans())
    def lookup(self, numbers, lease):
        located = self.pool.lookup(keys_of(numbers), self.now, grant_lease=lease)
        for row, number in enumerate(numbers):
            self._located(located, row, number)
            entry = self.readable(number)
            if lease and entry is not None and entry.complete:
                entry.lease = max(entry.lease, self.now + LEASE_S)

    def _located(self, located, row, number):
        code = self.expected_code(number)
        assert located.status[row] == code
        if code != Code.OK:
            assert not located.segment[row].any()
            return
        entry = self.objects[number]
        alive = [s for s in entry.segments if s in self.segments]
        width = located.segment.shape[1]
        assert len(alive) <= width
        assert located.segment[row].tolist() == [*alive, 0, 0][:width]
        assert located.size[row] == entry.size
        assert located.checksum[row] == entry.checksum
        assert located.parts[row] == entry.parts

    @rule(numbers=KEYS, force=st.booleans())
    def remove(self, numbers, force):
        status = self.pool.remove(keys_of(numbers), self.now, force)
        for number, code in zip(numbers, status.tolist(), strict=True):
            entry = self.objects.get(number)
            if entry is None:
                assert code == Code.OBJECT_NOT_FOUND
            elif not entry.complete:
                assert code == Code.REPLICA_IS_NOT_READY
            elif entry.lease > self.now and not force:
                assert code == Code.OBJECT_HAS_LEASE
            else:
                assert code == Code.OK
                del self.objects[number]

    @rule(seconds=st.sampled_from([0.0, 0.5, 1.0, 2.5, 5.0]))
    def time_passes(self, seconds):
        self.now += seconds
        for store in set(self.segments.values()):
            self.pool.heartbeat(100 + store, self.now)

    @rule(store=STORES)
    def a_store_falls_silent(self, store):
        """Everybody else beats for a ttl; exactly this one expires."""
        others = {s for s in self.segments.values() if s != store}
        for _ in range(6):
            self.now += 1.0
            for other in others:
                self.pool.heartbeat(100 + other, self.now)
            for client in self.pool.expire(self.now):
                gone = client - 100
                assert gone == store
                self.segments = {i: s for i, s in self.segments.items() if s != gone}

    @rule(released=st.booleans())
    def maintain(self, released):
        done = self.pool.maintain(self.now)
        if released:
            self.pool.release(done.freed)
        else:
            self.kept += done.freed
        for segment, deadline in list(self.deadlines.items()):
            if deadline <= self.now:
                self.segments.pop(segment, None)
                del self.deadlines[segment]
        self._forget_what_went(done)

    def _forget_what_went(self, done):
        """The only freedom of a slice: which idle objects it evicts."""
        numbers = list(self.objects)
        status = self.pool.lookup(keys_of(numbers), self.now, grant_lease=False).status
        gone = [
            n for n, code in zip(numbers, status, strict=True) if code == -704
        ]  # OBJECT_NOT_FOUND
        evicted = 0
        for number in gone:
            entry = self.objects[number]
            if not entry.complete:
                assert entry.started + RELEASE_S <= self.now or not self.alive(entry)
                if entry.started + RELEASE_S <= self.now:
                    del self.objects[number]
                continue
            if self.alive(entry):
                assert entry.lease <= self.now
                assert entry.pin != "hard"
                evicted += 1
                del self.objects[number]
        assert evicted <= done.evicted

    @rule()
    def release_late(self):
        self.pool.release(self.kept)
        self.kept = []

    # --- laws -------------------------------------------------------------------------

    @invariant()
    def every_byte_has_one_owner(self):
        if hasattr(self, "pool"):
            assert self.pool.conservation() == []

    @invariant()
    def every_key_is_as_the_model_says(self):
        if hasattr(self, "pool"):
            numbers = list(NUMBERS)
            located = self.pool.lookup(keys_of(numbers), self.now, grant_lease=False)
            for row, number in enumerate(numbers):
                self._located(located, row, number)
            self._orphan()

    def _orphan(self):
        """Objects with no replica left: unreadable, whether swept already or not."""
        lost = {n for n, e in self.objects.items() if e.complete and not self.alive(e)}
        self.orphans |= lost
        for number in lost:
            del self.objects[number]

    def expected_code(self, number):
        entry = self.objects.get(number)
        if entry is None or (entry.complete and not self.alive(entry)):
            return Code.OBJECT_NOT_FOUND
        return Code.OK if entry.complete else Code.REPLICA_IS_NOT_READY

    def could_take(self, size):
        """Whether one more object of this size has a place, slow start or not."""
        slots = self.pool._objects.count + self.pool._discards.buffers
        if slots >= self.pool.settings.max_objects:
            return False
        holes = [s.allocator.holes()[1] for s in self.pool._segments.open()]
        return any((lengths >= size).any() for lengths in holes)

    def alive(self, entry):
        return any(s in self.segments for s in entry.segments)

    def readable(self, number):
        entry = self.objects.get(number)
        return entry if entry is not None and self.alive(entry) else None


def keys_of(numbers):
    keys = np.zeros((len(numbers), 4), dtype=np.uint64)
    keys[:, 1] = numbers
    return keys


TestPoolAgainstModel = PoolMachine.TestCase
TestPoolAgainstModel.settings = settings(
    max_examples=80,
    stateful_step_count=30,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)
