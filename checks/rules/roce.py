"""RoCE transport: does the device speak RoCE at all."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from checks.facts import Unread
from checks.finding import Outcome, bad, ok
from checks.parse.garbled import Garbled
from checks.parse.gid_table import V1, V2
from checks.parse.verbs import verbs_device
from checks.rules.declare import NotHere, check, compared
from checks.rules.optional import optional
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


@compared(
    "roce-cma-mode",
    group="roce",
    severity="W",
    why="connections by rdma_cm use the mode that is set here, whatever GIDs there are",
    fix=(
        "cma_roce_mode -d DEVICE -p 1 -m 2 (RoCE v2)",
        "cma_roce_tos -d DEVICE -t TOS",
    ),
    source=("mlnx-tools cma_roce_mode",),
    needs=("/sys/kernel/config/rdma_cm/*/ports/*/default_roce_mode",),
    over=each_port,
)
def cma_mode(node: Node, port: Port) -> Outcome | str:
    told = not_roce(port)
    if told is not None:
        return told
    base = f"/sys/kernel/config/rdma_cm/{port.device}/ports/{port.number}"
    mode = _configured(port, f"{base}/default_roce_mode")
    if mode is None:
        raise NotHere("rdma_cm of this device is not configured")
    if mode not in {V1, V2}:
        raise Garbled(f"{base}/default_roce_mode", f"no mode: {mode[:40]!r}")
    if mode == V1:
        return bad(mode, V2)
    tos = _configured(port, f"{base}/default_roce_tos")
    return mode if tos is None else f"{mode}, type of service {tos}"


def _configured(port: Port, path: str) -> str | None:
    """A setting of configfs; None where nobody mounted it or made the device's part."""
    return optional(lambda: port.facts.line(path))
