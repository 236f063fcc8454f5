"""A compat client's line to the pool: names to keys, calls to codes, one deadline.

Users think in names; the pool in 32-byte keys. A name is hashed with its tenant, and
sent along with a put so that it can be listed (`get_all_keys`, `remove_by_regex`).
"""

from __future__ import annotations

import dataclasses
import os
import re
from typing import TYPE_CHECKING, Final

from refimpl.client import ClientSettings, PoolClient
from refimpl.client.rpc import RpcFailed
from refimpl.compat.options import DEFAULT_TENANT
from refimpl.core.codes import Code
from refimpl.core.hashing import object_key
from refimpl.security.options import ClientSecurity

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy as np
    from numpy.typing import NDArray

    from refimpl.client import Lookup, MasterFacts, PutResult, Reservation
    from refimpl.client.buffers import Buffers
    from refimpl.compat.config import ReplicateConfig

TIMEOUT_VARIABLE: Final = "REFIMPL_COMPAT_TIMEOUT_S"
_TIMEOUT_S: Final = 10.0
"""Of each call, lookup and transfer together; upstream's own bounds are 30 and 60 s."""
_TENANT_MARK: Final = "\x1f"
"""Between tenant and name; a control character that no sane name has."""
_REMOVED_AT_ONCE: Final = 4096


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Naming:
    """How the names of one tenant become keys of the pool, and back."""

    tenant: str = DEFAULT_TENANT

    @property
    def prefix(self) -> str:
        """What the pool's names of this tenant begin with."""
        return "" if self.tenant == DEFAULT_TENANT else self.tenant + _TENANT_MARK

    def full(self, name: str) -> str:
        """The name that the pool knows; one with the mark in it is marked as ours."""
        if not self.prefix and _TENANT_MARK in name:
            return _TENANT_MARK + name
        return self.prefix + name

    def keys(self, names: Sequence[str]) -> bytes:
        """Packed keys."""
        return b"".join(object_key(self.full(name)) for name in names)

    def mine(self, names: Sequence[str]) -> list[str]:
        """The names of this tenant among all of the pool's, as its users know them."""
        if self.prefix:
            cut = len(self.prefix)
            return [n[cut:] for n in names if n.startswith(self.prefix)]
        parted = [name.partition(_TENANT_MARK) for name in names]
        return [
            rest if mark else name for name, mark, rest in parted if not (name and mark)
        ]


class Link:
    """Calls of one client, in names.

    Args:
        master: HOST:PORT of the master's RPC.
        tenant: whose names these are.
        host_id: failure domain of this process.
        timeout_s: of each call; None takes the environment's, else 10 s.

    Raises:
        UsageError: certificates or secrets of the environment are no good.
        RpcFailed: no master answers there.
    """

    def __init__(
        self,
        master: str,
        *,
        tenant: str = DEFAULT_TENANT,
        host_id: str = "",
        timeout_s: float | None = None,
    ) -> None:
        self.timeout_s = _timeout_s() if timeout_s is None else timeout_s
        self.naming = Naming(tenant=tenant)
        security = ClientSecurity.from_env()

        def client(settings: ClientSettings) -> PoolClient:
            return PoolClient(
                master,
                host_id=host_id,
                settings=settings,
                tls=security.tls,
                data_secret=security.data_secret,
            )

        first = client(ClientSettings())
        try:
            self.facts: MasterFacts = first.describe(self.timeout_s)
        except RpcFailed:
            first.close()
            raise
        if self.facts.time_scale == 1.0:
            self.pool = first
        else:
            first.close()
            self.pool = client(ClientSettings().scaled(self.facts.time_scale))

    def close(self) -> None:
        """Closes the channel and idle connections."""
        self.pool.close()

    def is_healthy(self) -> bool:
        """Whether the master answers."""
        try:
            self.pool.describe(min(self.timeout_s, 1.0))
        except RpcFailed:
            return False
        return True

    def lookup(self, names: Sequence[str]) -> Lookup:
        """Where objects are; grants leases, as every query of upstream's does."""
        return self.pool.lookup(self.naming.keys(names), timeout_s=self.timeout_s)

    def get(
        self, names: Sequence[str], buffers: Buffers, found: Lookup
    ) -> NDArray[np.int16]:
        """Reads whole objects that were just looked up."""
        keys = self.naming.keys(names)
        result = self.pool.get(keys, buffers, timeout_s=self.timeout_s, found=found)
        return result.codes

    def get_ranges(
        self,
        found: Lookup,
        rows: Sequence[int],
        offsets: Sequence[int],
        buffers: Buffers,
    ) -> NDArray[np.int16]:
        """Reads ranges of objects that were looked up."""
        return self.pool.get_ranges(
            found, rows, offsets, buffers, timeout_s=self.timeout_s
        )

    def put(
        self, names: Sequence[str], buffers: Buffers, config: ReplicateConfig
    ) -> list[int]:
        """Writes objects; one that exists keeps its bytes, and that is success."""
        result: PutResult = self.pool.put(
            self.naming.keys(names),
            buffers,
            timeout_s=self.timeout_s,
            replicas=config.replicas,
            pin=config.pin,
            prefer=config.preferred,
            names=[self.naming.full(name) for name in names],
        )
        codes = result.codes.astype(int)
        codes[codes == Code.OBJECT_ALREADY_EXISTS] = Code.OK
        found: list[int] = codes.tolist()
        return found

    def reserve(
        self, names: Sequence[str], buffers: Buffers, config: ReplicateConfig
    ) -> Reservation:
        """Takes places for objects whose bytes come later."""
        return self.pool.reserve(
            self.naming.keys(names),
            buffers,
            timeout_s=self.timeout_s,
            replicas=config.replicas,
            pin=config.pin,
            prefer=config.preferred,
            names=[self.naming.full(name) for name in names],
        )

    def remove(self, names: Sequence[str], *, force: bool) -> list[int]:
        """Removes objects; a code each."""
        codes = self.pool.remove(
            self.naming.keys(names), timeout_s=self.timeout_s, force=force
        )
        found: list[int] = codes.astype(int).tolist()
        return found

    def remove_matching(self, pattern: str, *, force: bool) -> int:
        """Removes the tenant's objects whose name the pattern is found in.

        The pattern runs here, not in the master: one that takes for ever costs its
        caller time and nobody else. Answers how many were removed, or a code.
        """
        try:
            wanted = re.compile(pattern)
            names = self.naming.mine(self.pool.names(self.timeout_s))
        except re.error:
            return Code.INVALID_PARAMS
        except RpcFailed as error:
            return error.code
        chosen = [name for name in names if wanted.search(name)]
        removed = 0
        for at in range(0, len(chosen), _REMOVED_AT_ONCE):
            codes = self.remove(chosen[at : at + _REMOVED_AT_ONCE], force=force)
            removed += codes.count(Code.OK)
        return removed

    def remove_all(self, *, force: bool) -> int:
        """Removes every object; of one tenant those with its names."""
        if self.naming.prefix:
            return self.remove_matching("", force=force)
        return self.pool.remove_all(self.timeout_s, force=force)


def _timeout_s() -> float:
    text = os.environ.get(TIMEOUT_VARIABLE, "")
    try:
        seconds = float(text) if text else _TIMEOUT_S
    except ValueError:
        return _TIMEOUT_S
    return seconds if seconds > 0 else _TIMEOUT_S
