"""port_taken on hosts: a role ends, and somebody sits on its address when it comes.

What a role does then is its own affair; ours end at once and name the port.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from chaos.errors import ProcessFailed, UsageError
from chaos.faults.host_fault import HostFault, Part
from chaos.faults.host_process import come_back, is_back
from chaos.faults.steps import Step, end, gone, operation

if TYPE_CHECKING:
    from chaos.hosts.host import Host
    from chaos.safety.management import HostFacts
    from chaos.systems.base import Cluster

_SQUATTER = "listen"


class HostPortTaken(HostFault):
    """Somebody listens on the first address of a role while it starts again."""

    kind = "port_taken"
    measure = "starts that failed"

    def __init__(self, cluster: Cluster, role: str) -> None:
        sockets = [link.upstream for link in cluster.links if link.owner == role]
        if not sockets:
            raise UsageError(f"no link is owned by {role}: no port of it is known")
        super().__init__(cluster, f"{role} at {sockets[0]}")
        self._role = role
        self._host = self._hosts.of(role)
        address, _, port = sockets[0].rpartition(":")
        self._socket = (address.strip("[]"), int(port))
        self._refused = ""

    def hosts(self) -> list[Host]:
        return [self._host]

    def steps(self, host: Host, facts: HostFacts) -> list[Step]:
        address, port = self._socket
        action = operation("listen", name=_SQUATTER, address=address, port=port)
        return [Step(do=action, undo=end(_SQUATTER), verify=gone(_SQUATTER))]

    def inject(self) -> None:
        if self._cluster.process(self._role) is not None:
            self._cluster.stop_role(self._role)
        super().inject()
        try:
            self._cluster.start_role(self._role)
        except ProcessFailed as error:  # a host that is not reached is no evidence
            self._refused = str(error)

    def effect(self, part: Part) -> tuple[float, str]:
        failed = bool(self._refused) and self._cluster.process(self._role) is None
        return float(failed), self._refused or "it started all the same"

    def revert(self) -> None:
        super().revert()
        come_back(self._cluster, self._role)

    def verify_reverted(self) -> str:
        return super().verify_reverted() or is_back(self._cluster, self._role)
