"""The local SSD tier: mounted as on like nodes, on disks that trust themselves."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from checks.finding import Outcome, bad, ok
from checks.parse.mounts import PATH, Mount, mounts
from checks.parse.nvme import NVME, disks, parse_smart_log, smart_log
from checks.rules.declare import NotHere, Subject, check, compared

if TYPE_CHECKING:
    from checks.node import Node

_SMART = "nvme smart-log /dev/NVME -o json"
_WORN_PERCENT = 90
_SSD = re.compile(r"^/dev/(?:nvme\d|md)")


@compared(
    "disk-ssd-present",
    group="host",
    severity="E",
    why="pages that a node means to keep on its SSD go to another disk, or nowhere",
    fix=("dmesg: why it is not mounted, or read-only", "mount it by /etc/fstab"),
    source=("article: the SSD tier", "errors=remount-ro of ext4(5)"),
    needs=(PATH,),
)
def ssd_mounts(node: Node, _: None) -> str:
    """Names of devices differ from boot to boot, so only what is where is told."""
    first: dict[str, Mount] = {}
    for mount in mounts(node.facts):
        if _SSD.match(mount.device):
            first.setdefault(mount.device, mount)
    shown = [
        f"{each.place} {each.kind} {'rw' if each.writable else 'ro'}"
        for each in first.values()
    ]
    return ", ".join(sorted(shown)) or "no SSD is mounted"


def _each_disk(node: Node) -> list[Subject[str]]:
    """NVMe disks; their names are no places, so they are like no disk elsewhere."""
    found = disks(node.facts)
    if not found:
        raise NotHere("no NVMe disk")
    return [Subject(item=name, label=name) for name in found]


@check(
    "disk-smart",
    group="host",
    severity="W",
    why="a disk that wears out or reads wrong takes its pages with it, or its node",
    fix=("nvme smart-log /dev/NVME; nvme error-log /dev/NVME", "replace the disk"),
    source=("NVM Express base: SMART / Health Information", "Meta GCM: check-storage"),
    needs=(_SMART, NVME),
    over=_each_disk,
)
def smart(node: Node, disk: str) -> Outcome:
    result = smart_log(node.facts, disk)
    health = parse_smart_log(result.json(), result.line)
    expected = f"no warning or media error, less than {_WORN_PERCENT} % used"
    if health.warnings:
        return bad(", ".join(health.warnings), expected, severity="E")
    worn = f"{health.used_percent} % of its life used"
    wrong = [worn] if health.used_percent >= _WORN_PERCENT else []
    if health.media_errors:
        wrong.append(f"{health.media_errors} media errors")
    return bad(", ".join(wrong), expected) if wrong else ok(worn, expected)
