"""RoCE transport: does the device speak RoCE at all."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from checks.facts import Unread
from checks.finding import Outcome, bad, ok
from checks.parse.verbs import verbs_device
from checks.rules.declare import check
from checks.rules.roce_subjects import not_roce
from checks.rules.subjects import each_port

if TYPE_CHECKING:
    from checks.node import Node
    from checks.ports import Port


@check(
    "roce-transport",
    group="roce",
    severity="C",
    why="an iWARP device has no RoCE GID, and no peer that understands it",
    fix=("modprobe irdma roce_ena=1, persistently in /etc/modprobe.d",),
    source=("R13 libfabric#12673",),
    needs=(
        "/sys/class/infiniband/*/node_type",
        "ibv_devinfo -v",
        "rdma -j -d dev",
    ),
    over=each_port,
)
def transport(node: Node, port: Port) -> Outcome:
    told = not_roce(port)
    if told is not None:
        return told
    seen: list[str] = []
    refused: list[Unread] = []
    for read in (_of_sysfs, _of_devinfo, _of_netlink):
        try:
            seen.append(read(port))
        except Unread as error:
            refused.append(error)
    if not seen:
        raise next((e for e in refused if e.kind != "missing"), refused[0])
    wrong = [text for text in seen if "iwarp" in text.lower() or "RNIC" in text]
    if wrong:
        return bad(", ".join(wrong), "RoCE")
    return ok(", ".join(seen), "RoCE")


def _of_sysfs(port: Port) -> str:
    """`1: CA` for InfiniBand and RoCE, `4: RNIC` for iWARP."""
    text = port.device_text("node_type")
    number, _, word = text.partition(":")
    if not (number.isdigit() and word.strip()):
        raise Unread("garbled", port.device_path("node_type"), f"no type: {text!r}")
    return word.strip()


def _of_devinfo(port: Port) -> str:
    text = verbs_device(port.facts, port.device).fields.get("transport", "")
    if not text.endswith(")"):
        raise Unread("missing", f"ibv_devinfo -v: {port.device}", "no transport")
    return text


def _of_netlink(port: Port) -> str:
    """The `protocol` of `rdma -d dev`, which newer kernels tell."""
    rows = port.facts.result("rdma", "dev").json()
    for row in rows if isinstance(rows, list) else ():
        if isinstance(row, Mapping) and row.get("ifname") == port.device:
            protocol = row.get("protocol")
            if isinstance(protocol, str):
                return protocol
    raise Unread("missing", f"rdma dev {port.device}", "no protocol")
