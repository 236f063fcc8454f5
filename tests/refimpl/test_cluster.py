"""`refimpl up`: flags that the roles understand, and a whole cluster that leaves
nothing behind."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from refimpl import cluster as cluster_module
from refimpl.cli import COMMANDS, _parser, _resolve
from refimpl.cluster import LocalCluster, UpSettings
from refimpl.processes import RoleFailed
from refimpl.settings import load, options_of

MASTER = {"listen": "127.0.0.1:5", "heartbeat": "127.0.0.1:6", "admin": "127.0.0.1:7"}


def _settings_of(role, flags):
    cls = _resolve(COMMANDS[role].settings)
    given = vars(_parser(role, COMMANDS[role], options_of(cls)).parse_args(flags))
    return load(cls, role, flags=given, environ={})


def test_every_role_understands_the_flags_that_it_gets():
    up = UpSettings(rails=3, time_scale=0.5, page_tokens=32, seed=9, stores=2)
    master = _settings_of("master", cluster_module._master_flags(up))
    store = _settings_of("store", cluster_module._store_flags(up, 1, MASTER))
    engine = _settings_of("engine", cluster_module._engine_flags(up, 3, MASTER))

    assert (master.allocation_strategy, master.time_scale) == ("local_first", 0.5)
    assert (len(store.rail), store.host_id, store.master) == (
        3,
        "host-1",
        "127.0.0.1:5",
    )
    assert store.grace_s * store.time_scale == pytest.approx(1.0)
    assert (engine.page_tokens, engine.seed, engine.host_id) == (32, 9, "host-1")


def test_a_role_that_fails_takes_the_started_ones_with_it(monkeypatch):
    monkeypatch.setattr(cluster_module, "_store_flags", lambda *_: ["--size", "none"])
    cluster = LocalCluster(UpSettings(stores=1, engines=0))
    try:
        with pytest.raises(RoleFailed, match=r"store-0: exit 2: .*--size"):
            cluster.start()
    finally:
        codes = cluster.stop()

    assert codes == {"store-0": 2, "master": 0}


def _children(pid: int) -> set[int]:
    """Of all its threads; any of them, and it, may end as we look."""
    found: set[int] = set()
    with contextlib.suppress(FileNotFoundError, ProcessLookupError):
        for task in list(Path(f"/proc/{pid}/task").iterdir()):
            with contextlib.suppress(FileNotFoundError, ProcessLookupError):
                found.update(map(int, (task / "children").read_text().split()))
    return found


def _up(*flags):
    return subprocess.Popen(
        [sys.executable, "-m", "refimpl", "up", "--status-s", "0.5", *flags],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def _all_gone(pids, timeout_s=5.0):
    ends = time.monotonic() + timeout_s
    while time.monotonic() < ends:
        if not any(Path(f"/proc/{pid}").exists() for pid in pids):
            return True
        time.sleep(0.02)
    return False


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_a_cluster_comes_up_serves_and_leaves_nothing(number):
    flags = ("--stores", "2", "--engines", "1", "--load", "20", "--time-scale", "0.2")
    with _up(*flags) as up:
        lines, served = [], 0
        for line in up.stdout:
            lines.append(line)
            found = re.search(r"load: (\d+) sent, (\d+) failed", line)
            if found and int(found[1]) > 20:
                served = int(found[1])
                assert found[2] == "0"
                break
        roles = _children(up.pid)
        roles |= {child for role in roles for child in _children(role)}
        os.kill(up.pid, number)
        rest = up.stdout.read()
        code = up.wait(15)

    assert served, "".join(lines)
    assert "stores 2/2 up" in "".join(lines)
    assert len(roles) >= 4
    assert _all_gone(roles)
    if number != signal.SIGKILL:
        assert code == 0
        assert "nothing is left running" in rest


@pytest.mark.slow
def test_a_killed_store_is_named_and_the_load_goes_on():
    with _up("--stores", "2", "--engines", "1", "--load", "10") as up:
        killed = after = False
        for line in up.stdout:
            if "stores 2/2 up" in line and not killed:
                pids = [p for p in _children(up.pid) if _is_role(p, "store-1")]
                os.kill(pids[0], signal.SIGKILL)
                killed = True
            if "store-1 killed by signal 9" in line:
                after = "0 failed" in line
                break
        os.kill(up.pid, signal.SIGTERM)
        up.stdout.read()

        assert up.wait(15) == 0
    assert after


def _is_role(pid: int, name: str) -> bool:
    return name.encode() in Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
