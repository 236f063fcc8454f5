"""What a client of a Mooncake cluster must know: plain data that crosses processes."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Mapping

VARIABLE: Final = "MOONQUAKE_MOONCAKE_PLAN"
"""Tells it to the harness's own client where that is a role of its own."""
P2P: Final = "P2PHANDSHAKE"


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientPlan:
    """How a client with no segment of its own joins, and where the stores are.

    `master` is HOST:PORT, or etcd://HOST:PORT where masters are elected. `segments` are
    the names of the stores' segments (HOST:PORT), `hosts` the host of each store; both
    by store. `env` is what the profile says.
    """

    address: str
    master: str
    metadata: str = P2P
    segments: Mapping[str, str] = field(default_factory=dict)
    hosts: Mapping[str, str] = field(default_factory=dict)
    env: Mapping[str, str] = field(default_factory=dict)
    local_buffer_bytes: int = 16 << 20

    def store_at(self, endpoint: str) -> str:
        """The store behind an address of a replica; the address itself for a stranger.

        Replicas name the transfer engine's port, which is not the segment's.
        """
        host = endpoint.rpartition(":")[0]
        for store, segment in self.segments.items():
            if segment.rpartition(":")[0] == host:
                return store
        return endpoint

    def segments_on(self, host: str) -> list[str]:
        """The segments of a host's stores, those a writer there prefers."""
        return [self.segments[store] for store, at in self.hosts.items() if at == host]

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> ClientPlan:
        fields: dict[str, Any] = json.loads(text)
        return cls(**fields)
