"""What the masters of a cluster say, whichever of them leads."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from chaos.errors import HarnessError, NotHere
from chaos.systems.layout import MASTER
from chaos.systems.mooncake.admin import Admin

if TYPE_CHECKING:
    from collections.abc import Callable

    from chaos.systems.base import Process
    from chaos.systems.mooncake.layout import Addresses


class Masters:
    """The admin doors of all masters.

    Args:
        here: where they are, and the names of segments.
        process: the live process of a role, None when it is not running.
    """

    def __init__(
        self, here: Addresses, process: Callable[[str], Process | None]
    ) -> None:
        self._here = here
        self._process = process
        self.doors = {one: Admin(address=here.admin(one)) for one in here.masters}
        self._plan = here.client()

    def leader(self) -> str:
        """The master that serves now, "" when none says that it does."""
        if not self._here.shape.elected:
            return MASTER
        for master, door in self.doors.items():
            try:
                if self._process(master) and "leader" in door.role():
                    return master
            except HarnessError:
                continue
        return ""

    def door(self) -> Admin:
        """The leader's.

        Raises:
            HarnessError: No master leads.
        """
        leader = self.leader()
        if not leader:
            raise HarnessError("no master is the leader")
        return self.doors[leader]

    def mounted(self) -> set[str]:
        """The stores whose segments are mounted; none while no master answers."""
        try:
            segments = self.door().segments()
        except HarnessError:
            return set()
        return set(map(self._plan.store_at, segments)) & set(self._here.stores)

    def owned_bytes(self) -> dict[str, int]:
        """Bytes allocated on every mounted store."""
        door = self.door()
        named = {self._plan.store_at(one): one for one in door.segments()}
        return {
            store: door.used_bytes(named[store])
            for store in self._here.stores
            if store in named
        }

    def empty(self) -> bool:
        """Whether there is no object and no byte allocated."""
        keys, held = self._numbers()
        return not keys and not held

    def broken_laws(self) -> list[str]:
        """Bytes without an object; Mooncake's master tells no more of its books."""
        leader = self.leader()
        if not leader:
            return ["no master is the leader"]
        keys, held = self._numbers()
        if held and not keys:
            return [f"{leader}: {held:.0f} bytes are allocated for no object"]
        return []

    def state(self, master: str, version: str) -> dict[str, Any]:
        """What one master says of itself; asked for more, it raises `NotHere`."""
        return _Told(self.doors[master].state(), version=version)

    def answers(self, master: str) -> bool:
        return answers(self.doors[master], "/health")

    def _numbers(self) -> tuple[float, float]:
        found = self.door().metrics()
        return found.get("master_key_count", 0), found.get("master_allocated_bytes", 0)


class _Told(dict[str, Any]):
    """What a master says of itself; what it does not say, nobody can judge."""

    def __missing__(self, key: str) -> Any:
        reason = f"Mooncake's master does not tell its {key}"
        raise NotHere(capability="role_state", target="mooncake", reason=reason)


def answers(door: Admin, path: str) -> bool:
    """Whether anything good is answered at all."""
    try:
        door.text(path)
    except HarnessError:
        return False
    return True
