"""Which xdist worker runs what: all tests of one failure domain in one worker.

A module shares one cluster, and a cluster of its own is a failure domain: modules may
run side by side, each on addresses or namespaces that its worker leased. Machines of an
inventory, and a block that was named on purpose, are one domain for everybody: then one
worker runs everything, and xdist lets the others go. `--dist loadgroup` and marks are
not safe for this: pytest-xdist 3.8 with pytest 9.2 ignores the groups silently, and
with plain `-n 2` the mark does nothing. Here names of tests decide, of which every
version has the same. The lock of the domain stands behind this scheduler, not before
it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pytest

    from chaos.options import Options

_ONE = "the hosts of this run"


def domain_of(nodeid: str, options: Options) -> str:
    """What a test must have for itself: tests of one domain never run side by side."""
    if options.target == "ssh" or options.block is not None:
        return _ONE
    return nodeid.partition("::")[0]


def domain_scheduler(config: pytest.Config, log: Any, options: Options) -> Any:
    """A scheduler that never splits a domain; xdist is imported only when used."""
    from xdist.scheduler import LoadScopeScheduling

    class DomainScheduling(LoadScopeScheduling):  # type: ignore[misc]
        """Groups tests by their failure domain."""

        def _split_scope(self, nodeid: str) -> str:
            return domain_of(nodeid, options)

    return DomainScheduling(config, log)
