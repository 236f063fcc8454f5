"""The lever of a run of suites: here, and on the machines of its inventory.

`chaos halt` stops every harness; where hosts belong to many controllers the lever lies
on the hosts as well. Which hosts a run has changes with its cluster.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from chaos.safety.halt import HostLever, Levers, LocalLever

if TYPE_CHECKING:
    from collections.abc import Callable

    from chaos.hosts.host import Hosts
    from chaos.safety.halt import Pulled


class RunLevers(Levers):
    """The lever of this user, the shared one of an inventory, and those of hosts.

    Hosts are those that are there when it is read.
    """

    def __init__(self, hosts: Callable[[], Hosts | None], shared: str = "") -> None:
        near = [LocalLever(), *([LocalLever(Path(shared))] if shared else [])]
        super().__init__(near)
        self._near = near
        self._hosts = hosts

    def read(self) -> Pulled | None:
        hosts = self._hosts()
        far = hosts.all if hosts is not None else ()
        self.levers = (
            *self._near,
            *(HostLever.of_agent(host.name, host.agent) for host in far),
        )
        return super().read()
