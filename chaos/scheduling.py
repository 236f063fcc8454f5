"""Which xdist worker runs what: all tests of one module in one worker.

A module shares one cluster, and a cluster is a failure domain. `--dist loadgroup` and
marks are not safe for this: pytest-xdist 3.8 with pytest 9.2 ignores the groups
silently, and with plain `-n 2` the mark does nothing. The lock of the domain stands
behind this scheduler, not before it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pytest


def module_scheduler(config: pytest.Config, log: Any) -> Any:
    """A scheduler that never splits a module; xdist is imported only when used."""
    from xdist.scheduler import LoadScopeScheduling

    class ModuleScheduling(LoadScopeScheduling):  # type: ignore[misc]
        """Groups tests by the file before the first `::`."""

        def _split_scope(self, nodeid: str) -> str:
            return nodeid.partition("::")[0]

    return ModuleScheduling(config, log)
