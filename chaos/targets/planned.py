"""A target on which nothing ever runs: addresses only, for `chaos plan`."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from chaos.errors import HarnessError
from chaos.systems.base import ClusterSpec
from chaos.targets.numbering import check_block, host_number

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
        self._spec = ClusterSpec()

    @property
    def capabilities(self) -> frozenset[str]:
        return frozenset()

    def why_not(self, capability: str) -> str:
        return "a plan does nothing"

    @property
    def hosts(self) -> None:
        """None: a plan of the local target."""

    def prepare(self, spec: ClusterSpec) -> None:
        """Remembers the shape."""
        check_block(spec)
        self._spec = spec

    def address(self, role: str, plane: str = "control", rail: int = 0) -> str:
        number = host_number(self._spec, role, plane, rail)
        return f"{self._prefix}.{number}"

    def python(self, role: str) -> str:
        return sys.executable

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
