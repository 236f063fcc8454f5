"""Whether the collector had the tools and the privilege to see everything."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from checks.facts import NO_SUCH_TOOL, Facts, Unread
from checks.finding import Outcome, bad, ok
from checks.rules.declare import check

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from checks.commands import Reading
    from checks.node import Node

NEEDED = (
    ("ip",),
    ("rdma",),
    ("ethtool",),
    ("lspci",),
    ("ibv_devinfo",),
    ("dcb", "mlnx_qos"),
    ("mstconfig",),
    ("chronyc", "timedatectl"),
    ("dmesg", "journalctl"),
    ("ovs-vsctl",),
    ("ovs-appctl",),
    ("devlink",),
    ("ss",),
    ("systemctl",),
    ("lldpctl",),
    ("kubectl",),
    ("nvme",),
)
"""Alternatives: where none of a row is installed, checks stay UNKNOWN."""
OPTIONAL = ("nvidia-smi", "ofed_info", "mooncake_master")
_DENIED = re.compile(
    r"permission denied|operation not permitted|must be root|need root"
    r"|are you root|requires? (?:root|super-?user)",
    re.IGNORECASE,
)
_HIDDEN = "<access denied>"
_WRITE_ONLY = ("/sys/", "/dev/")
"""Also root is refused some files there: that they are write-only says nothing."""


@check(
    "meta-tools",
    group="meta",
    severity="W",
    why="a check whose tool is not installed cannot be judged: it stays UNKNOWN",
    fix=("install what is missing: iproute2 ethtool pciutils rdma-core mstflint",),
    source=("Primus node_smoke: tools it needs are named",),
    needs=("the return code of every command",),
)
def tools(node: Node, _: None) -> Outcome:
    _refuse_without_facts(node.facts)
    absent = _absent(node.facts)
    judged = [programs for programs in NEEDED if not absent.keys().isdisjoint(programs)]
    if not judged:
        raise Unread("missing", "commands", "no command was collected")
    gone = [row for row in judged if all(absent.get(name, True) for name in row)]
    without = [name for name in OPTIONAL if absent.get(name)]
    more = f"; optional and absent: {', '.join(without)}" if without else ""
    expected = "every tool that a check depends on"
    if not gone:
        return ok(f"all {len(judged)} are installed{more}", expected)
    told = "; ".join(_told(programs) for programs in gone)
    return bad(f"not installed: {told}{more}", expected)


def _refuse_without_facts(facts: Facts) -> None:
    """Where nothing could be read, it is not known either what the reason is."""
    if not facts.tells_something:
        raise Unread("missing", "facts", "nothing could be read on this node")


def _absent(facts: Facts) -> dict[str, bool]:
    """Whether a program is missing, of every program that was tried."""
    found: dict[str, bool] = {}
    for each, entry in facts.runs():
        gone = entry.get("rc") == NO_SUCH_TOOL or (
            entry.get("rc") != 0 and "command not found" in str(entry.get("stderr"))
        )
        found[each.program] = gone and found.get(each.program, True)
        if gone:
            facts.note(each.line)
    return found


def _told(programs: tuple[str, ...]) -> str:
    """`ethtool (nic-driver-consistent, nic-fec)`: what cannot be judged without it."""
    names = sorted(_dependants(programs))
    shown = ", ".join(names[:4]) + (", ..." if len(names) > 4 else "")
    title = " or ".join(programs)
    return f"{title} ({shown})" if names else title


def _dependants(programs: tuple[str, ...]) -> set[str]:
    from checks.rules import all_rules

    return {
        rule.id
        for rule in all_rules()
        for need in rule.needs
        if need.split(" ")[0] in programs
    }


@check(
    "meta-privilege",
    group="meta",
    severity="W",
    why="without root the kernel's log, PCI capabilities and firmware settings are"
    " hidden: what depends on them stays UNKNOWN",
    fix=("run it as root, or let the inventory's user use sudo -n",),
    source=("experiment: lspci, dmesg, ovs-vsctl without root",),
    needs=("collector.euid", "what was denied"),
)
def privilege(node: Node, _: None) -> Outcome:
    _refuse_without_facts(node.facts)
    euid = node.facts.collector.get("euid")
    denied = list(dict.fromkeys(_denied(node.facts, root=euid == 0)))
    shown = ", ".join(denied[:6]) + (f" and {len(denied) - 6} more" * (len(denied) > 6))
    expected = "root, and nothing denied"
    if denied:
        return bad(f"euid {euid}, denied: {shown}", expected)
    if not isinstance(euid, int):
        raise Unread("missing", "collector.euid", "not told")
    if euid != 0:
        return bad(f"euid {euid}: what only root may read is missing", expected)
    return ok("root, and nothing was denied", expected)


def _denied(facts: Facts, *, root: bool) -> Iterator[str]:
    """Commands and paths that were refused for want of privilege."""
    for each, entry in facts.runs():
        if _is_denied(each, entry):
            facts.note(each.line)
            yield each.line
    for path in facts.denied_paths():
        if not (root and path.startswith(_WRITE_ONLY)):
            facts.note(path)
            yield path


def _is_denied(each: Reading, entry: Mapping[str, Any]) -> bool:
    if each.program == "lspci" and _HIDDEN in str(entry.get("stdout", "")):
        return True
    if entry.get("rc") == 0:
        return False
    told = f"{entry.get('stderr', '')}\n{str(entry.get('stdout', ''))[:512]}"
    return _DENIED.search(told) is not None
