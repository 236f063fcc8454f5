"""A real sshd for the SSH tests, and servers that misbehave on purpose.

The sshd listens on an address of its own in 127.77.0.0/16, sees its own /run (it
insists on /run/sshd) and a PATH with the few programs that the tests put there.
"""

from __future__ import annotations

import contextlib
import dataclasses
import getpass
import os
import select
import shutil
import socket
import subprocess
import sys
import threading
from typing import TYPE_CHECKING

import pytest

from inventory.schema import HostEntry

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

SSHD = shutil.which("sshd", path="/usr/sbin:/usr/local/sbin:/usr/bin:/bin")
KEYGEN = shutil.which("ssh-keygen")
PROGRAMS = ("env", "sh", "cat", "sleep", "echo", "head", "kill")
OWN_RUN = """
import os, subprocess, sys
subprocess.run(["mount", "-t", "tmpfs", "tmpfs", "/run"], check=True)
os.mkdir("/run/sshd", 0o755)
os.execv(sys.argv[1], sys.argv[1:])
"""
CONFIG = """
Port {port}
ListenAddress {address}
HostKey {folder}/host_key
AuthorizedKeysFile {folder}/authorized_keys
PidFile none
UsePAM no
StrictModes no
PasswordAuthentication no
KbdInteractiveAuthentication no
MaxAuthTries 20
MaxStartups 100
MaxSessions 20
SetEnv PATH={folder}/bin HOME={folder}
"""


def own_address() -> str:
    """An address that other test processes do not use."""
    return f"127.77.{os.getpid() >> 8 & 255}.{os.getpid() & 255 or 1}"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Sshd:
    """A running sshd, and the files that belong to it."""

    folder: Path
    address: str
    port: int

    @property
    def bin(self) -> Path:
        return self.folder / "bin"

    @property
    def host_key(self) -> str:
        """Type and base64, as known_hosts has it."""
        fields = (self.folder / "host_key.pub").read_text().split()
        return " ".join(fields[:2])

    def entry(self, folder: Path, **fields: object) -> HostEntry:
        """A host that reaches it; `folder` gets the known_hosts."""
        known = folder / "known_hosts"
        values = {
            "name": "node-1",
            "address": self.address,
            "port": self.port,
            "user": getpass.getuser(),
            "key_file": self.folder / "client_key",
            "known_hosts": known,
            "python": sys.executable,
        } | fields
        entry = HostEntry.model_validate(values)
        if not known.exists():
            known.write_text(f"[{entry.address}]:{entry.port} {self.host_key}\n")
        return entry


@pytest.fixture(scope="session")
def sshd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sshd]:
    if SSHD is None or KEYGEN is None:
        pytest.skip("no sshd here; install openssh-server")
    folder = tmp_path_factory.mktemp("sshd")
    keygen(folder / "host_key")
    keygen(folder / "client_key")
    public = (folder / "client_key.pub").read_text()
    (folder / "authorized_keys").write_text(public)
    (folder / "bin").mkdir()
    for name in PROGRAMS:
        if found := shutil.which(name):
            (folder / "bin" / name).symlink_to(found)
    address = own_address()
    server = Sshd(folder=folder, address=address, port=free_port(address))
    text = CONFIG.format(folder=folder, address=address, port=server.port)
    (folder / "config").write_text(text)
    with running(SSHD, folder / "config"):
        yield server


@contextlib.contextmanager
def running(program: str, config: Path) -> Iterator[None]:
    """An sshd with this configuration, from listening until the end of the block."""
    command = [program, "-D", "-e", "-f", str(config)]
    if os.geteuid() == 0:
        isolate = ["unshare", "--mount", sys.executable, "-c", OWN_RUN]
        command = [*isolate, *command]
    process = subprocess.Popen(command, stderr=subprocess.PIPE)
    assert process.stderr is not None
    said = wait_for(process.stderr.fileno(), b"Server listening")
    drain = threading.Thread(target=process.stderr.read, daemon=True)
    drain.start()
    try:
        if b"Server listening" not in said:
            pytest.skip(f"sshd does not start here: {said.decode(errors='replace')}")
        yield
    finally:
        process.terminate()
        process.wait(10)
        drain.join(10)
        process.stderr.close()


def wait_for(descriptor: int, words: bytes, timeout_s: float = 10.0) -> bytes:
    said = b""
    poll = select.poll()
    poll.register(descriptor, select.POLLIN)
    while words not in said and poll.poll(timeout_s * 1000):
        chunk = os.read(descriptor, 4096)
        if not chunk:
            break
        said += chunk
    return said


def keygen(file: Path, *, passphrase: str = "") -> None:
    command = [str(KEYGEN), "-q", "-t", "ed25519", "-N", passphrase, "-f", str(file)]
    subprocess.run(command, check=True, timeout=20)


def free_port(address: str) -> int:
    with socket.create_server((address, 0)) as listener:
        return int(listener.getsockname()[1])


class FaultServer:
    """Takes connections and does to each what a test wants."""

    def __init__(self, act: Callable[[socket.socket], None]) -> None:
        self._act = act
        self._listener = socket.create_server((own_address(), 0))
        self._listener.settimeout(20)
        self._open: list[socket.socket] = []
        self._ended = threading.Event()
        self._threads: list[threading.Thread] = []
        self.taken = 0
        self.address, self.port = self._listener.getsockname()[:2]
        self._start(self._serve)

    def _start(self, target: Callable[..., None], *args: object) -> None:
        thread = threading.Thread(target=target, args=args, daemon=True)
        self._threads.append(thread)
        thread.start()

    def _serve(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                connection = self._listener.accept()[0]
                self.taken += 1
                self._open.append(connection)
                self._start(self._handle, connection)

    def _handle(self, connection: socket.socket) -> None:
        with contextlib.suppress(OSError):
            self._act(connection)

    def hold(self) -> None:
        """For an act that says nothing any more: until the test ends."""
        self._ended.wait(20)

    def close(self) -> None:
        self._ended.set()
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for connection in self._open:
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join(10)
        for connection in self._open:  # no thread waits for one any more
            connection.close()


class Relay:
    """A way to the sshd that a test can freeze or cut."""

    def __init__(self, target: tuple[str, int]) -> None:
        self._target = target
        self._pairs: list[socket.socket] = []
        self._frozen = threading.Event()
        self._thaw = threading.Event()
        self.server = FaultServer(self._carry)

    def _carry(self, client: socket.socket) -> None:
        with socket.create_connection(self._target, timeout=10) as server:
            self._pairs += [client, server]
            ends = {client: server, server: client}
            while True:
                ready, _, _ = select.select(list(ends), [], [], 20)
                if self._frozen.is_set():
                    self._thaw.wait(20)
                    return
                for end in ready:
                    chunk = end.recv(1 << 16)
                    if not chunk:
                        client.shutdown(socket.SHUT_RDWR)
                        return
                    ends[end].sendall(chunk)

    def freeze(self) -> None:
        """From now on nothing passes, and nothing is closed."""
        self._frozen.set()

    def cut(self) -> None:
        for end in self._pairs:
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        self._thaw.set()
        self.cut()
        self.server.close()


@pytest.fixture
def fault_server() -> Iterator[Callable[..., FaultServer]]:
    servers: list[FaultServer] = []

    def start(act: Callable[[socket.socket], None]) -> FaultServer:
        servers.append(FaultServer(act))
        return servers[-1]

    yield start
    for server in servers:
        server.close()


@pytest.fixture
def relay(sshd: Sshd) -> Iterator[Relay]:
    relay = Relay((sshd.address, sshd.port))
    yield relay
    relay.close()


@pytest.fixture
def host(sshd: Sshd, tmp_path: Path) -> Callable[..., HostEntry]:
    """A host entry that reaches the sshd, with any field changed."""

    def build(**fields: object) -> HostEntry:
        return sshd.entry(tmp_path, **fields)

    return build


@pytest.fixture
def program(sshd: Sshd) -> Iterator[Callable[[str, str], None]]:
    """Puts a shell script among the programs that the sshd's users have."""
    made: list[Path] = []

    def put(name: str, script: str) -> None:
        file = sshd.bin / name
        file.write_text(f"#!/bin/sh\n{script}\n")
        file.chmod(0o755)
        made.append(file)

    yield put
    for file in made:
        file.unlink()
