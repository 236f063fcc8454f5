"""What the kernel would do with a packet."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from checks.parse.ip_route import Hop, Route
    from checks.parse.ip_rule import PolicyRule

UNREACHABLE = "Network is unreachable"
"""No route at all (ENETUNREACH), as `ip route get` words it."""

FOREIGN = "the source is no address of this node"
"""IPv4 refuses it: "Network is unreachable", in older kernels "Invalid argument"."""

ERRORS = {
    "unreachable": "No route to host",
    "prohibit": "Permission denied",
    "blackhole": "Invalid argument",
}
"""What `ip route get` says of a route of this type."""

RULE_ERRORS = {**ERRORS, "unreachable": UNREACHABLE}
"""The same for rules that refuse by themselves."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """The outcome of one lookup.

    `hops` are those among which the kernel chooses: one, but for multipath routes and
    equal default routes. Where `error` is not empty there are none.
    """

    hops: tuple[Hop, ...] = ()
    type: str = "unicast"
    error: str = ""
    table: str = ""
    rule: PolicyRule | None = None
    route: Route | None = None

    @property
    def devices(self) -> frozenset[str]:
        """Every device by which the packet may leave."""
        return frozenset(hop.dev for hop in self.hops)

    @property
    def is_local(self) -> bool:
        """It stays on this node: the destination is an address of its own."""
        return self.type == "local"

    @property
    def is_refused(self) -> bool:
        """A route or rule forbids it on purpose (blackhole, unreachable, prohibit)."""
        refusing = self.rule is not None and self.rule.action in RULE_ERRORS
        return self.error != "" and (self.route is not None or refusing)

    def leaves(self) -> str:
        """`leaves eth2`, or what the kernel answers instead."""
        if self.error:
            return f"is refused: {self.error}"
        return f"leaves {' or '.join(sorted(self.devices))}"
