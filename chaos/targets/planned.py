"""A target on which nothing ever runs: addresses only, for `chaos plan`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from chaos.errors import HarnessError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from chaos.systems.base import Process


class PlannedTarget:
    """The local target as it would be on a block of addresses."""

    name = "local"

    def __init__(self, run_dir: Path, prefix: str = "127.64.0") -> None:
        self.run_dir = run_dir
        self._prefix = prefix

    @property
    def capabilities(self) -> frozenset[str]:
        return frozenset()

    def address(self, host: int) -> str:
        return f"{self._prefix}.{host}"

    def spawn(
        self, role: str, argv: Sequence[str], env: Mapping[str, str] | None = None
    ) -> Process:
        """Refuses: a plan starts nothing."""
        message = f"a plan does not start {role}"
        raise HarnessError(message)

    def wait_ready(self, role: str, marker: str, *, timeout_s: float) -> str:
        """Refuses: a plan starts nothing."""
        message = f"a plan does not start {role}"
        raise HarnessError(message)

    def process(self, role: str) -> Process | None:
        return None

    def stop(self, role: str, *, timeout_s: float) -> int:
        """Nothing runs, so nothing stops."""
        return 0

    def close(self) -> None:
        """Nothing to end."""
