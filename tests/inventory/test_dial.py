"""Every way a host can fail to be reached is told apart from the others."""

from __future__ import annotations

import shutil
import socket
import subprocess
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import paramiko
import pytest

from inventory import SshError, SshProblem, SshSession

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from inventory import HostEntry


def failure(entry: HostEntry, *, timeout_s: float = 5.0) -> SshError:
    """How connecting fails; nothing may stay open."""
    with SshSession(entry) as session, pytest.raises(SshError) as caught:
        session.connect(timeout_s=timeout_s)
    pause = threading.Event()
    end = time.monotonic() + 5
    while threads_of_ssh() and time.monotonic() < end:
        pause.wait(0.01)

    assert threads_of_ssh() == []
    assert caught.value.host == "node-1"
    assert not caught.value.maybe_ran
    assert "\n" not in str(caught.value)
    return caught.value


def threads_of_ssh() -> list[threading.Thread]:
    return [
        thread
        for thread in threading.enumerate()
        if thread.name.startswith("ssh") or isinstance(thread, paramiko.Transport)
    ]


def test_a_port_where_nobody_listens_is_refused(
    host: Callable[..., HostEntry],
) -> None:
    with socket.create_server(("127.77.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    error = failure(host(address="127.77.0.1", port=port))

    assert error.kind is SshProblem.REFUSED
    assert str(port) in str(error)


def test_a_name_that_does_not_exist_is_unreachable(
    host: Callable[..., HostEntry], monkeypatch: pytest.MonkeyPatch
) -> None:
    def unknown(*args: object, **kwargs: object) -> object:
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    monkeypatch.setattr("inventory.dial.socket.getaddrinfo", unknown)
    error = failure(host(address="no-such-host.invalid"))

    assert error.kind is SshProblem.UNREACHABLE
    assert "no-such-host.invalid" in str(error)


def test_a_resolver_that_hangs_has_the_deadline_too(
    host: Callable[..., HostEntry], monkeypatch: pytest.MonkeyPatch
) -> None:
    hang = threading.Event()

    def slow(*args: object, **kwargs: object) -> object:
        hang.wait(20)
        raise socket.gaierror(socket.EAI_AGAIN, "late")

    monkeypatch.setattr("inventory.dial.socket.getaddrinfo", slow)
    threading.Timer(0.6, hang.set).start()
    error = failure(host(address="slow.invalid"), timeout_s=0.3)

    assert error.kind is SshProblem.TIMEOUT
    assert error.phase == "name resolution"


def test_a_network_without_a_route_is_unreachable(
    host: Callable[..., HostEntry],
) -> None:
    # a broadcast address cannot be connected to, whatever routes there are
    error = failure(host(address="255.255.255.255", port=22))

    assert error.kind is SshProblem.UNREACHABLE


def test_a_host_that_answers_no_connection_times_out(
    host: Callable[..., HostEntry],
) -> None:
    with socket.socket() as full:
        full.bind(("127.77.0.2", 0))
        full.listen(0)
        place = full.getsockname()
        waiting = [socket.socket() for _ in range(3)]
        for one in waiting:
            one.setblocking(False)
            one.connect_ex(place)
        error = failure(host(address=place[0], port=place[1]), timeout_s=0.4)
        for one in waiting:
            one.close()

    assert error.kind is SshProblem.TIMEOUT
    assert error.phase == "the TCP connection"


def test_a_host_that_accepts_and_says_nothing_times_out_at_the_banner(
    host: Callable[..., HostEntry], fault_server: Callable[..., Any]
) -> None:
    server = fault_server(lambda connection: server.hold())
    begun = time.monotonic()
    error = failure(host(address=server.address, port=server.port), timeout_s=0.4)

    assert error.kind is SshProblem.TIMEOUT
    assert error.phase == "the SSH banner"
    assert time.monotonic() - begun < 3


@pytest.mark.parametrize(
    "words",
    [
        b"HTTP/1.1 400 Bad Request\r\n\r\n",
        b"220 mail.example.com ESMTP\r\n",
        b"\x16\x03\x01\x02\x00\x01",
        b"x" * 20_000,
    ],
)
def test_what_is_not_ssh_is_garbage_and_is_quoted(
    words: bytes, host: Callable[..., HostEntry], fault_server: Callable[..., Any]
) -> None:
    def speak(connection: socket.socket) -> None:
        connection.sendall(words)
        connection.shutdown(socket.SHUT_WR)
        server.hold()

    server = fault_server(speak)
    error = failure(host(address=server.address, port=server.port))

    assert error.kind is SshProblem.GARBAGE
    assert repr(words[:8])[2:-1] in str(error)


def test_garbage_that_goes_on_drop_by_drop_has_the_deadline(
    host: Callable[..., HostEntry], fault_server: Callable[..., Any]
) -> None:
    pause = threading.Event()

    def drip(connection: socket.socket) -> None:
        for _ in range(500):
            connection.sendall(b"z")
            pause.wait(0.02)

    server = fault_server(drip)
    error = failure(host(address=server.address, port=server.port), timeout_s=0.4)

    assert error.kind is SshProblem.TIMEOUT
    pause.set()


def test_a_host_that_hangs_up_before_its_banner_is_lost(
    host: Callable[..., HostEntry], fault_server: Callable[..., Any]
) -> None:
    server = fault_server(lambda connection: connection.shutdown(socket.SHUT_RDWR))
    error = failure(host(address=server.address, port=server.port))

    assert error.kind is SshProblem.LOST
    assert "MaxStartups" in str(error)


def test_a_host_that_hangs_up_in_the_key_exchange_is_lost(
    host: Callable[..., HostEntry], fault_server: Callable[..., Any]
) -> None:
    def half(connection: socket.socket) -> None:
        connection.sendall(b"SSH-2.0-Half\r\n")
        connection.recv(100)
        connection.shutdown(socket.SHUT_RDWR)

    server = fault_server(half)
    error = failure(host(address=server.address, port=server.port))

    assert error.kind is SshProblem.LOST
    assert error.phase == "the key exchange"


def test_a_host_that_hangs_in_the_key_exchange_times_out(
    host: Callable[..., HostEntry], fault_server: Callable[..., Any]
) -> None:
    def stop(connection: socket.socket) -> None:
        connection.sendall(b"SSH-2.0-Stuck\r\n")
        server.hold()

    server = fault_server(stop)
    error = failure(host(address=server.address, port=server.port), timeout_s=0.5)

    assert error.kind is SshProblem.TIMEOUT
    assert error.phase == "the key exchange"


@pytest.mark.parametrize("banner", [b"SSH-1.5-old\r\n", b"SSH-nonsense\r\n"])
def test_an_ssh_that_we_cannot_follow_is_garbage(
    banner: bytes, host: Callable[..., HostEntry], fault_server: Callable[..., Any]
) -> None:
    def speak(connection: socket.socket) -> None:
        connection.sendall(banner)
        server.hold()

    server = fault_server(speak)
    error = failure(host(address=server.address, port=server.port))

    assert error.kind is SshProblem.GARBAGE


@pytest.mark.parametrize(
    "noise",
    [
        b"\x00\x00\x00\x0c\x04\x14" + b"\x01" * 10,
        b"\xff" * 64,
        b"\x00" * 64,
        b"\x00\x00\x01\x00\x04\x14" + bytes(range(250)),
    ],
)
def test_noise_instead_of_a_key_exchange_is_garbage_or_lost(
    noise: bytes, host: Callable[..., HostEntry], fault_server: Callable[..., Any]
) -> None:
    def speak(connection: socket.socket) -> None:
        connection.sendall(b"SSH-2.0-Noise\r\n" + noise)
        connection.recv(4096)
        connection.shutdown(socket.SHUT_WR)
        server.hold()

    server = fault_server(speak)
    error = failure(host(address=server.address, port=server.port))

    assert error.kind in {SshProblem.GARBAGE, SshProblem.LOST}


def test_a_dead_agent_holds_nothing(
    host: Callable[..., HostEntry], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SSH_AUTH_SOCK", str(tmp_path / "no-agent"))
    monkeypatch.setenv("HOME", str(tmp_path))
    error = failure(host(key_file=None))

    assert error.kind is SshProblem.AUTH
    assert "no key to offer" in str(error)


def test_a_key_held_by_an_agent_opens_the_door(
    host: Callable[..., HostEntry],
    sshd: Any,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    socket_file = tmp_path / "agent"
    monkeypatch.setenv("SSH_AUTH_SOCK", str(socket_file))
    monkeypatch.setenv("HOME", str(tmp_path))
    command = ["ssh-agent", "-D", "-a", str(socket_file)]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as agent:
        assert agent.stdout is not None
        agent.stdout.readline()
        add = ["ssh-add", "-q", str(sshd.folder / "client_key")]
        subprocess.run(add, check=True, timeout=20)
        with SshSession(host(key_file=None)) as session:
            session.connect(timeout_s=10)
            connected = session.connected
        agent.terminate()

    assert connected


def test_thirty_two_hosts_are_reached_at_once(host: Callable[..., HostEntry]) -> None:
    with ThreadPoolExecutor(32) as pool:
        answers = list(pool.map(ask, [host(name=f"n{i}") for i in range(32)]))

    assert answers == [f"n{i}" for i in range(32)]


def ask(entry: HostEntry) -> str:
    with SshSession(entry) as session:
        return session.run(["echo", entry.name], timeout_s=60).text.strip()


def test_an_unknown_key_is_refused_with_the_commands_that_help(
    host: Callable[..., HostEntry], tmp_path: Path
) -> None:
    (tmp_path / "known_hosts").write_text("# nobody\n")
    entry = host()
    error = failure(entry)

    assert error.kind is SshProblem.HOST_KEY
    assert "unknown key" in str(error)
    assert "SHA256:" in str(error)
    assert f"ssh-keyscan -p {entry.port} {entry.address} >> " in str(error)


def test_a_changed_key_is_told_from_an_unknown_one(
    host: Callable[..., HostEntry], sshd: Any, tmp_path: Path
) -> None:
    other = (sshd.folder / "client_key.pub").read_text().split()[:2]
    place = f"[{sshd.address}]:{sshd.port}"
    (tmp_path / "known_hosts").write_text(f"{place} {' '.join(other)}\n")
    error = failure(host())

    assert error.kind is SshProblem.HOST_KEY
    assert "changed key" in str(error)
    assert f"ssh-keygen -R '{place}'" in str(error)


def test_a_revoked_key_is_refused_though_it_is_known(
    host: Callable[..., HostEntry], sshd: Any, tmp_path: Path
) -> None:
    place = f"[{sshd.address}]:{sshd.port} {sshd.host_key}\n"
    (tmp_path / "known_hosts").write_text(f"{place}@revoked {place}")
    error = failure(host())

    assert error.kind is SshProblem.HOST_KEY
    assert "revoked" in str(error)


def test_a_hashed_known_hosts_serves_as_well(
    host: Callable[..., HostEntry], tmp_path: Path
) -> None:
    entry = host()
    file = tmp_path / "known_hosts"
    command = [str(shutil.which("ssh-keygen")), "-q", "-H", "-f", str(file)]
    subprocess.run(command, check=True, timeout=20, capture_output=True)
    with SshSession(entry) as session:
        session.connect(timeout_s=10)
        connected = session.connected

    assert file.read_text().startswith("|1|")
    assert connected


def test_a_missing_known_hosts_is_no_reason_to_trust(
    host: Callable[..., HostEntry], tmp_path: Path
) -> None:
    error = failure(host(known_hosts=tmp_path / "nowhere"))

    assert error.kind is SshProblem.HOST_KEY
    assert "nowhere" in str(error)


def test_a_key_that_the_host_does_not_take_is_a_matter_of_authentication(
    host: Callable[..., HostEntry], tmp_path: Path
) -> None:
    key = new_key(tmp_path / "other")
    error = failure(host(key_file=key))

    assert error.kind is SshProblem.AUTH
    assert "authorized_keys" in str(error)


def test_a_user_that_does_not_exist_is_a_matter_of_authentication(
    host: Callable[..., HostEntry],
) -> None:
    error = failure(host(user="nobody-of-this-name"))

    assert error.kind is SshProblem.AUTH
    assert "nobody-of-this-name" in str(error)


@pytest.mark.parametrize(
    ("content", "words"), [(None, "cannot be read"), ("nonsense", "not a private key")]
)
def test_a_key_file_that_is_none_is_named(
    content: str | None,
    words: str,
    host: Callable[..., HostEntry],
    tmp_path: Path,
) -> None:
    file = tmp_path / "key"
    if content is not None:
        file.write_text(content)
    error = failure(host(key_file=file))

    assert error.kind is SshProblem.AUTH
    assert words in str(error)
    assert str(file) in str(error)


def test_an_encrypted_key_is_only_used_through_an_agent(
    host: Callable[..., HostEntry], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("SSH_AUTH_SOCK", raising=False)
    key = new_key(tmp_path / "locked", passphrase="not told")
    error = failure(host(key_file=key))

    assert error.kind is SshProblem.AUTH
    assert "encrypted" in str(error)


def new_key(file: Path, *, passphrase: str = "") -> Path:
    command = ["ssh-keygen", "-q", "-t", "ed25519", "-N", passphrase, "-f", str(file)]
    subprocess.run(command, check=True, timeout=20)
    return file
