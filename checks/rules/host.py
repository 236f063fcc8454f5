"""The host itself: what its kernel and its services complain of, and its cabling."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from checks.facts import Unread
from checks.finding import Outcome, bad, ok
from checks.parse.garbled import Garbled
from checks.parse.kernel_log import kernel_log
from checks.rules.declare import NotHere, Subject, check, compared

if TYPE_CHECKING:
    from collections.abc import Iterator

    from checks.facts import Result
    from checks.node import Node

_UNITS = re.compile(
    r"^(?:openibd|mst|chronyd?|ntpd?|systemd-timesyncd|ptp4l|phc2sys|ovs.*|openvswitch.*"
    r"|kubelet|containerd|crio|nvidia-.*|mooncake.*)\.service$"
)
_OOPS = re.compile(
    r"BUG: |kernel BUG at |soft lockup|hard LOCKUP|blocked for more than \d+ seconds"
    r"|Hardware Error\]: .*(?:Uncorrected|Fatal)|EDAC .*\bUE\b|Oops: "
    r"|general protection fault"
)
_HARMLESS = re.compile(r"EDAC .*: 0 UE\b|printk: .*BUG")


@check(
    "host-oops",
    group="host",
    severity="E",
    why="a kernel that broke once this boot is not trusted with what others wait for",
    fix=("drain and reboot; memory errors: replace the DIMM named",),
    source=("Primus node_smoke: dmesg window",),
    needs=("dmesg -J",),
)
def oops(node: Node, _: None) -> Outcome:
    lines = kernel_log(node.facts)
    if not lines:
        raise Unread("empty", "dmesg -J", "the kernel's log is empty")
    found = [
        line.text.strip()
        for line in lines
        if _OOPS.search(line.text) and not _HARMLESS.search(line.text)
    ]
    expected = "no oops, lockup, hung task or memory error this boot"
    if found:
        more = f" and {len(found) - 1} more" if len(found) > 1 else ""
        return bad(f"{found[0][:160]}{more}", expected)
    return ok(f"none in {len(lines)} messages", expected)


@check(
    "host-failed-units",
    group="host",
    severity="E",
    why="a driver, clock or agent that failed to start is missed at the first need",
    fix=("systemctl status UNIT; journalctl -b -u UNIT",),
    source=("Primus node_smoke",),
    needs=("systemctl --failed --plain --no-legend",),
)
def failed_units(node: Node, _: None) -> Outcome:
    result = _failed(node)
    if "not been booted with systemd" in result.stderr:
        raise NotHere("systemd does not run here")
    if result.ended().rc != 0:
        raise Unread("failed", result.line, f"rc {result.rc}: {result.complaint}")
    if result.stdout and not result.stdout.endswith("\n"):
        raise Unread("garbled", result.line, "its last line is not whole")
    names = [words[0] for words in map(str.split, result.stdout.splitlines()) if words]
    names = [name for name in names if "." in name]
    ours = sorted(name for name in names if _UNITS.match(name))
    expected = "no failed unit that the transfers rest on"
    if ours:
        return bad(", ".join(ours), expected)
    others = f"failed, of no concern here: {', '.join(sorted(names))}" if names else ""
    return ok(others or "none failed", expected)


def _failed(node: Node) -> Result:
    for result in node.facts.find("systemctl"):
        options = result.reading.options
        if "--failed" in options or options.get("--state") == "failed":
            return result
    raise Unread("missing", "systemctl --failed", "not collected")


def _lldp_rails(node: Node) -> list[Subject[str]]:
    rails = [rail for rail in node.rails if rail.netdev]
    if not rails:
        raise NotHere("the node has no rail")
    if not node.facts.find("lldpctl"):
        raise Unread("missing", "lldpctl -f json0", "not collected")
    return [
        Subject(item=r.netdev, label=r.name, key=r.name, touches=r.touches)
        for r in rails
    ]


@compared(
    "host-lldp",
    group="host",
    severity="E",
    why="a cable in the wrong switch joins two rails: one switch then takes both down",
    fix=("move the cable to the switch that the other nodes' rail has",),
    source=("catalogue: mis-cabling",),
    needs=("lldpctl -f json0",),
    requires=("nic-port-state",),
    over=_lldp_rails,
)
def lldp(node: Node, netdev: str) -> Outcome | str:
    result = node.facts.result("lldpctl")
    if result.rc != 0 or not result.stdout.strip():
        raise NotHere(f"no LLDP daemon answers: {result.complaint}")
    seen = dict(_neighbours(result.json()))
    if netdev not in seen:
        return bad("no neighbour is heard", "a switch")
    return seen[netdev]


def _neighbours(loaded: Any) -> Iterator[tuple[str, str]]:
    """(interface, name of the switch) of `lldpctl -f json0` and of plain json."""
    found = loaded.get("lldp") if isinstance(loaded, Mapping) else None
    if found is None:
        raise Garbled("lldpctl", "no key lldp")
    for block in found if isinstance(found, list) else [found]:
        for row in _rows(block.get("interface")):
            name = str(row.get("name", ""))
            for chassis in _rows(row.get("chassis")):
                yield name, _chassis(chassis)


def _rows(value: Any) -> list[Mapping[str, Any]]:
    """A mapping, a list of mappings, or a mapping of names to mappings, as a list."""
    if isinstance(value, list):
        return [row for row in value if isinstance(row, Mapping)]
    if not isinstance(value, Mapping):
        return []
    nested: list[Mapping[str, Any]] = [
        {"name": key, **each}
        for key, each in value.items()
        if isinstance(each, Mapping)
    ]
    return nested if nested and "name" not in value else [value]


def _chassis(row: Mapping[str, Any]) -> str:
    name = row.get("name")
    if isinstance(name, list) and name and isinstance(name[0], Mapping):
        return str(name[0].get("value", ""))
    return str(name or row.get("id", "?"))
