"""What is left is seen: snapshots differ where hosts do, and nowhere else."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from chaos.exits import snapshot
from chaos.exits.marks import Marks
from chaos.exits.snapshot import (
    Snapshot,
    command_of,
    is_connection,
    marked,
    of_hosts,
)
from chaos.safety.identity import wait_until
from chaos.targets.fabric import Fabric, Machine, Member
from chaos.targets.namespaces import why_no_namespaces

needs_root = pytest.mark.skipif(
    bool(why_no_namespaces()), reason=why_no_namespaces() or "-"
)
SLEEP = ["/bin/sleep", "300"]
DROP = "add table inet moonquake_r_f\n"
LEAVINGS = {
    "nft": ["nft", "-f", "-"],
    "tc": ["tc", "qdisc", "add", "dev", "rail0", "root", "pfifo", "limit", "9"],
    "links": ["ip", "link", "set", "dev", "rail0", "down"],
    "addresses": ["ip", "addr", "add", "10.9.9.9/32", "dev", "rail0"],
    "routes": ["ip", "route", "add", "10.9.0.0/16", "dev", "rail0"],
}


def test_changes_are_told_line_by_line_and_counted() -> None:
    before = Snapshot(parts={"tc": "a\nb\nb", "nft": ""})
    after = Snapshot(parts={"tc": "a\nb\nc", "ports": "tcp 1"})

    assert after.changes(before) == ["ports: + tcp 1", "tc: + c", "tc: - b"]
    assert before.changes(before) == []


@pytest.mark.parametrize(
    ("words", "found"),
    [
        ("sshd: root@notty", True),
        ("sshd: root [priv]", True),
        ("sshd-session: root@notty", True),
        ("sshd: /usr/sbin/sshd -D -f x [listener] 0 of 200-200 startups", False),
        ("python agent.py relay --socket sshd: ", False),
    ],
)
def test_only_daemons_of_connections_are_left_out(words, found) -> None:
    assert is_connection(words) is found


def test_a_process_is_found_by_its_environment_alone() -> None:
    mark = f"MOONQUAKE_TEST_MARK={os.getpid()}"
    name, _, value = mark.partition("=")
    child = subprocess.Popen(
        [sys.executable, "-c", "input()"],
        env={**os.environ, name: value},
        stdin=subprocess.PIPE,
    )
    try:
        assert wait_until(lambda: child.pid in marked(mark), timeout_s=5)
        assert command_of(child.pid).endswith("-c input()")
    finally:
        child.communicate(b"\n")
    assert marked(mark) == {}
    assert command_of(child.pid) == ""


def test_a_phase_is_told_whole_and_waited_for(tmp_path) -> None:
    marks = Marks(tmp_path)

    assert marks.told("active") is None
    marks.tell("active", effect=2.0)
    assert marks.told("active") == {"effect": 2.0}
    assert not marks.wait_for_go("active", timeout_s=0.0)
    marks.go("active")
    assert marks.wait_for_go("active", timeout_s=0.0)


@pytest.fixture(scope="module")
def host(tmp_path_factory):
    folder = tmp_path_factory.mktemp("fabric")
    machine = Machine(init=True, private=("/run",), scratch="/run/scratch")
    fabric = Fabric.build(
        [Member(name="h", numbers=(10,))],
        rails=1,
        machine=machine,
        directory=folder,
    )
    fabric.boot("h", SLEEP, folder / "log")
    init = fabric.namespaces("h").init
    assert wait_until(lambda: "sleep" in processes(init), timeout_s=5)
    yield init
    fabric.close()


def processes(init) -> str:
    return of_hosts({"h": init})["h"].parts["processes"]


@needs_root
@pytest.mark.parametrize("what", sorted(LEAVINGS))
def test_what_is_left_in_the_network_is_seen(host, what) -> None:
    enter = ["nsenter", f"--net=/proc/{host}/ns/net", "--"]
    subprocess.run([*enter, "ip", "link", "set", "dev", "rail0", "up"], check=True)
    before = of_hosts({"h": host})["h"]
    given = {"input": DROP} if what == "nft" else {}
    subprocess.run([*enter, *LEAVINGS[what]], check=True, text=True, **given)
    changes = of_hosts({"h": host})["h"].changes(before)

    assert any(change.startswith(f"{what}: ") for change in changes), changes


@needs_root
def test_files_ports_and_processes_that_are_left_are_seen(host) -> None:
    before = of_hosts({"h": host})["h"]
    root = Path(f"/proc/{host}/root/run")
    (root / "moonquake").mkdir()
    (root / "scratch" / "full").write_bytes(b"x")
    program = "import socket, time; s = socket.create_server(('', 7)); time.sleep(99)"
    enter = ["nsenter", "--all", "--target", str(host), "--"]
    child = subprocess.Popen([*enter, sys.executable, "-c", program])
    try:
        assert wait_until(
            lambda: "tcp " in of_hosts({"h": host})["h"].parts["ports"], timeout_s=10
        )
        changes = of_hosts({"h": host})["h"].changes(before)
    finally:
        child.kill()
        child.wait()

    wanted = ["run: + run/moonquake", "run: + run/scratch/full"]
    assert [each for each in changes if each.startswith("run: ")] == wanted
    assert any(each.startswith("ports: + tcp 00000000:0007") for each in changes)
    assert any(each.startswith("processes: + ") for each in changes)


def test_a_directory_that_goes_away_while_it_is_read_is_read_again(
    tmp_path, monkeypatch
) -> None:
    """A run clears up while the snapshot is taken."""
    (tmp_path / "run" / "kept").mkdir(parents=True)
    real, calls = Path.rglob, []

    def vanishing(self, pattern):
        calls.append(pattern)
        if len(calls) < 3:
            raise FileNotFoundError(2, "No such file or directory", str(self))
        return real(self, pattern)

    monkeypatch.setattr(Path, "rglob", vanishing)

    assert snapshot._files(tmp_path, "run") == "run/kept"


def test_a_directory_that_never_stands_still_is_an_error(tmp_path, monkeypatch) -> None:
    def vanishing(self, pattern):
        raise FileNotFoundError(2, "No such file or directory", str(self))

    monkeypatch.setattr(Path, "rglob", vanishing)

    with pytest.raises(FileNotFoundError):
        snapshot._files(tmp_path, "run")
