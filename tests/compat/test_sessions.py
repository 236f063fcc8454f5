"""Sessions at their bounds, over a link of the test's own."""

from __future__ import annotations

import numpy as np
import pytest

from refimpl.compat import read_sessions
from refimpl.compat.config import ReplicateConfig
from refimpl.compat.put_sessions import PutSessions
from refimpl.compat.read_sessions import ReadSessions
from refimpl.core.codes import Code

BAD = Code.INVALID_PARAMS


class Held:
    """A reservation that answers what a test says."""

    def __init__(self, count, link):
        self.codes = np.zeros(count, np.int16)
        self.link = link
        self.revoked = []
        self.completed = []

    def complete(self, rows, *, timeout_s):
        self.completed.append(list(rows))
        return np.full(len(rows), self.link.end, np.int16)

    def revoke(self, rows, *, timeout_s):
        self.revoked.append(list(rows))
        return np.zeros(len(rows), np.int16)


class FakeLink:
    timeout_s = 1.0
    end = 0
    raises = None

    def __init__(self):
        self.held = []
        self.buffers = []
        self.lookups = []

    def reserve(self, names, buffers, config):
        if self.raises:
            raise self.raises
        self.held.append(Held(len(names), self))
        self.buffers.append(buffers)
        return self.held[-1]

    def lookup(self, names):
        self.lookups.append(list(names))

        class Found:
            status = np.zeros(len(names), np.int16)
            lease_until = 100.0

        return Found()


@pytest.fixture
def link():
    return FakeLink()


def start(sessions, names, sizes):
    return sessions.start(names, sizes, ReplicateConfig())


def test_staged_bytes_are_bounded_and_come_back(link):
    sessions = PutSessions(link, staged_bytes_max=100)

    full = Code.NO_AVAILABLE_HANDLE
    assert start(sessions, ["a", "b"], [60, 60]) == [0, full]
    assert sessions.end(["a"]) == [0]
    assert start(sessions, ["b"], [60]) == [0]
    assert sessions.revoke(["b"]) == [0]
    assert start(sessions, ["c"], [100]) == [0]


@pytest.mark.parametrize("size", [0, -1, 1 << 32])
def test_a_size_that_no_object_has_is_refused(link, size):
    assert start(PutSessions(link), ["a"], [size]) == [BAD]
    assert link.held == []


def test_one_name_has_one_session(link):
    sessions = PutSessions(link)

    assert start(sessions, ["a", "a", ""], [1, 1, 1]) == [0, BAD, BAD]


def test_a_start_that_breaks_frees_name_and_bytes(link):
    sessions = PutSessions(link, staged_bytes_max=10)
    link.raises = RuntimeError("on purpose")
    with pytest.raises(RuntimeError):
        start(sessions, ["a"], [10])
    link.raises = None

    assert start(sessions, ["a"], [10]) == [0]


def test_an_end_that_failed_keeps_the_session_but_takes_no_more_bytes(link):
    sessions = PutSessions(link)
    start(sessions, ["a"], [4])
    link.end = Code.TRANSFER_FAIL

    assert sessions.end(["a"]) == [Code.TRANSFER_FAIL]
    assert sessions.write(["a"], [[(0, memoryview(b"x"))]]) == [BAD]
    link.end = 0
    assert sessions.end(["a"]) == [0]
    assert sessions.end(["a"]) == [BAD]


def test_what_started_together_ends_in_one_call(link):
    sessions = PutSessions(link)
    start(sessions, ["a", "b", "c"], [1, 1, 1])

    assert sessions.end(["c", "a"]) == [0, 0]
    assert link.held[0].completed == [[2, 0]]
    sessions.close()
    assert link.held[0].revoked == [[1]]


def test_a_row_with_one_bad_piece_writes_none(link):
    sessions = PutSessions(link)
    start(sessions, ["a"], [4])
    pieces = [[(0, memoryview(b"xy")), (3, memoryview(b"zz"))]]

    assert sessions.write(["a"], pieces) == [BAD]
    assert bytes(link.buffers[0][0]) == bytes(4)


def test_get_sessions_are_bounded(link, monkeypatch):
    monkeypatch.setattr(read_sessions, "_SESSIONS_MAX", 2)
    sessions = ReadSessions(link, clock=lambda: 0.0)

    assert sessions.start(["a", "b", "c"]) == [0, 0, BAD]
    sessions.end(["a", "nothing"])
    assert sessions.start(["c", "b"]) == [0, 0]


def test_a_get_session_past_its_lease_asks_nobody(link):
    now = [0.0]
    sessions = ReadSessions(link, clock=lambda: now[0])
    sessions.start(["a"])
    now[0] = 100.5

    assert sessions.read(["a"], [[(0, memoryview(bytearray(1)))]]) == [
        Code.LEASE_EXPIRED
    ]
    assert sessions.read(["a"], [[(0, memoryview(bytearray(1)))]]) == [BAD]
