"""What `refimpl up` shows of a cluster, also of one that is half dead."""

from __future__ import annotations

import io
import threading
from dataclasses import dataclass, field

import pytest
from prometheus_client import CollectorRegistry

from refimpl import status
from refimpl.admin import AdminServer
from refimpl.failpoints import Failpoints
from refimpl.synthetic import LoadView


@dataclass
class _Role:
    role: str
    name: str
    pid: int = 7
    exit_code: int | None = None


@dataclass
class _Cluster:
    roles: list
    addresses: dict = field(default_factory=dict)


STATES = {
    "master": {
        "counters": {},
        "gauges": {"master_key_count": 12.0, "master_allocated_bytes": 3 << 20},
        "segments": [
            {"name": "store-0", "allocated": 1 << 20, "size": 64 << 20, "status": "OK"}
        ],
    },
    "engine-0": {
        "breaker": "closed",
        "engine": {
            "counters": {
                "requests": {"ok": 3},
                "tokens": {"input": 100, "l1": 20, "l3": 30, "recomputed": 50},
            }
        },
    },
    "store-0": {"ledger": {}},
}


@pytest.fixture
def cluster():
    roles = [
        _Role("master", "master"),
        _Role("store", "store-0"),
        _Role("store", "store-1", exit_code=-9),
        _Role("engine", "engine-0"),
    ]
    doors = {
        name: AdminServer(
            "127.0.0.1:0", name, CollectorRegistry(), Failpoints(), lambda s=state: s
        )
        for name, state in STATES.items()
    }
    for door in doors.values():
        door.start()
    addresses = {name: {"admin": door.address} for name, door in doors.items()}
    addresses["store-1"] = {"admin": "127.0.0.1:9"}
    yield _Cluster(roles, addresses)
    for door in doors.values():
        door.close()


def test_every_role_has_a_row_with_what_matters_of_it(cluster):
    rows = {row.name: row for row in status.rows_of(cluster)}

    assert rows["master"].detail == "12 keys, 3.0 MiB"
    assert rows["store-0"].detail == "1.0 of 64 MiB, OK"
    assert rows["store-1"].health == "killed by signal 9"
    assert rows["store-1"].detail == "not in the pool"
    assert rows["engine-0"].detail == "breaker closed, 3 served, hit rate 50%"


def test_a_role_that_runs_but_does_not_answer_is_silent(cluster):
    cluster.addresses["engine-0"] = {"admin": "127.0.0.1:9"}
    rows = {row.name: row for row in status.rows_of(cluster)}

    assert (rows["engine-0"].health, rows["engine-0"].is_up) == ("silent", False)


def test_one_line_counts_and_names_who_is_not_up(cluster):
    load = LoadView(sent=9, failed=1, shed=0, ttft_p50_s=0.25, hit_rate=0.5)
    line = status.line_of(status.rows_of(cluster), load, 3.0)

    assert "stores 1/2 up" in line
    assert "store-1 killed by signal 9" in line
    assert "9 sent, 1 failed" in line
    assert "0.250 s (modelled)" in line
    assert "\n" not in line


def test_without_a_terminal_it_prints_plain_lines_until_stopped(cluster, capsys):
    stop = threading.Event()
    stop.set()
    status.watch(cluster, None, stop, duration_s=None)

    assert capsys.readouterr().out.count("\n") == 1


def test_the_duration_ends_it(cluster, capsys):
    status.watch(cluster, None, threading.Event(), duration_s=0.01)

    assert "masters 1/1 up" in capsys.readouterr().out


def test_on_a_terminal_it_is_a_table(cluster, monkeypatch):
    class Terminal(io.StringIO):
        def isatty(self):
            return True

    terminal = Terminal()
    monkeypatch.setattr("sys.stdout", terminal)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "120")
    stop = threading.Event()
    stop.set()
    status.watch(cluster, None, stop, duration_s=None)

    assert "store-1" in terminal.getvalue()
    assert "refimpl cluster" in terminal.getvalue()
