"""Clocks: whether somebody keeps them, and how far they are off."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from checks.facts import Facts, Unread, first
from checks.finding import Outcome, bad, ok, skip, unknown
from checks.parse.chrony import (
    chronyd_is_silent,
    ptp_offset_s,
    says,
    timesyncd_offset_s,
    tracking,
)
from checks.rules.declare import Judged, check, fleetwide

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from checks.node import Node

_CHRONYC = "chronyc -c tracking"
_NONE = "none of chronyd, ntpd, timesyncd, ptp4l keeps the clock"


@check(
    "time-sync-daemon",
    group="time",
    severity="E",
    why="a clock that nobody keeps drifts: etcd refuses a second, leases end early",
    fix=("systemctl enable --now chronyd",),
    source=("R77 etcd: clock difference too high", "Primus node_smoke: clock daemons"),
    needs=(_CHRONYC, "timedatectl show"),
)
def daemon(node: Node, _: None) -> Outcome:
    facts = node.facts
    refused: Unread | None = None
    try:
        if not chronyd_is_silent(facts):
            tracking(facts)
            return ok("chronyd answers")
    except Unread as error:
        refused = error
    try:
        if says(facts, "NTPSynchronized"):
            return ok("the kernel's clock is kept synchronised")
        if says(facts, "NTP"):
            return ok("systemd-timesyncd is enabled")
    except Unread as error:
        raise refused or error from None
    if refused is not None:
        raise refused
    return bad(_NONE, "a daemon that keeps the clock")


@check(
    "time-offset",
    group="time",
    severity="E",
    why="etcd warns above one second; leases, deadlines and traces lose their order",
    fix=("chronyc sources; chronyc makestep", "open UDP 123 to the time servers"),
    source=("R77 etcd: clock difference too high [>1s]",),
    needs=(_CHRONYC, "timedatectl show"),
    follows=("time-sync-daemon",),
)
def offset(node: Node, _: None) -> Outcome:
    limits = node.profile.mooncake
    expected = f"within {limits.offset_warning_s:g} s, synchronised"
    try:
        told = tracking(node.facts)
    except Unread as error:
        return _without_chrony(node, error, expected)
    if not told.is_synchronised:
        return bad("chronyd: not synchronised", expected)
    return _beside(node, told.offset_s, expected)


def _without_chrony(node: Node, error: Unread, expected: str) -> Outcome:
    """Other keepers: a clock that the kernel calls unsynchronised is bad by itself."""
    facts = node.facts
    try:
        other = first(lambda: timesyncd_offset_s(facts), lambda: ptp_offset_s(facts))
    except Unread:
        other = None
    if other is not None:
        return _beside(node, other, expected)
    try:
        synchronised = says(facts, "NTPSynchronized")
    except Unread:
        raise error from None
    if error.kind in {"truncated", "garbled", "timeout"}:
        raise error
    if not synchronised:
        return bad("the kernel's clock is not synchronised", expected)
    return unknown(f"synchronised, but not told how far off ({error})", expected)


def _beside(node: Node, offset_s: float, expected: str) -> Outcome:
    limits = node.profile.mooncake
    seen = f"{offset_s:+.6f} s"
    if abs(offset_s) > limits.offset_error_s:
        return bad(seen, expected)
    if abs(offset_s) > limits.offset_warning_s:
        return bad(seen, expected, severity="W")
    return ok(seen, expected)


@fleetwide(
    "time-spread",
    group="time",
    severity="E",
    why="nodes that disagree on the time by a second disagree on leases",
    fix=("compare chronyc tracking on the nodes named",),
    source=("catalogue: wall clock bracketed by the controller",),
    needs=("node.wall", "collector.bracket"),
    follows=("time-offset", "time-sync-daemon"),
)
def spread(nodes: Sequence[Node]) -> Iterator[Judged]:
    told = {node.name: _bracketed(node.facts) for node in nodes}
    known = {name: each for name, each in told.items() if each is not None}
    for node in nodes:
        mine = known.get(node.name)
        if mine is None or len(known) < 2:
            yield Judged(node=node, outcome=_alone(node))
            continue
        yield Judged(node=node, outcome=_apart(node, mine, _others(known, node)))


def _others(known: Mapping[str, tuple[float, float]], node: Node) -> float:
    """The time of most nodes; of two, each is judged by the other."""
    if len(known) == 2:
        return next(each[0] for name, each in known.items() if name != node.name)
    ordered = sorted(each[0] for each in known.values())
    return ordered[len(ordered) // 2]


def _alone(node: Node) -> Outcome:
    if not node.facts.tells_something:
        return unknown("nothing could be read on this node")
    return skip("read locally: there is no other clock to compare with")


def _apart(node: Node, mine: tuple[float, float], middle: float) -> Outcome:
    """Off by more than the limit whatever part of the round trip it was read at."""
    limit_s = node.profile.mooncake.offset_error_s
    value, margin = mine
    seen = f"{value - middle:+.3f} s from the other nodes, read within {margin:.3f} s"
    expected = f"within {limit_s:g} s"
    least = abs(value - middle) - margin
    most = abs(value - middle) + margin
    if least > limit_s:
        return bad(seen, expected)
    if most > limit_s:
        return unknown(f"{seen}: the round trip was too slow to tell", expected)
    return ok(seen, expected)


def _bracketed(facts: Facts) -> tuple[float, float] | None:
    """How far the node is ahead of the controller, and the half of the round trip."""
    wall = facts.node.get("wall")
    seconds = wall.get("t") if isinstance(wall, Mapping) else wall
    bracket = facts.collector.get("bracket")
    if not isinstance(bracket, list) or len(bracket) != 2:
        return None
    times = [each for each in (seconds, *bracket) if isinstance(each, int | float)]
    if len(times) != 3:
        return None
    at, before, after = times
    return at - (before + after) / 2, abs(after - before) / 2
