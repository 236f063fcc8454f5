"""Whether ACS is off because of what runs at every boot, and ran at this one."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from checks.facts import Facts, Unread
from checks.finding import Outcome, bad, ok
from checks.parse.kernel_log import kernel_log
from checks.parse.systemd_unit import Unit, unit
from checks.rules.declare import NotHere, check

if TYPE_CHECKING:
    from checks.node import Node

_UNIT = "disable-pcie-acs.service"
_SHOW = (
    "systemctl show --property=LoadState --property=UnitFileState"
    f" --property=Result --property=ExecMainStartTimestampMonotonic {_UNIT}"
)
_PLUGGED = re.compile(
    # Kernels before 5.2 name the service, and those before 4.20 the card first.
    r"pciehp\b.*?(?:[Ss]lot\([^)]*\):? (?:Card present|Link Up)|Card present on Slot\()"
)
_UNTOLD = frozenset({"static", "indirect"})


@check(
    "iommu-acs-not-persistent",
    group="iommu",
    severity="W",
    why="ACS is on again after every reset of a bridge: what switches it off has to run"
    " at each boot, and after a card was put in",
    fix=(f"systemctl enable --now {_UNIT}", f"systemctl restart {_UNIT}"),
    source=("R28 nccl#304", "MinIO AIStor: Troubleshoot RDMA"),
    needs=(_SHOW, "dmesg -J"),
)
def acs_not_persistent(node: Node, _: None) -> Outcome:
    found = unit(node.facts, _UNIT)
    if found is None:
        raise NotHere("systemd does not run here")
    if not found.is_loaded:
        raise NotHere(f"there is no {_UNIT}: ACS is as the firmware leaves it")
    if not found.is_enabled and found.began_s is None:
        raise NotHere(f"{_UNIT} is not in use")
    expected = f"{_UNIT} is enabled, and ran since the last change of the bus"
    wrong = _wrong(node.facts, found)
    if wrong:
        return bad(wrong, expected)
    return ok(f"it ran {found.began_s:.0f} s after boot", expected)


def _wrong(facts: Facts, found: Unit) -> str:
    if found.began_s is None:
        return "enabled, and did not run this boot"
    if found.result != "success":
        return f"it ran and failed: {found.result}"
    if found.state in _UNTOLD:
        raise Unread("missing", _SHOW, f"{found.state}: nobody tells what starts it")
    if not found.is_enabled:
        return "it ran by hand, and is not enabled for the next boot"
    plugged = _last_plugged(facts)
    if plugged > found.began_s:
        return f"a card was put in {plugged - found.began_s:.0f} s after it ran"
    return ""


def _last_plugged(facts: Facts) -> float:
    """Seconds after boot; 0 where nothing was put in since the log begins."""
    last = 0.0
    for line in kernel_log(facts):
        if "pciehp" not in line.text or not _PLUGGED.search(line.text):
            continue
        if line.t is None:
            raise Unread("missing", "dmesg", "a card was put in, nobody tells when")
        last = max(last, line.t)
    return last
