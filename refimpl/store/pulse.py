"""The parent's side of the heartbeat process: start it, hear it, start it again."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Final

from refimpl.security.options import DATA_SECRET_VARIABLE
from refimpl.security.token import TOKEN_VARIABLE
from refimpl.store import heartbeat

if TYPE_CHECKING:
    from collections.abc import Callable

    from refimpl.store.settings import StoreSettings

_END_S: Final = 2.0
_NOT_ITS_BUSINESS: Final = (DATA_SECRET_VARIABLE, TOKEN_VARIABLE)


class Pulse:
    """The heartbeat child of this process.

    `start` and `check` belong to one thread that outlives the child: the kernel takes
    the end of the thread that started it for the end of the parent.

    Args:
        settings: in real time.
        client: identity that the beats carry.
        remount: called when the master does not know us.
        key: what beats are signed with, b"" for nothing.
    """

    def __init__(
        self,
        settings: StoreSettings,
        client: int,
        remount: Callable[[], None],
        *,
        key: bytes = b"",
    ) -> None:
        self._key = key
        self._settings = settings
        self._client = client
        self._remount = remount
        self._child: subprocess.Popen[str] | None = None
        self._reader: threading.Thread | None = None
        self.last_said = ""
        self.starts = 0

    @property
    def pid(self) -> int:
        """Of the child, 0 when there is none."""
        return self._child.pid if self._child else 0

    def start(self) -> None:
        """Starts the child."""
        options = {
            "--parent": os.getpid(),
            "--address": self._settings.heartbeat,
            "--client": self._client,
            "--interval-s": self._settings.ping_interval_s,
            "--timeout-s": self._settings.ping_interval_s,
        }
        words = [str(word) for pair in options.items() for word in pair]
        script = str(Path(heartbeat.__file__))
        self._child = subprocess.Popen(
            # -S -E: no site packages and no environment, so it starts in milliseconds.
            [sys.executable, "-S", "-E", script, *words],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={k: v for k, v in os.environ.items() if k not in _NOT_ITS_BUSINESS},
        )
        self._tell_key(self._child)
        self.starts += 1
        self._reader = threading.Thread(
            target=self._listen, args=(self._child,), name="pulse", daemon=True
        )
        self._reader.start()

    def _tell_key(self, child: subprocess.Popen[str]) -> None:
        """Hands the key on over a pipe: arguments are for everybody to read."""
        assert child.stdin is not None
        # A child that has ended already is seen by `check`.
        with contextlib.suppress(BrokenPipeError), child.stdin:
            child.stdin.write(self._key.hex() + "\n")

    def check(self) -> None:
        """Starts the child again when it is gone."""
        if self._child is not None and self._child.poll() is not None:
            self.stop()
            self.start()

    def stop(self) -> None:
        """Ends the child."""
        child, self._child = self._child, None
        if child is None:
            return
        child.kill()
        child.wait(_END_S)
        if self._reader is not None:
            self._reader.join(_END_S)
        if child.stdout is not None:
            child.stdout.close()

    def _listen(self, child: subprocess.Popen[str]) -> None:
        assert child.stdout is not None
        for line in child.stdout:
            self.last_said = line.strip()
            if self.last_said == "remount":
                self._remount()
