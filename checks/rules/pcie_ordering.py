"""Whether NICs may reorder their writes to memory."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from checks.facts import Unread
from checks.finding import Outcome, bad, ok
from checks.parse.mstconfig import nic_settings
from checks.rules.declare import compared
from checks.rules.nic_firmware import by_mstconfig, refuse_without_settings

if TYPE_CHECKING:
    from checks.node import Node
    from checks.parse.mstconfig import Setting

CHECK = "pcie-relaxed-ordering"
KEY = "PCI_WR_ORDERING"
SAFE = "per_mkey"
_FLAG = re.compile(r"\bRlxdOrd([+-])")


@compared(
    CHECK,
    group="pcie",
    severity="E",
    why="writes forced to be relaxed overtake the flag that says they are complete:"
    " silent corruption, seen as collective mismatch",
    fix=("mstconfig -d BDF set PCI_WR_ORDERING=per_mkey", "mlxfwreset, or reboot"),
    source=("R35 nccl#531, nccl#615",),
    needs=("mstconfig -d BDF -e q", "lspci -Dvvv -s BDF"),
    over=by_mstconfig,
)
def relaxed_ordering(node: Node, bdf: str) -> Outcome | str:
    refuse_without_settings(node, bdf)
    try:
        setting = nic_settings(node.facts, bdf).get(KEY)
    except Unread as error:
        if error.kind in {"missing", "no tool", "failed"}:
            return _by_device_control(node, bdf, error)
        raise
    if setting is None:
        raise Unread("missing", f"mstconfig -d {bdf}", f"{KEY} is not in it")
    if node.profile.expect.get(CHECK) is not None:
        return setting.current or setting.after_boot
    return _judged(setting)


def _judged(setting: Setting) -> Outcome:
    """Safe is what every memory key decides for itself, now and after a reset."""
    expected = f"{SAFE}(0)"
    now, later = setting.current, setting.after_boot
    if now is not None and not now.startswith(SAFE):
        return bad(f"{now}, {later} after a reset", expected)
    if not later.startswith(SAFE):
        seen = f"{now or 'current value unknown'}, {later} after a reset"
        return bad(f"pending reset: {seen}", expected, severity="W" if now else "E")
    if now is None:
        raise Unread("missing", f"{KEY}", "no current value: query with -e")
    return ok(now, expected, value=now)


def _by_device_control(node: Node, bdf: str, refused: Unread) -> Outcome:
    """A device that may not relax its writes at all is safe, whatever it is set to."""
    try:
        flag = _FLAG.search(node.facts.result("lspci", bdf).text())
    except Unread:
        flag = None
    if flag is None or flag[1] == "+":
        raise refused
    return ok("RlxdOrd-: the device may not relax its writes", f"{SAFE}(0)")
