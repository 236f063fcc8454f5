"""Systems under test. `load_system` finds one by its name, so that nothing else has to
import it: a module `chaos.systems.<name>` with a function `system() -> System`.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any, Protocol, cast

from chaos.errors import UsageError

if TYPE_CHECKING:
    from chaos.systems.base import Cluster, ClusterSpec, KvProbe
    from chaos.targets.base import Target

__all__ = ["System", "load_system"]


class System(Protocol):
    """Starts clusters of one kind."""

    name: str

    def start(self, spec: ClusterSpec, target: Target, proxy: Any) -> Cluster:
        """A running, healthy, empty cluster; nothing is left when it fails."""
        ...

    def plan(self, spec: ClusterSpec, target: Target) -> tuple[Cluster, list[str]]:
        """The cluster as it would be, nothing started, and the commands to start it."""
        ...

    def probe(self, master: str, host: str, spec: ClusterSpec) -> KvProbe:
        """A client of the system in this process, as a writer on `host`."""
        ...


def load_system(name: str) -> System:
    """The system of that name.

    Raises:
        UsageError: There is none.
    """
    if not name.isidentifier() or name == "base":
        raise UsageError(f"no system is called {name!r}", "try --system refimpl")
    try:
        module = import_module(f"chaos.systems.{name}")
    except ModuleNotFoundError as error:
        if error.name != f"chaos.systems.{name}":
            raise
        problem = f"no system is called {name!r}"
        raise UsageError(problem, "try --system refimpl") from None
    return cast("System", module.system())
