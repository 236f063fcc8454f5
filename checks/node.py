"""A node as rules see it: its facts, its ports and rails, and the profile."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeVar

from checks.facts import Facts, Unread
from checks.parse.services import environment
from checks.rails import Rail, RailName, rails
from checks.selector import Selection, select

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from checks.ports import Port
    from checks.profile import Profile

T = TypeVar("T")
_NO_VIRT = frozenset({"", "none"})


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Node:
    """One node; `name` is its hostname, made unique within the fleet."""

    name: str
    facts: Facts
    profile: Profile
    nics: tuple[str, ...] = ()
    rail_names: tuple[RailName, ...] = ()
    _mark: object = field(default_factory=object, repr=False)

    @property
    def selection(self) -> Selection:
        """Which RDMA ports are judged; Unread where the ports cannot be told."""
        return self.once("selection", self._select)

    @property
    def ports(self) -> tuple[Port, ...]:
        """The RDMA ports that are judged."""
        return self.selection.chosen

    @property
    def rails(self) -> tuple[Rail, ...]:
        """The rails that are judged; also where only the IP side was collected."""
        return self.once("rails", self._rails)

    @property
    def env(self) -> Mapping[str, str]:
        """The allow-listed variables of its Mooncake and engine processes."""
        return environment(self.facts)

    @property
    def virt(self) -> str:
        """The kind of virtual machine, "none" on bare metal; Unread if unknown."""
        said = self.facts.said("virt")
        if said:
            return said
        result = self.facts.result("systemd-detect-virt").ended()
        return result.stdout.strip() or "none"

    @property
    def is_vm(self) -> bool:
        """It runs in a virtual machine; Unread if unknown."""
        return self.virt not in _NO_VIRT

    def once(self, key: str, build: Callable[[], T]) -> T:
        """Builds once what depends on facts and on what was asked for besides them."""
        return self.facts.once((self._mark, key), build)

    def _select(self) -> Selection:
        """Nothing but facts and names decides: kept facts are asked once for both."""
        nics, profile = self.nics, tuple(self.profile.nics)
        return self.facts.once(
            ("selection", nics, profile), lambda: select(self.facts, nics, profile)
        )

    def _rails(self) -> tuple[Rail, ...]:
        chosen: Selection | None
        try:
            chosen = self.selection
        except Unread:
            chosen = None
        named = (*self.rail_names, *_of_profile(self.profile))
        asked = (*self.nics, *self.profile.nics)
        return rails(self.facts, chosen, named, asked)


def _of_profile(profile: Profile) -> Sequence[RailName]:
    return [
        RailName(
            name=each.name,
            device=each.device,
            netdev=each.netdev,
            bdf=each.bdf,
            mac=each.mac,
            address=each.address,
        )
        for each in profile.rails
    ]
