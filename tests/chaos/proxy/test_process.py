"""Starting servers: ready, choice between them, and dying with the one who started."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from chaos.errors import ProcessFailed, ProxyError
from chaos.proxy.client import ProxyClient
from chaos.proxy.process import ProxyProcess, choose_proxy, find_toxiproxy

ROOT = Path(__file__).parents[3]
STARTER = """
import sys, threading, time
from chaos.proxy.process import ProxyProcess
found = []
def start():
    found.append({start})
thread = threading.Thread(target=start)
thread.start(); thread.join()
server = found[0]
print(server.pid, server.url, flush=True)
time.sleep(60)
"""


def running(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state != "Z"


def gone(pid: int, within_s: float = 5.0) -> bool:
    deadline = time.monotonic() + within_s
    while running(pid) and time.monotonic() < deadline:
        time.sleep(0.01)
    return not running(pid)


@contextlib.contextmanager
def starter(start: str):
    """A process that starts a server from a thread that has ended since."""
    process = subprocess.Popen(
        [sys.executable, "-c", STARTER.format(start=start)],
        stdout=subprocess.PIPE,
        text=True,
        cwd=ROOT,
    )
    with process:
        assert process.stdout is not None
        pid, url = process.stdout.readline().split()
        yield process, int(pid), url
        process.kill()


def children(pid: int) -> list[int]:
    text = Path(f"/proc/{pid}/task/{pid}/children").read_text()
    return [int(word) for word in text.split()]


def test_start_answers_and_stop_leaves_nothing():
    server = ProxyProcess.start(seed=1)
    pid = server.pid

    assert server.client().flavour == "embedded"
    assert server.alive()
    server.stop()
    server.stop()
    assert pid is not None
    assert not running(pid)


def test_it_starts_from_any_directory(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)

    with ProxyProcess.start() as server:
        assert server.client().version()


def test_a_taken_port_is_named_and_leaves_nothing():
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        with pytest.raises(ProcessFailed, match=f"cannot listen on {address}"):
            ProxyProcess.start(listen=address)


def test_the_server_dies_with_a_killed_harness_not_with_its_thread():
    with starter("ProxyProcess.start()") as (harness, pid, url):
        assert ProxyClient(url).version()
        harness.send_signal(signal.SIGKILL)

        assert gone(pid)


def test_a_real_server_dies_with_a_killed_harness(real_server):
    binary = find_toxiproxy()
    if binary is None:
        pytest.skip("TOXIPROXY_URL names a server that is not ours to start")
    start = f"ProxyProcess.start_toxiproxy({binary!r})"
    with starter(start) as (harness, launcher, url):
        (server,) = children(launcher)
        assert ProxyClient(url).version()
        harness.send_signal(signal.SIGKILL)

        assert gone(launcher)
        assert gone(server)


def test_a_real_server_dies_with_its_killed_launcher(real_server):
    binary = find_toxiproxy()
    if binary is None:
        pytest.skip("TOXIPROXY_URL names a server that is not ours to start")
    with ProxyProcess.start_toxiproxy(binary) as server:
        assert server.pid is not None
        (child,) = children(server.pid)
        os.kill(server.pid, signal.SIGKILL)

        assert gone(child)


def test_choice_is_the_embedded_server_where_there_is_no_other():
    with choose_proxy(3, environment={"PATH": "/nowhere"}) as server:
        assert server.flavour == "embedded"


def test_choice_takes_the_server_at_the_url_and_does_not_end_it(ours):
    server = choose_proxy(environment={"TOXIPROXY_URL": ours.server.url + "/"})

    server.stop()

    assert server.pid is None
    assert server.url == ours.server.url
    assert ours.client.version()


def test_choice_refuses_a_url_that_does_not_answer(dead_address):
    with pytest.raises(ProxyError):
        choose_proxy(environment={"TOXIPROXY_URL": f"http://{dead_address}"})


def test_choice_refuses_a_named_binary_that_is_none():
    with pytest.raises(ProcessFailed, match="MOONQUAKE_TOXIPROXY"):
        choose_proxy(environment={"MOONQUAKE_TOXIPROXY": "/nowhere/toxiproxy"})


def test_choice_takes_a_binary_on_the_path(real_server, tmp_path):
    binary = find_toxiproxy()
    if binary is None:
        pytest.skip("TOXIPROXY_URL names a server that is not ours to start")
    (tmp_path / "toxiproxy-server").symlink_to(binary)

    with choose_proxy(environment={"PATH": str(tmp_path)}) as server:
        assert server.flavour == "toxiproxy"
        assert server.client().flavour == "toxiproxy"


def test_a_binary_that_is_no_server_fails_with_its_last_words():
    with pytest.raises(ProcessFailed):
        ProxyProcess.start_toxiproxy("/bin/false", timeout_s=2.0)


@pytest.mark.parametrize("flavour", ["embedded", "real"])
def test_a_restart_keeps_the_address_and_nothing_else(flavour, request):
    if flavour == "embedded":
        server = ProxyProcess.start()
    else:
        request.getfixturevalue("real_server")
        binary = find_toxiproxy()
        if binary is None:
            pytest.skip("TOXIPROXY_URL names a server that is not ours to start")
        server = ProxyProcess.start_toxiproxy(binary)
    pids = [server.pid]
    server.on_restart = lambda: pids.append(server.pid)
    with server:
        url, client = server.url, server.client()
        client.create("one", "127.0.0.1:0", "127.0.0.1:9")
        server.restart()

        assert (server.url, server.restarts) == (url, 1)
        assert client.proxies() == {}
        assert len(set(pids)) == 2
        assert not running(pids[0])


def test_a_server_of_somebody_else_is_not_restarted(ours):
    with pytest.raises(ProcessFailed, match="not ours"):
        ProxyProcess(ours.server.url, "embedded").restart()
