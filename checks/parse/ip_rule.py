"""`ip -j rule`: policy routing rules.

No restriction is `"src":"all"`; `srclen` only when shorter than a host's; `not`, `nop`,
`l3mdev` and `unresolved` are keys with the value null; marks are hexadecimal text;
tables are text; a rule that refuses has `action` (`to_tbl` in old versions), no table.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from ipaddress import ip_network
from typing import TYPE_CHECKING, Any

from checks.facts import Facts, Unread, derived
from checks.parse.garbled import Garbled
from checks.parse.rt_tables import canonical_table, type_of_service

if TYPE_CHECKING:
    from checks.parse.ip_route import Network

SOURCE = "ip -j -4 rule"


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyRule:
    """One rule. `goto` and `suppress_prefixlen` are None where it has none."""

    priority: int
    inverted: bool
    src: Network | None
    dst: Network | None
    iif: str
    oif: str
    mark: int
    mask: int
    tos: int
    ipproto: str
    ports: tuple[str, ...]
    uids: str
    l3mdev: bool
    detached: bool
    table: str
    action: str
    goto: int | None
    suppress_prefixlen: int | None
    suppress_ifgroup: str


def parse_rules(
    rows: Any, *, version: int, names: Mapping[str, str]
) -> tuple[PolicyRule, ...]:
    """Rules by priority, stable for equal ones."""
    if not isinstance(rows, list):
        raise Garbled(SOURCE, "no list of rules")
    found = [_rule(row, version, names) for row in rows if row]
    return tuple(sorted(found, key=lambda each: each.priority))


def rules(facts: Facts, version: int = 4, where: str = "") -> tuple[PolicyRule, ...]:
    """The rules of one family; without a family `ip rule` shows IPv4."""
    return _rules(facts, version, where)


@derived
def _rules(facts: Facts, version: int, where: str) -> tuple[PolicyRule, ...]:
    every = [
        r
        for r in facts.find("ip", "rule", where=where)
        if (r.reading.family or 4) == version
    ]
    if not every:
        raise Unread("missing", SOURCE.replace("4", str(version)), "not collected")
    names = canonical_table(facts)
    return parse_rules(every[0].json(), version=version, names=names)


def _rule(row: Any, version: int, names: Mapping[str, str]) -> PolicyRule:
    if not isinstance(row, Mapping) or not isinstance(row.get("priority"), int):
        raise Garbled(SOURCE, "a rule without a priority")
    table = str(row.get("table", ""))
    return PolicyRule(
        priority=row["priority"],
        inverted="not" in row,
        src=_prefix(row, "src", version),
        dst=_prefix(row, "dst", version),
        iif=str(row.get("iif", "")),
        oif=str(row.get("oif", "")),
        mark=int(str(row.get("fwmark", "0")), 0),
        mask=int(str(row.get("fwmask", "0xffffffff")), 0) if "fwmark" in row else 0,
        tos=type_of_service(str(row.get("tos", row.get("dsfield", "0"))), SOURCE),
        ipproto=str(row.get("ipproto", "")),
        ports=_ports(row),
        uids=f"{row.get('uid_start', '')}-{row.get('uid_end', '')}".strip("-"),
        l3mdev="l3mdev" in row,
        detached="iif_detached" in row or "oif_detached" in row,
        table=names.get(table, table),
        action="nop" if "nop" in row else str(row.get("action", row.get("to_tbl", ""))),
        goto=int(row["goto"]) if str(row.get("goto", "")).isdigit() else None,
        suppress_prefixlen=_number(row, "suppress_prefixlen", "suppress_prefixlength"),
        suppress_ifgroup=str(row.get("suppress_ifgroup", "")),
    )


def _prefix(row: Mapping[str, Any], end: str, version: int) -> Network | None:
    """The prefix of one end; None for `all` without a length."""
    address = str(row.get(end, "all"))
    length = row.get(f"{end}len")
    if address == "all" and length is None:
        return None
    if address in {"all", "0", "default"}:
        address = "0.0.0.0" if version == 4 else "::"
    host = 32 if version == 4 else 128
    try:
        return ip_network(
            f"{address}/{host if length is None else length}", strict=False
        )
    except ValueError as error:
        raise Garbled(SOURCE, str(error)) from None


def _ports(row: Mapping[str, Any]) -> tuple[str, ...]:
    keys = ("sport", "sport_start", "sport_end", "dport", "dport_start", "dport_end")
    return tuple(f"{key}={row[key]}" for key in keys if key in row)


def _number(row: Mapping[str, Any], *keys: str) -> int | None:
    return next((int(row[key]) for key in keys if key in row), None)
