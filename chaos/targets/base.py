"""Where a system runs: what a target must offer to a system that starts roles there."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from chaos.systems.base import Process


class Target(Protocol):
    """Starts, watches and ends the processes of roles; durations are real seconds."""

    name: str
    run_dir: Path

    @property
    def capabilities(self) -> frozenset[str]:
        """What can be done here, in the words of `@pytest.mark.requires`."""
        ...

    def address(self, host: int) -> str:
        """The address of the host of that number, 1..254."""
        ...

    def spawn(
        self, role: str, argv: Sequence[str], env: Mapping[str, str] | None = None
    ) -> Process:
        """Starts a role and returns at once; `env` is added to ours."""
        ...

    def wait_ready(self, role: str, marker: str, *, timeout_s: float) -> str:
        """The first line of a role's output that has the marker."""
        ...

    def process(self, role: str) -> Process | None:
        """The live process of a role, None when there is none."""
        ...

    def stop(self, role: str, *, timeout_s: float) -> int:
        """Ends a role orderly, in the end by force; returns its exit code."""
        ...

    def close(self) -> None:
        """Ends everything that was started here."""
        ...
