"""Starts a fault proxy server that dies with us, or takes the one that is there.

`choose_proxy` prefers, in this order: the server at TOXIPROXY_URL, a toxiproxy-server
binary (MOONQUAKE_TOXIPROXY, or `toxiproxy-server` on PATH), the embedded server.
"""

from __future__ import annotations

import json
import os
import select
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

from chaos.errors import ProcessFailed, ProxyError
from chaos.proxy.client import ProxyClient
from chaos.proxy.token import read_token

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from chaos.proxy.client import Flavour

URL_VARIABLE = "TOXIPROXY_URL"
BINARY_VARIABLE = "MOONQUAKE_TOXIPROXY"
BINARY = "toxiproxy-server"
START_TIMEOUT_S = 10.0
RESTART_TIMEOUT_S = 2.5
STOP_TIMEOUT_S = 5.0
#: A port picked for a real server may be taken before it binds: so many tries.
PORT_TRIES = 5
_READY = "chaos proxy ready "
_POLL_S = 0.02


class ProxyProcess:
    """A fault proxy server to use: `url`, and the process when it is ours to end."""

    def __init__(
        self,
        url: str,
        flavour: Flavour,
        started: _Started | None = None,
        again: Callable[[], _Started] | None = None,
    ) -> None:
        self.url = url
        self.flavour = flavour
        self.restarts = 0
        #: Called after each restart: `pid` is another one then.
        self.on_restart: Callable[[], None] = lambda: None
        self._started = started
        self._again = again
        self._client: ProxyClient | None = None

    @classmethod
    def start(
        cls,
        seed: int = 0,
        *,
        listen: str = "127.0.0.1:0",
        timeout_s: float = START_TIMEOUT_S,
        arguments: Sequence[str] = (),
    ) -> ProxyProcess:
        """Starts the embedded server; it ends when this process ends, however.

        Raises:
            ProcessFailed: it was not ready in time; nothing is left running.
        """
        started, url = _start_embedded(seed, listen, timeout_s, arguments)

        def again() -> _Started:
            address = url.partition("//")[2]
            return _start_embedded(seed, address, RESTART_TIMEOUT_S, arguments)[0]

        return cls(url, "embedded", started, again)

    @classmethod
    def start_toxiproxy(
        cls,
        binary: str,
        seed: int = 0,
        *,
        timeout_s: float = START_TIMEOUT_S,
        wait: Callable[[float], None] = time.sleep,
    ) -> ProxyProcess:
        """Starts a real toxiproxy-server on a free loopback port, under a supervisor.

        Raises:
            ProcessFailed: it was not ready in time; nothing is left running.
        """
        detail = ""
        for _ in range(PORT_TRIES):
            host, port = _free_address()
            command = _toxiproxy_command(binary, host, port, seed)
            url = f"http://{host}:{port}"
            try:
                started = _start_real(command, url, timeout_s, wait)
            except ProcessFailed as error:
                detail = error.detail
                continue

            def again(command: list[str] = command, url: str = url) -> _Started:
                return _start_real(command, url, RESTART_TIMEOUT_S, wait)

            return cls(url, "toxiproxy", started, again)
        raise ProcessFailed(process=binary, reason="did not get ready", detail=detail)

    @property
    def pid(self) -> int | None:
        """Of the process we started; None for a server that was there already."""
        return None if self._started is None else self._started.process.pid

    def alive(self) -> bool:
        return self._started is None or self._started.alive()

    def client(self) -> ProxyClient:
        """The one client of this server: what it made, it can make again."""
        if self._client is None:
            restart = self.restart if self._again is not None else None
            self._client = ProxyClient(self.url, token=read_token(), restart=restart)
        return self._client

    def restart(self) -> None:
        """Kills a server of ours and starts it at the same address, empty.

        Raises:
            ProcessFailed: it is not ours, or was not ready in time.
        """
        if self._started is None or self._again is None:
            raise ProcessFailed(process=self.url, reason="is not ours to restart")
        self._started.kill()
        self._started = self._again()
        self.restarts += 1
        self.on_restart()

    def stop(self) -> str:
        """Ends the process if it is ours, once; returns what it last complained of."""
        return "" if self._started is None else self._started.end()

    def __enter__(self) -> ProxyProcess:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()


def choose_proxy(
    seed: int = 0, *, environment: Mapping[str, str] = os.environ
) -> ProxyProcess:
    """The real Toxiproxy where one is named or installed, else the embedded server.

    Raises:
        ProxyError: TOXIPROXY_URL does not answer.
        ProcessFailed: the server did not start.
    """
    url = environment.get(URL_VARIABLE, "")
    if url:
        client = ProxyClient(url, token=read_token(environ=environment))
        return ProxyProcess(url.rstrip("/"), client.flavour)
    binary = find_toxiproxy(environment)
    if binary is not None:
        return ProxyProcess.start_toxiproxy(binary, seed)
    return ProxyProcess.start(seed)


def find_toxiproxy(environment: Mapping[str, str] = os.environ) -> str | None:
    """Path of a toxiproxy-server binary, None where there is none."""
    named = environment.get(BINARY_VARIABLE, "")
    if named:
        found = shutil.which(named)
        if found is None:
            raise ProcessFailed(
                process=named, reason=f"named by {BINARY_VARIABLE} cannot be executed"
            )
        return found
    return shutil.which(BINARY, path=environment.get("PATH", ""))


def _toxiproxy_command(binary: str, host: str, port: int, seed: int) -> list[str]:
    return [
        sys.executable,
        *("-m", "chaos.proxy.launch", "--parent", str(os.getpid()), "--"),
        *(binary, "-host", host, "-port", str(port), "-seed", str(seed)),
        "-proxy-metrics",
    ]


def _start_embedded(
    seed: int, listen: str, timeout_s: float, arguments: Sequence[str]
) -> tuple[_Started, str]:
    """A server of ours that is ready, and its url."""
    command = [
        sys.executable,
        *("-m", "chaos.proxy", "--listen", listen, "--seed", str(seed)),
        f"--die-with-parent={os.getpid()}",
        *arguments,
    ]
    started = _Started(command, ready_line=True)
    try:
        line = started.first_line(timeout_s)
        return started, str(json.loads(line.removeprefix(_READY))["url"])
    except (ValueError, KeyError) as error:
        raise ProcessFailed(
            process="fault proxy", reason="did not get ready", detail=started.end()
        ) from error


def _start_real(
    command: list[str], url: str, timeout_s: float, wait: Callable[[float], None]
) -> _Started:
    """A Toxiproxy that answers at its url."""
    started = _Started(command, ready_line=False)
    if _answers(started, url, timeout_s, wait):
        return started
    raise ProcessFailed(process=url, reason="did not get ready", detail=started.end())


class _Started:
    """A process of ours with what it writes in an unlinked file: nothing can block it.

    Its own session: a Ctrl-C at the terminal must reach the harness first.
    """

    def __init__(self, command: list[str], *, ready_line: bool) -> None:
        # SIGKILL would end a launcher, and its server a moment later: it gets SIGHUP.
        self._at_once = signal.SIGKILL if ready_line else signal.SIGHUP
        self._log = tempfile.TemporaryFile()  # noqa: SIM115 - lives until end()
        self.process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE if ready_line else self._log,
            stderr=self._log,
            start_new_session=True,
            env=_environment(),
        )

    def alive(self) -> bool:
        return self.process.poll() is None

    def first_line(self, timeout_s: float) -> str:
        """The line it writes when it is ready; "" when none comes in time."""
        stream = self.process.stdout
        assert stream is not None
        ready, _, _ = select.select([stream], [], [], timeout_s)
        return stream.readline().decode() if ready else ""

    def kill(self) -> str:
        """Ends it without any grace: it hangs, and holds nothing of value."""
        self.process.send_signal(self._at_once)
        return self._wait_end()

    def end(self) -> str:
        """Ends it, by force in the end; returns its last words the first time."""
        self.process.terminate()
        return self._wait_end()

    def _wait_end(self) -> str:
        try:
            self.process.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        if self.process.stdout is not None:
            self.process.stdout.close()
        return self._last_words()

    def _last_words(self) -> str:
        if self._log.closed:
            return ""
        size = self._log.seek(0, os.SEEK_END)
        self._log.seek(max(0, size - 2000))
        text = self._log.read().decode("utf-8", "replace")
        self._log.close()
        return " / ".join(text.strip().splitlines()[-3:])


def _environment() -> dict[str, str]:
    """Ours, with this package importable from any directory, and a quiet Toxiproxy."""
    root = str(Path(__file__).parents[2])
    path = os.pathsep.join(filter(None, (root, os.environ.get("PYTHONPATH", ""))))
    return os.environ | {"PYTHONPATH": path, "LOG_LEVEL": "error"}


def _answers(
    started: _Started,
    url: str,
    timeout_s: float,
    wait: Callable[[float], None],
) -> bool:
    """Whether the server answers within the time, and the process still lives then."""
    client = ProxyClient(url, timeout_s=1.0)
    for _ in range(max(1, int(timeout_s / _POLL_S))):
        if not started.alive():
            return False
        try:
            client.version()
        except ProxyError:
            wait(_POLL_S)
            continue
        return started.alive()
    return False


def _free_address() -> tuple[str, int]:
    """A loopback address of this process's own, and a port that is free on it.

    Toxiproxy stays up when its port is taken, so whoever has the port would answer for
    it; on an address derived from our process id nobody else looks for one.
    """
    pid = os.getpid()
    host = f"127.{64 + (pid >> 16) % 64}.{(pid >> 8) & 255}.{pid & 255}"
    with socket.socket() as sock:
        sock.bind((host, 0))
        return host, int(sock.getsockname()[1])
