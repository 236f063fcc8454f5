"""Joining and leaving: what `setup` and `close` do to the pool and to the machine."""

from __future__ import annotations

import gc
import os
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from refimpl.compat.mooncake import MooncakeDistributedStore
from refimpl.core.codes import Code
from refimpl.master import MasterSettings
from refimpl.master.process import Master

ROOT = Path(__file__).parents[2]
BAD = Code.INVALID_PARAMS


def is_alive(pid):
    return Path(f"/proc/{pid}").exists()


def test_closing_takes_the_objects_and_the_process_and_setup_brings_neither_back(
    pool,
):
    store, key = MooncakeDistributedStore(), pool.key()
    options = pool.options(global_segment_size=16 << 20)
    assert store.setup(**options) == 0
    name, pid = store.get_hostname(), store._now.segment.pid
    assert store.put(key, b"mine") == 0
    assert store.health_check() == 0

    assert store.close() == 0
    assert store.health_check() == 1
    assert store.get(key) == b""
    assert not is_alive(pid)
    assert name not in pool.page("/get_all_segments").splitlines()

    assert store.setup(**options) == 0
    assert store.get(key) == b""
    assert store.put(key, b"again") == 0
    assert store.get(key) == b"again"
    assert store.close() == 0
    assert store.close() == 0


def test_a_client_without_a_segment_has_a_name_of_upstreams_form(pool):
    with pool.client() as store:
        host, port = store.get_hostname().split(":")

        assert host == "localhost"
        assert 12300 <= int(port) <= 14300
        assert store.get_hostname() not in pool.page("/get_all_segments")


def test_a_port_that_was_given_is_kept(pool):
    with socket.create_server(("127.0.0.1", 0)) as found:
        port = found.getsockname()[1]
    name = f"127.0.0.1:{port}"
    with pool.client(local_hostname=name, global_segment_size=1 << 20) as store:
        assert store.get_hostname() == name
        assert name in pool.page("/get_all_segments").splitlines()


def test_a_taken_port_refuses_the_setup_and_leaves_nothing(pool, caplog):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        name = f"127.0.0.1:{taken.getsockname()[1]}"
        store = MooncakeDistributedStore()
        options = pool.options(local_hostname=name, global_segment_size=1 << 20)

        assert store.setup(**options) == Code.INTERNAL_ERROR
    assert name in caplog.text
    assert store.health_check() == 1


def test_setting_up_twice_is_refused(pool, caplog):
    with pool.client() as store:
        assert store.setup(**pool.options()) == BAD
        assert store.health_check() == 0


def test_a_master_that_is_not_there_is_a_code_of_the_setup(pool, monkeypatch, caplog):
    monkeypatch.setenv("REFIMPL_COMPAT_TIMEOUT_S", "0.3")
    with socket.create_server(("127.0.0.1", 0)) as found:
        port = found.getsockname()[1]
    store = MooncakeDistributedStore()
    code = store.setup(**pool.options(master_server_addr=f"127.0.0.1:{port}"))

    assert code in (Code.RPC_FAIL, Code.RPC_TIMEOUT)


def test_a_dictionary_may_have_sizes_in_words(pool):
    store = MooncakeDistributedStore()
    config = pool.options(global_segment_size="1MB", local_buffer_size="16 MB")

    assert store.setup(config) == 0
    assert store.put(pool.key(), b"v") == 0
    assert store.close() == 0


@pytest.mark.parametrize(
    "changes",
    [
        {"global_segment_size": "50%"},
        {"local_buffer_size": "many"},
        {"local_hostname": ""},
        {"metadata_server": ""},
        {"protocol": "pigeon"},
        {"global_segment_size": 3},
        {"master_server_addr": "etcd://127.0.0.1:2379"},
    ],
)
def test_a_dictionary_that_makes_no_sense_is_refused(pool, changes, caplog):
    store = MooncakeDistributedStore()

    assert store.setup({**pool.options(), **changes}) == BAD


def test_arguments_of_another_shape_are_a_type_error(pool):
    store = MooncakeDistributedStore()
    with pytest.raises(TypeError):
        store.setup("localhost")
    with pytest.raises(TypeError):
        store.setup(**pool.options(), colour="red")
    with pytest.raises(TypeError):
        store.setup(**pool.options(global_segment_size="16MB"))


def test_a_forgotten_client_is_closed_by_the_collector(pool):
    store = MooncakeDistributedStore()
    assert store.setup(**pool.options(global_segment_size=1 << 20)) == 0
    pid = store._now.segment.pid
    del store
    gc.collect()

    assert not is_alive(pid)


CHILD = """
import sys
from mooncake.store import MooncakeDistributedStore
store = MooncakeDistributedStore()
size = 1 << 20
assert store.setup("localhost", "-", size, size, "tcp", "", {master!r}) == 0
print(store._now.segment.pid, store.get_hostname(), flush=True)
sys.stdin.read()
"""


@pytest.fixture
def child(pool):
    """A program that knows only `mooncake.store`, with the shim on its path."""
    shim = ROOT / "refimpl" / "compat" / "shim"
    process = subprocess.Popen(
        [sys.executable, "-c", CHILD.format(master=pool.master)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": f"{shim}:{ROOT}"},
    )
    with process:
        yield process
        process.kill()


def gone(pid, within_s=5.0):
    ends = time.monotonic() + within_s
    while is_alive(pid) and time.monotonic() < ends:
        time.sleep(0.02)
    return not is_alive(pid)


def test_a_segment_dies_with_a_process_that_is_killed(child):
    pid = int(child.stdout.readline().split()[0])
    assert is_alive(pid)
    child.kill()

    assert gone(pid)


def test_a_process_that_just_ends_takes_its_segment_along(pool, child):
    pid, name = child.stdout.readline().split()
    child.stdin.close()

    assert child.wait(10) == 0
    assert not is_alive(pid)
    assert name not in pool.page("/get_all_segments").splitlines()


def test_a_client_tells_of_itself_over_http(pool):
    with socket.create_server(("127.0.0.1", 0)) as found:
        port = found.getsockname()[1]
    more = {"enable_client_http_server": True, "client_http_port": port}
    with pool.client(**more):
        probe = type(pool)({"listen": pool.master, "admin": f"127.0.0.1:{port}"})

        assert '"client"' in probe.page("/health")
        assert '"name"' in probe.page("/state")


def test_a_master_that_went_away_is_told_by_health_and_by_codes(monkeypatch):
    monkeypatch.setenv("REFIMPL_COMPAT_TIMEOUT_S", "0.5")
    settings = MasterSettings(
        listen="127.0.0.1:0", heartbeat_listen="127.0.0.1:0", admin_listen="127.0.0.1:0"
    )
    store = MooncakeDistributedStore()
    with Master(settings) as master:
        code = store.setup("h", "-", 0, 1 << 20, "tcp", "", master.addresses["listen"])
        healthy = store.health_check()
    lost = {Code.RPC_FAIL, Code.RPC_TIMEOUT}

    assert (code, healthy) == (0, 0)
    assert store.health_check() == 2
    assert store.put("k", b"v") in lost
    assert store.get("k") == b""
    assert store.is_exist("k") in lost
    assert store.get_size("k") in lost
    assert store.remove_all() in lost
    assert store.remove_by_regex("k") in lost
    assert store.batch_get_session_start(["k"])[0] in lost
    assert store.batch_put_session_start(["k"], [1])[0] in lost
    assert store.batch_get_replica_desc(["k"]) == {}
    assert store.close() == 0
