"""The nftables tables of faults, as text: pure, nothing is run here.

Every fault has a table of its own, `inet moonquake_<run>_<fault>`, so that undoing one
never touches another, or anything that is not ours: nothing is ever flushed. What a
rule acts on stands in sets whose elements carry a timeout, so the kernel itself ends
the fault when nobody renews it; a rule without elements matches nothing. The first
rules of each chain spare the management plane. Every acting rule counts what it hit.

An element is deleted and added again in one transaction to be renewed, because a bare
`add` leaves the old timeout on older kernels; the `add` in front lets the transaction
pass when the element has expired meanwhile.
"""

from __future__ import annotations

import ipaddress
import json
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from chaos.errors import UsageError
from chaos.faults.steps import Step, command, run

if TYPE_CHECKING:
    from collections.abc import Sequence

    from chaos.faults.steps import Action

PREFIX = "moonquake"
#: Before connection tracking (-200) would be too early for nobody: we keep no state.
#: Before mangle (-150), so that no rule of the host hides a packet from us.
_PRIORITY = -190
_COUNTERS = {"in": "hit_in", "out": "hit_out"}
_HOOKS = {"in": "input", "out": "output"}
#: A TCP segment as the kernel hands it on may have 64 KiB: no smaller bucket passes it.
LEAST_BURST_BYTES = 128 << 10


@dataclass(frozen=True, slots=True, kw_only=True)
class Match:
    """Packets by device and by socket, as this host sees them: its own end is local.

    What is empty is not looked at. Ports are TCP ports.
    """

    device: str = ""
    local: str = ""
    local_port: int = 0
    remote: str = ""
    remote_port: int = 0

    def __str__(self) -> str:
        here = f"{self.local or '*'}:{self.local_port or '*'}"
        there = f"{self.remote or '*'}:{self.remote_port or '*'}"
        return f"{self.device or 'any device'} {here} <-> {there}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Effect:
    """What becomes of matched packets, after counting; `share` of them, where less."""

    verdict: str = "drop"
    share: float = 1.0
    bytes_per_s: int = 0
    directions: tuple[str, ...] = ("in", "out")


DROP = Effect()
RESET = Effect(verdict="reject with tcp reset")
COUNT = Effect(verdict="")


@dataclass(frozen=True, slots=True, kw_only=True)
class Spare:
    """The management plane: what no rule of ours may ever touch."""

    peers: tuple[str, ...] = ()
    ports: tuple[int, ...] = (22,)
    services: tuple[int, ...] = (53, 123)


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """One fault's table on one host."""

    name: str
    matches: tuple[Match, ...]
    effect: Effect
    ttl_s: float
    spare: Spare


def table_name(run_id: str, fault_id: str) -> str:
    """A name that nft takes, of any run and fault."""
    text = f"{PREFIX}_{run_id}_{fault_id}"
    return re.sub(r"[^A-Za-z0-9_]", "_", text)[:120]


def step(table: Table) -> Step:
    """Makes the table; deleting it is the undoing, and is not an error twice."""
    return Step(
        do=_nft(create(table)),
        undo=_nft(delete(table.name)),
        verify=command("nft", "list", "tables", lacks=f"inet {table.name}\n"),
        renew=_nft(renew(table)),
    )


def create(table: Table) -> str:
    """The whole table in one transaction.

    Raises:
        UsageError: Nothing is matched, or a match would be everything.
    """
    if not table.matches:
        raise UsageError(f"{table.name}: nothing to act on")
    name, sets = table.name, _sets(table)
    lines = [f"add table inet {name}"]
    lines += [f"add counter inet {name} {counter}" for counter in _COUNTERS.values()]
    lines += [f"add set inet {name} {s.name} {s.definition}" for s in sets]
    for direction in table.effect.directions:
        chain = _HOOKS[direction]
        hook = f"type filter hook {chain} priority {_PRIORITY}; policy accept;"
        lines.append(f"add chain inet {name} {chain} {{ {hook} }}")
        rules = [*_spared(table.spare, direction), *_acting(table, sets, direction)]
        lines += [f"add rule inet {name} {chain} {rule}" for rule in rules]
    return "\n".join([*lines, *_elements(table, sets)]) + "\n"


def renew(table: Table) -> str:
    """Puts every timeout back to its beginning, in one transaction."""
    lines: list[str] = []
    for one in _sets(table):
        target = f"element inet {table.name} {one.name}"
        bare = f"{{ {', '.join(one.keys)} }}"
        lines += [f"add {target} {bare}", f"delete {target} {bare}"]
    return "\n".join([*lines, *_elements(table, _sets(table))]) + "\n"


def delete(name: str) -> str:
    """Deletes the table, there or not."""
    return f"add table inet {name}\ndelete table inet {name}\n"


def counters_of(table: str) -> tuple[str, ...]:
    """The command that reads a table's counters."""
    return ("nft", "-j", "list", "counters", "table", "inet", table)


def read_counters(stdout: str) -> tuple[int, int]:
    """Packets and bytes that the rules hit, both ways."""
    rows = [row.get("counter") for row in json.loads(stdout).get("nftables", [])]
    counters = [row for row in rows if row and row["name"] in _COUNTERS.values()]
    return (
        sum(int(row["packets"]) for row in counters),
        sum(int(row["bytes"]) for row in counters),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Set:
    """Matches of one shape: which fields they have, and the family of addresses."""

    name: str
    fields: tuple[str, ...]
    family: int
    keys: tuple[str, ...]

    @property
    def definition(self) -> str:
        address = "ipv6_addr" if self.family == 6 else "ipv4_addr"
        kinds = {"device": "ifname", "local": address, "remote": address}
        types = [kinds.get(field, "inet_service") for field in self.fields]
        return f"{{ type {' . '.join(types)}; flags timeout; }}"

    def expression(self, direction: str) -> str:
        """How the packet is looked up, in the words of its direction."""
        ip = "ip6" if self.family == 6 else "ip"
        arriving = direction == "in"
        words = {
            "device": "iifname" if arriving else "oifname",
            "local": f"{ip} {'daddr' if arriving else 'saddr'}",
            "local_port": f"tcp {'dport' if arriving else 'sport'}",
            "remote": f"{ip} {'saddr' if arriving else 'daddr'}",
            "remote_port": f"tcp {'sport' if arriving else 'dport'}",
        }
        return f"{' . '.join(words[field] for field in self.fields)} @{self.name}"


_FIELDS = ("device", "local", "local_port", "remote", "remote_port")


def _sets(table: Table) -> list[_Set]:
    """One set a shape; under a rate one a match, because each match has its own."""
    grouped: dict[tuple[object, ...], list[Match]] = {}
    for number, match in enumerate(table.matches):
        shape = (_shape(match), _family(match))
        own = number if table.effect.bytes_per_s else 0
        grouped.setdefault((*shape, own), []).append(match)
    return [
        _Set(
            name=f"on_{number}",
            fields=_shape(matches[0]),
            family=_family(matches[0]),
            keys=tuple(_key(match) for match in matches),
        )
        for number, matches in enumerate(grouped.values())
    ]


def _shape(match: Match) -> tuple[str, ...]:
    fields = tuple(field for field in _FIELDS if getattr(match, field))
    if not fields:
        raise UsageError("a match without a device, address or port is everything")
    return fields


def _family(match: Match) -> int:
    """4 or 6; mixing them in one match is nobody's packet."""
    found = {
        ipaddress.ip_address(address).version
        for address in (match.local, match.remote)
        if address
    }
    if len(found) > 1:
        raise UsageError(f"{match}: addresses of two families")
    return found.pop() if found else 4


def _key(match: Match) -> str:
    parts = [(field, getattr(match, field)) for field in _shape(match)]
    return " . ".join(
        f'"{device_name(value)}"' if field == "device" else str(value)
        for field, value in parts
    )


def device_name(name: str) -> str:
    """A name as Linux has them, and no pattern: nft takes a trailing `*` as one.

    Raises:
        UsageError: It is none.
    """
    if not re.fullmatch(r"[A-Za-z0-9_.@:-]{1,15}", name):
        raise UsageError(f"{name!r} is no name of a network device")
    return name


def _spared(spare: Spare, direction: str) -> list[str]:
    arriving = direction == "in"
    ours, theirs = ("dport", "sport") if arriving else ("sport", "dport")
    address = "saddr" if arriving else "daddr"
    rules = [f'{"iifname" if arriving else "oifname"} "lo" accept']
    for peer in spare.peers:
        ip = "ip6" if ipaddress.ip_address(peer).version == 6 else "ip"
        rules.append(f"{ip} {address} {peer} accept")
    rules.append("meta l4proto icmpv6 accept")
    if spare.ports:
        rules.append(f"tcp {ours} {_braces(spare.ports)} accept")
    if spare.services:
        rules += [f"{p} {theirs} {_braces(spare.services)} accept" for p in _L4]
        rules += [f"udp {ours} {_braces(spare.services)} accept"]
    return rules


_L4 = ("udp", "tcp")


def _braces(ports: Sequence[int]) -> str:
    return "{ " + ", ".join(str(port) for port in sorted(set(ports))) + " }"


def _acting(table: Table, sets: Sequence[_Set], direction: str) -> list[str]:
    effect = table.effect
    words = [f"counter name {_COUNTERS[direction]}", effect.verdict]
    if effect.verdict.startswith("reject"):
        # Our own RST leaves through the other chain: it must not be met there again.
        words.insert(0, "tcp flags & rst == 0")
    if effect.share < 1.0:
        words.insert(0, f"numgen random mod 10000 < {round(effect.share * 10000)}")
    if effect.bytes_per_s:
        burst = max(LEAST_BURST_BYTES, effect.bytes_per_s // 10)
        limit = f"limit rate over {effect.bytes_per_s} bytes/second burst {burst} bytes"
        words.insert(0, limit)
    tail = " ".join(word for word in words if word)
    return [f"{one.expression(direction)} {tail}" for one in sets]


def _elements(table: Table, sets: Sequence[_Set]) -> list[str]:
    timeout = f"timeout {max(1, round(table.ttl_s * 1000))}ms"
    return [
        f"add element inet {table.name} {one.name}"
        f" {{ {', '.join(f'{key} {timeout}' for key in one.keys)} }}"
        for one in sets
    ]


def _nft(script: str) -> Action:
    return run("nft", "-f", "-", stdin=script)
