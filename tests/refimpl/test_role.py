"""Start-up of a role: addresses, the ready line, ports, signals, parents."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from refimpl.errors import PortTaken, UsageError
from refimpl.role import announce, grpc_listen, grpc_server, parse_address


def test_the_ready_line_is_one_line_with_json(capsys):
    announce("store", "store-3", {"admin": "127.0.0.1:9", "rails": {"a": "x:1"}})
    line = capsys.readouterr().out

    assert line.startswith("refimpl store store-3 ready {")
    assert line.count("\n") == 1
    assert json.loads(line.split(" ready ", 1)[1])["rails"] == {"a": "x:1"}


@pytest.mark.parametrize("text", ["", "host", ":1", "h:", "h:x", "h:70000"])
def test_an_address_that_is_none_is_a_usage_error(text):
    with pytest.raises(UsageError, match="HOST:PORT"):
        parse_address(text, "listen")


def test_an_address_is_split_at_the_last_colon():
    assert parse_address("::1:80") == ("::1", 80)


def test_two_grpc_servers_never_share_a_port():
    first, second = grpc_server(threads=1), grpc_server(threads=1)
    try:
        address = grpc_listen(first, "127.0.0.1:0", "rpc")
        first.start()

        with pytest.raises(PortTaken, match=address):
            grpc_listen(second, address, "rpc")
    finally:
        first.stop(0).wait()
        second.stop(0).wait()


def test_grpc_refuses_a_port_of_a_plain_listener_and_says_why(capfd):
    server = grpc_server(threads=1)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        try:
            with pytest.raises(PortTaken, match="EADDRINUSE"):
                grpc_listen(server, address, "rpc")
        finally:
            server.stop(0).wait()

    assert capfd.readouterr().err == ""


def test_an_address_of_another_host_is_refused():
    server = grpc_server(threads=1)
    try:
        with pytest.raises(PortTaken, match="EADDRNOTAVAIL"):
            grpc_listen(server, "192.0.2.1:0", "rpc")
    finally:
        server.stop(0).wait()


def _python(code: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, text=True
    )


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_the_wait_of_a_role(number):
    child = _python(
        "from refimpl.role import announce, stop_on_signals\n"
        "stop = stop_on_signals(); announce('x', 'x', {}); stop.wait(); print('bye')"
    )
    with child:
        child.stdout.readline()
        child.send_signal(number)

        assert child.stdout.readline() == "bye\n"
        assert child.wait(5) == 0


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_to_a_role_that_ends_does_not_spoil_its_exit_code(number):
    """Python gives handlers up when it shuts down: a default would kill it then."""
    child = _python(
        "import time\n"
        "from refimpl.role import announce, stop_on_signals\n"
        "class Last:\n"
        "    def __del__(self, print=print, sleep=time.sleep):\n"
        "        print('last', flush=True); sleep(0.3)\n"
        "last = Last()\n"
        "stop = stop_on_signals(); announce('x', 'x', {}); stop.wait()"
    )
    with child:
        child.stdout.readline()
        child.send_signal(number)
        assert child.stdout.readline() == "last\n"
        child.send_signal(number)

        assert child.wait(5) == 0


def _is_gone(pid: int) -> bool:
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="ascii")
        return stat.rpartition(")")[2].split()[0] == "Z"
    except FileNotFoundError:
        return True


@pytest.mark.parametrize("stopped", [False, True])
def test_a_role_dies_with_its_parent_even_when_it_is_stopped(stopped):
    grandchild = (
        "import os,time; from refimpl.role import die_with_parent; die_with_parent();"
        "print(os.getpid(), flush=True); time.sleep(60)"
    )
    child = _python(
        "import subprocess, sys\n"
        f"with subprocess.Popen([sys.executable, '-c', {grandchild!r}]) as p: p.wait()"
    )
    with child:
        pid = int(child.stdout.readline())
        if stopped:
            os.kill(pid, signal.SIGSTOP)
        child.kill()
        child.wait(5)
        deadline = time.monotonic() + 5
        while not _is_gone(pid) and time.monotonic() < deadline:
            time.sleep(0.01)

        assert _is_gone(pid)


def test_a_role_whose_parent_ended_before_it_began_ends_at_once():
    gone = subprocess.Popen([sys.executable, "-S", "-c", ""])
    gone.wait(5)
    code = f"from refimpl.role import die_with_parent; die_with_parent({gone.pid}); 1/0"

    done = subprocess.run([sys.executable, "-c", code], timeout=10, check=False)

    assert done.returncode == 0
