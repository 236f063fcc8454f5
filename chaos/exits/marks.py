"""How a run that is to be ended, and who ends it, tell each other where they are.

Files in one directory: `<phase>` says that the run is there, `go-<phase>` lets it
go on.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from chaos.safety.identity import wait_until

_POLL_S = 0.01


class Marks:
    """One end of the directory; it must be there."""

    def __init__(self, directory: Path | str) -> None:
        self._directory = Path(directory)

    def tell(self, phase: str, **what: Any) -> None:
        """Whole or not at all: the reader polls."""
        half = self._directory / f".{phase}"
        half.write_text(json.dumps(what), encoding="utf-8")
        half.rename(self._directory / phase)

    def told(self, phase: str) -> dict[str, Any] | None:
        """What was told of a phase, None when the run is not there yet."""
        try:
            text = (self._directory / phase).read_text(encoding="utf-8")
        except FileNotFoundError:
            return None
        found: dict[str, Any] = json.loads(text)
        return found

    def go(self, phase: str) -> None:
        (self._directory / f"go-{phase}").touch()

    def wait_for_go(self, phase: str, *, timeout_s: float) -> bool:
        gone = self._directory / f"go-{phase}"
        return wait_until(gone.exists, timeout_s=timeout_s, poll_s=_POLL_S)
