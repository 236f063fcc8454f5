"""What the kernel's log tells of NICs: links that come and go, sick firmware, heat.

A line that is there proves much; that none is there proves only that none is left in
the ring buffer. So a link that flapped long ago may pass, one that flapped a day long
does not. Where the log may not be read, few carrier changes since boot prove the same.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from checks.facts import Facts, Unread, derived
from checks.finding import Outcome, bad, info, ok
from checks.parse.kernel_log import Line, kernel_log
from checks.rules.declare import Subject, check
from checks.rules.optional import UNREADABLE, optional
from checks.rules.subjects import rail_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from checks.node import Node
    from checks.ports import Port

DAY_S = 24 * 3600
GRACE_S = 1800
"""Links come up in their own time after a boot (OCI's flap check waits as long)."""
FLOOD = 10
_SATURATED = 255
"""`link_downed` stops counting there (gpud PR#943)."""

_DOWN = re.compile(r"\blink(?: is| status definitely)? down\b|\blost carrier\b", re.I)
_HOT = re.compile(r"Port module event\[error\].*High Temperature")
_SICK = re.compile(
    r"Health issue observed|health_care|\bsynd 0x(?!0+\b)[0-9a-f]+"
    r"|CREATE_MKEY\S* .*no resources ?\(0xf\)"
)
_ACCESS = re.compile(r"ACCESS_REG\(0x805\)")
_NAMED = re.compile(r"\bmlx5_core ([0-9a-f]{4}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7])\b")
_WORD = re.compile(r"[\w.@-]+")


@dataclass(frozen=True, slots=True, kw_only=True)
class Nic:
    """A NIC as the log may name it; `port` is None where only the log was collected."""

    addresses: frozenset[str]
    names: frozenset[str]
    port: Port | None = None

    def is_in(self, line: Line) -> bool:
        if any(address in line.text for address in self.addresses):
            return True
        return not self.names.isdisjoint(_WORD.findall(line.text))


def each_nic(node: Node) -> list[Subject[Nic]]:
    """Selected ports; where no port was collected, the NICs that the log names."""
    return node.once("each nic of the log", lambda: _nics(node))


def _nics(node: Node) -> list[Subject[Nic]]:
    try:
        chosen = node.ports
    except Unread as error:
        named = _named_in_log(node.facts) if error.kind == "missing" else ()
        if not named:
            raise
        return [
            Subject(
                item=Nic(addresses=frozenset({bdf}), names=frozenset()),
                label=bdf,
                touches=frozenset({bdf}),
            )
            for bdf in named
        ]
    return [
        Subject(
            item=_nic(port),
            label=port.label,
            key=rail_of(node, port),
            touches=port.touches,
        )
        for port in chosen
    ]


def _nic(port: Port) -> Nic:
    addresses = {name for name in port.touches if name.count(":") == 2}
    if "bond" in port.device:  # the second leg is another function of the same card
        addresses = {address.rpartition(".")[0] for address in addresses}
    names = port.touches - addresses
    return Nic(addresses=frozenset(addresses), names=names, port=port)


@derived
def _named_in_log(facts: Facts) -> tuple[str, ...]:
    found = {
        m[1] for line in kernel_log(facts) for m in [_NAMED.search(line.text)] if m
    }
    return tuple(sorted(found))


@derived
def _matching(facts: Facts, pattern: re.Pattern[str]) -> tuple[Line, ...]:
    return tuple(line for line in kernel_log(facts) if pattern.search(line.text))


def _lines(node: Node, nic: Nic, pattern: re.Pattern[str]) -> list[Line]:
    found = [line for line in _matching(node.facts, pattern) if nic.is_in(line)]
    if not found and not (nic.addresses or len(nic.names) > 1):
        raise Unread("missing", "the NIC's PCI address", "lines cannot be matched")
    return found


@check(
    "nic-flap",
    group="nic",
    severity="E",
    why="a link that comes and goes breaks queue pairs, and moves GIDs to other slots",
    fix=("replace cable or optic", "look at the switch port", "ethtool -m NETDEV"),
    source=("R53", "AzNHC check_ib_link_flapping", "OCI HPC: 30 min grace after boot"),
    needs=(
        "dmesg -J",
        "journalctl -k -b -o json",
        "/proc/uptime",
        "/sys/class/net/*/carrier_changes",
        "/sys/class/infiniband/*/ports/*/counters/link_downed",
    ),
    over=each_nic,
)
def flap(node: Node, nic: Nic) -> Outcome:
    most = node.profile.nic.max_flaps_24h
    expected = f"at most {most} losses of link in 24 h, 30 min after boot and later"
    try:
        recent = _recent(node, _lines(node, nic, _DOWN))
    except Unread as error:
        changes = _carrier_changes(node, nic)
        if error.kind not in UNREADABLE or changes is None or changes > 2 * most:
            raise
        return ok(f"{changes} changes of carrier since boot", expected)
    told = f"{recent} losses of link in the log"
    if recent > most:
        return bad(told, expected)
    lost = _lost_just_now(node, nic)
    if lost:
        told = f"{lost} losses of link between two samples"
        return bad(told, "none", severity="" if lost > most else "W")
    return ok(told, expected)


def _recent(node: Node, downs: Sequence[Line]) -> int:
    """How many of them lie within the last day and after the grace; or have no time."""
    now = _uptime_s(node)
    return sum(
        line.t is None or (line.t >= GRACE_S and line.t >= now - DAY_S)
        for line in downs
    )


def _uptime_s(node: Node) -> float:
    """Seconds since boot; without /proc/uptime those of the newest line."""
    text = optional(lambda: node.facts.line("/proc/uptime"), UNREADABLE) or ""
    try:
        return float(text.split()[0])
    except (IndexError, ValueError):
        times = [line.t for line in kernel_log(node.facts) if line.t is not None]
        return max(times, default=0.0)


def _carrier_changes(node: Node, nic: Nic) -> int | None:
    netdev = optional(nic.port.netdev, UNREADABLE | {"empty"}) if nic.port else ""
    if not netdev:
        return None
    path = f"/sys/class/net/{netdev}/carrier_changes"
    return optional(lambda: node.facts.number(path), UNREADABLE)


def _lost_just_now(node: Node, nic: Nic) -> int:
    """Losses between first and last sample; a loss is two changes of the carrier."""
    if nic.port is None:
        return 0
    downs = _growth(node.facts, nic.port.path("counters/link_downed"))
    netdev = optional(nic.port.netdev, UNREADABLE | {"empty"})
    changes = _growth(node.facts, f"/sys/class/net/{netdev}/carrier_changes")
    return max(downs, (changes + 1) // 2)


def _growth(facts: Facts, path: str) -> int:
    samples = optional(lambda: facts.numbers(path), UNREADABLE) or ()
    values = [value for _, value in samples]
    if len(values) < 2 or ("link_downed" in path and max(values) >= _SATURATED):
        return 0
    return max(0, values[-1] - values[0])


@check(
    "nic-health",
    group="nic",
    severity="C",
    why="firmware with a fatal error, or without memory keys left, serves nobody",
    fix=("reset the NIC (mlxfwreset) or reboot", "update its firmware", "open a case"),
    source=("Mooncake troubleshooting: MKEY leak", "mlx5 health poll"),
    needs=("dmesg -J",),
    over=each_nic,
)
def health(node: Node, nic: Nic) -> Outcome:
    return _judged(node, nic, _SICK, "no complaint of the NIC's firmware")


@check(
    "nic-module-temp",
    group="nic",
    severity="E",
    why="an optic that is too hot drops its link, again and again",
    fix=("check airflow and fans", "reseat or replace the optic", "ethtool -m NETDEV"),
    source=("gpud kernel messages: module high temperature",),
    needs=("dmesg -J",),
    over=each_nic,
)
def module_temperature(node: Node, nic: Nic) -> Outcome:
    return _judged(node, nic, _HOT, "no optic that is too hot")


def _judged(node: Node, nic: Nic, pattern: re.Pattern[str], expected: str) -> Outcome:
    found = _lines(node, nic, pattern)
    if not found:
        return ok("no such line in the kernel's log", expected)
    more = f" (and {len(found) - 1} more)" if len(found) > 1 else ""
    return bad(f"{found[-1].text[:200]}{more}", expected)


@check(
    "nic-access-reg",
    group="nic",
    severity="I",
    why="somebody reads counters of a NIC that the firmware keeps to itself: the log"
    " fills, and other messages are lost",
    fix=("leave that NIC out of the monitoring", "--nics, or the profile's nics"),
    source=("R54 gpud#1164, node_exporter#3434",),
    needs=("dmesg -J",),
)
def access_reg(node: Node, _: None) -> Outcome:
    found = _matching(node.facts, _ACCESS)
    if len(found) >= FLOOD:
        return info(f"{len(found)} lines, the last: {found[-1].text[:160]}", "no flood")
    return ok(f"{len(found)} lines about refused registers", "no flood")
