"""OpenFlow tables: `ovs-ofctl dump-flows BRIDGE`.

A header (`NXST_FLOW reply (xid=0x4):`, `OFPST_FLOW reply (OF1.3) (xid=0x2):`), then one
flow a line: ` cookie=0x0, ..., n_packets=1, priority=100,udp,tp_dst=4791 actions=drop`.
Counters are `name=value, ` with a blank behind the comma; the match is the last field
before `actions=`, without blanks. There is no last line that tells the end.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from checks.facts import Facts, Unread, derived
from checks.parse.garbled import Garbled

if TYPE_CHECKING:
    from collections.abc import Mapping

_FLOW = re.compile(r"^\s*(?:.*?\s)?(\S*) actions=(\S.*)$")
_HEADER = re.compile(r"^(NXST|OFPST)_FLOW reply")
_PACKETS = re.compile(r"n_packets=(\d+)")
_TABLE = re.compile(r"\btable=(\w+)")
_WHOLE = frozenset({"drop", "NORMAL", "FLOOD", "ALL", "LOCAL"})
"""Actions that no longer action begins with: a last line of them cannot be cut."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Flow:
    """One flow; a field without a value (`udp`) has the value ""."""

    table: str
    priority: int
    match: Mapping[str, str]
    actions: str
    packets: int

    @property
    def drops(self) -> bool:
        return self.actions == "drop"

    @property
    def shown(self) -> str:
        """`table=0, priority=100,udp,tp_dst=4791 actions=drop`."""
        fields = [f"{k}={v}" if v else k for k, v in self.match.items()]
        parts = ",".join([f"priority={self.priority}", *fields])
        return f"table={self.table}, {parts} actions={self.actions}"


def parse_flows(text: str) -> tuple[Flow, ...]:
    """Every flow; a line that starts one and does not end it is garbled."""
    found = []
    for line in text.splitlines(keepends=True):
        if not line.strip() or _HEADER.match(line):
            continue
        match = _FLOW.match(line.rstrip("\n"))
        if match is None:
            raise Garbled("dump-flows", "it ends inside a flow")
        if not line.endswith("\n") and match[2] not in _WHOLE:
            raise Garbled("dump-flows", "it ends inside the actions of a flow")
        found.append(_flow(line, match[1], match[2].rstrip()))
    return tuple(found)


def _flow(line: str, match: str, actions: str) -> Flow:
    fields = {}
    for part in filter(None, match.split(",")):
        name, _, value = part.partition("=")
        fields[name] = value
    priority = fields.pop("priority", "32768")
    for noise in ("idle_age", "hard_age", "duration", "n_bytes", "n_packets"):
        fields.pop(noise, None)
    table, packets = _TABLE.search(line), _PACKETS.search(line)
    return Flow(
        table=table[1] if table else "0",
        priority=int(priority) if priority.isdigit() else 0,
        match=fields,
        actions=actions,
        packets=int(packets[1]) if packets else 0,
    )


@derived
def flows(facts: Facts, bridge: str) -> tuple[Flow, ...]:
    """The flows of one bridge; Unread where it showed none at all."""
    found = parse_flows(facts.result("ovs-ofctl", "dump-flows", bridge).text())
    if not found:
        raise Unread("empty", f"ovs-ofctl dump-flows {bridge}", "no flow in it")
    return found


def bridges_with_flows(facts: Facts) -> tuple[str, ...]:
    """Bridges whose flows were asked for."""
    found = facts.find("ovs-ofctl", "dump-flows")
    return tuple(
        sorted({r.reading.words[1] for r in found if len(r.reading.words) > 1})
    )
