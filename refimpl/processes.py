"""A role started as a process of its own: its ready line, its end, its last words."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import threading
import time
from collections import deque
from typing import TYPE_CHECKING, Any, Final

from refimpl.errors import RefimplError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_LINES_KEPT: Final = 50
_END_OF_OUTPUT_S: Final = 1.0


class RoleFailed(RefimplError):
    """A role ended, or stayed silent, before it was ready; its last words follow."""


class RoleProcess:
    """One role; it dies with the thread that made this object.

    Args:
        role: "master", "store" or "engine".
        name: name in the ready line.
        flags: further command-line flags.
    """

    def __init__(self, role: str, name: str, flags: Sequence[str]) -> None:
        self.role = role
        self.name = name
        self.lines: deque[str] = deque(maxlen=_LINES_KEPT)
        self._ready = threading.Event()
        self._addresses: Mapping[str, Any] = {}
        command = [sys.executable, "-m", "refimpl", role, "--name", name, *flags]
        self._process = subprocess.Popen(
            [*command, f"--die-with-parent={os.getpid()}"],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            process_group=0,  # Ctrl-C of the terminal reaches us alone
            env={**os.environ, "PYTHONUNBUFFERED": "1"},
        )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    @property
    def pid(self) -> int:
        """Process id, also after its end."""
        return self._process.pid

    @property
    def exit_code(self) -> int | None:
        """None while it runs; -N when signal N ended it."""
        return self._process.poll()

    def wait_ready(self, timeout_s: float) -> Mapping[str, Any]:
        """The addresses of the ready line.

        Raises:
            RoleFailed: it ended or did not get ready in time.
        """
        came = self._ready.wait(timeout_s)
        if self._addresses:
            return self._addresses
        if came:  # the output ended: so does the process, in a moment
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(_END_OF_OUTPUT_S)
        code = self.exit_code
        how = f"is not ready after {timeout_s:g} s" if code is None else f"exit {code}"
        raise RoleFailed(f"{self.name}: {how}: {' / '.join(self.lines) or 'silent'}")

    def ask_to_stop(self) -> None:
        """Sends SIGTERM; harmless when it has ended."""
        if self.exit_code is None:
            self._process.terminate()

    def stop(self, deadline_s: float) -> int:
        """Waits for the end until an instant of `time.monotonic`, then SIGKILLs."""
        self.ask_to_stop()
        try:
            code = self._process.wait(max(0.0, deadline_s - time.monotonic()))
        except subprocess.TimeoutExpired:
            self._process.kill()
            code = self._process.wait()
        self._reader.join(timeout=1.0)
        if self._process.stdout and not self._reader.is_alive():
            self._process.stdout.close()
        return code

    def _read(self) -> None:
        """Keeps the output flowing; a full pipe would stop the role."""
        start = f"refimpl {self.role} {self.name} ready "
        for line in self._process.stdout or ():
            if line.startswith(start):
                self._addresses = json.loads(line[len(start) :])
                self._ready.set()
            else:
                self.lines.append(line.rstrip())
        self._ready.set()
