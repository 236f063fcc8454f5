"""What a client of a Mooncake cluster must know: plain data that crosses processes."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

VARIABLE: Final = "MOONQUAKE_MOONCAKE_PLAN"
"""Tells it to the harness's own client where that is a role of its own."""
P2P: Final = "P2PHANDSHAKE"


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientPlan:
    """How a client with no segment of its own joins, and where the stores are.

    `master` is HOST:PORT, or etcd://HOST:PORT where masters are elected. `stores` is
    the address of each store, `hosts` the host of each. A store names its segment by a
    port that Mooncake draws: `admins`, the masters' HTTP, know them. `env` is what the
    profile says.
    """

    address: str
    master: str
    metadata: str = P2P
    stores: Mapping[str, str] = field(default_factory=dict)
    hosts: Mapping[str, str] = field(default_factory=dict)
    admins: Sequence[str] = ()
    env: Mapping[str, str] = field(default_factory=dict)
    local_buffer_bytes: int = 16 << 20

    def store_at(self, endpoint: str) -> str:
        """The store behind HOST:PORT, whatever the port; a stranger stays as it is."""
        host = endpoint.rpartition(":")[0]
        for store, address in self.stores.items():
            if address == host:
                return store
        return endpoint

    def stores_on(self, host: str) -> list[str]:
        """The stores of a host, those a writer there prefers."""
        return [store for store, at in self.hosts.items() if at == host]

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> ClientPlan:
        fields: dict[str, Any] = json.loads(text)
        return cls(**{**fields, "admins": tuple(fields["admins"])})
