"""Which host number of a /24 block a role has, on targets where one block holds all.

The harness's own client is number 1, the master 2, other masters follow, etcd is 8;
every rail of a store has a number of its own from 10 on, engines from 200. A role has
one address for all its planes but data; a store's is that of its first rail.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from chaos.errors import UsageError

if TYPE_CHECKING:
    from chaos.systems.base import ClusterSpec

_PROBE = 1
_MASTER = 2
_ETCD = 8
_FIRST_STORE = 10
_FIRST_ENGINE = 200
_LAST = 254


def check_block(spec: ClusterSpec) -> None:
    """Refuses a shape that does not fit into a block.

    Raises:
        UsageError: Too many stores, rails or engines.
    """
    last_store = _FIRST_STORE + spec.stores * spec.rails - 1
    last_engine = _FIRST_ENGINE + spec.engines - 1
    if last_store >= _FIRST_ENGINE or last_engine > _LAST:
        problem = f"{spec.stores} stores of {spec.rails} rails and {spec.engines}"
        raise UsageError(f"{problem} engines do not fit into one block")


def host_number(spec: ClusterSpec, role: str, plane: str, rail: int) -> int:
    """The number of a role in its block; `rail` counts on the data plane only."""
    kind, _, text = role.partition("-")
    if kind == "store":
        which = rail if plane == "data" else 0
        return _FIRST_STORE + int(text) * spec.rails + which
    if kind == "engine":
        return _FIRST_ENGINE + int(text)
    if kind == "master":
        return _MASTER + int(text or 0)
    return _ETCD if kind == "etcd" else _PROBE
