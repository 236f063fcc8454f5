"""The local SSD tier: whether its file systems are mounted as on like nodes."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from checks.parse.mounts import PATH, Mount, mounts
from checks.rules.declare import compared

if TYPE_CHECKING:
    from checks.node import Node

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
