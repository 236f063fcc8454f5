"""Where clusters of a run are made: one target for each cluster, of the chosen kind.

What a kind needs to import (paramiko, YAML, netlink) is imported when it is chosen.
"""

from __future__ import annotations

import getpass
import os
import secrets
import socket
from dataclasses import dataclass
from typing import TYPE_CHECKING

from chaos.report.redaction import clean_text
from chaos.targets.local import LocalTarget

if TYPE_CHECKING:
    from pathlib import Path

    from chaos.safety.ledger import Ledger
    from chaos.safety.locks import AddressBlock
    from chaos.targets.base import Target

FAULT_TTL_S = 30.0
_CONTROLLER = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """The operator's choice: a kind of target and what it needs.

    `block` is the number of a block of addresses (local) or of a fabric (netns).
    """

    kind: str = "local"
    inventory: str = ""
    fault_ttl_s: float = FAULT_TTL_S
    block: int | None = None

    @property
    def local(self) -> bool:
        return self.kind == "local"

    def target(
        self, *, run_dir: Path, ledger: Ledger, block: AddressBlock | None, command: str
    ) -> Target:
        """A new target; the local one lives on a block that the caller leased.

        `command` is how the run was started: hosts tell it to whoever is refused.
        """
        if block is not None:
            return LocalTarget(run_dir=run_dir, ledger=ledger, block=block)
        if self.kind == "netns":
            from chaos.targets.netns import NetnsTarget

            return NetnsTarget(
                run_dir=run_dir,
                run=_run_name(),
                ttl_s=self.fault_ttl_s,
                controller=_controller(command),
                block=self.block,
            )
        from chaos.targets.ssh import SshTarget

        return SshTarget(
            run_dir=run_dir,
            run=_run_name(),
            ttl_s=self.fault_ttl_s,
            controller=_controller(command),
            inventory=self.inventory,
        )


def _run_name() -> str:
    """Names one cluster of one run on every host; hosts may have many controllers."""
    return f"r{os.getpid()}-{secrets.token_hex(4)}"


def _controller(command: str) -> str:
    """Who we are. Every user of a host can read it, so no secret may be in it."""
    whole = f"{getpass.getuser()}@{socket.gethostname()}: {clean_text(command)}"
    return whole[:_CONTROLLER]
