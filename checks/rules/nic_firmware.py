"""Firmware of NICs: what is stored but does not run yet, and the settings in it."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING

from checks.facts import Unread
from checks.finding import Outcome, bad, ok, skip
from checks.parse.devlink_info import devlink_info
from checks.parse.mstconfig import asked_addresses, nic_settings
from checks.rules.declare import NotHere, Subject, check, compared
from checks.rules.optional import UNREADABLE, optional
from checks.rules.subjects import each_nic_address

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from checks.node import Node
    from checks.ports import Port

MELLANOX = "0x15b3"
_KEYS = (
    "LINK_TYPE_P1",
    "SRIOV_EN",
    "NUM_OF_VFS",
    "ROCE_CONTROL",
    "PCI_WR_ORDERING",
    "ATS_ENABLED",
    "ADVANCED_PCI_SETTINGS",
    "ROCE_ADAPTIVE_ROUTING_EN",
    "CNP_DSCP_P1",
    "ROCE_CC_PRIO_MASK_P1",
)


def nic_addresses(
    node: Node, told: Callable[[Node], Iterable[str]]
) -> list[Subject[str]]:
    """PCI addresses of the selected NICs.

    Where nobody collected the ports, those that the source itself tells of.
    """
    try:
        chosen = node.ports
    except Unread as error:
        named = sorted(told(node)) if error.kind == "missing" else []
        if not named:
            raise
        return [Subject(item=bdf, label=bdf, touches=frozenset({bdf})) for bdf in named]
    found = each_nic_address(node)
    if not found and chosen and not any(_may_be_pci(port) for port in chosen):
        raise NotHere("no selected NIC is a PCI device")
    return found


def _may_be_pci(port: Port) -> bool:
    """False only where it is seen that the device has no PCI device below it."""
    try:
        return bool(port.bdf())
    except Unread as error:
        return error.kind != "absent"


def by_mstconfig(node: Node) -> list[Subject[str]]:
    return nic_addresses(node, lambda node: asked_addresses(node.facts))


def _by_devlink(node: Node) -> list[Subject[str]]:
    return nic_addresses(node, lambda node: devlink_info(node.facts))


def refuse_without_settings(node: Node, bdf: str) -> None:
    """SKIP where a NIC has no settings of this kind: a VF, or another maker's."""
    path = f"/sys/bus/pci/devices/{bdf}"
    vendor = optional(lambda: node.facts.line(f"{path}/vendor"), UNREADABLE)
    if vendor and vendor != MELLANOX:
        raise NotHere(f"not an mlx5 NIC (vendor {vendor})")
    virtual = optional(lambda: node.facts.exists(f"{path}/physfn"), UNREADABLE)
    if virtual is True:
        raise NotHere("a virtual function has no settings of its own")


@check(
    "nic-fw-running-vs-stored",
    group="nic",
    severity="W",
    why="firmware was burned but not activated: the next reboot changes this node",
    fix=("mlxfwreset -d BDF reset, or reboot",),
    source=("devlink dev info: running and stored versions",),
    needs=("devlink -j dev info",),
    follows=("nic-fw-consistent",),
    over=_by_devlink,
)
def running_and_stored(node: Node, bdf: str) -> Outcome:
    found = devlink_info(node.facts).get(bdf)
    if found is None:
        raise Unread("absent", "devlink -j dev info", f"it does not name {bdf}")
    running, stored = found.firmware()
    if not running:
        raise Unread("empty", "devlink -j dev info", "no running firmware is told")
    if not stored:
        return skip("no stored firmware is told (a virtual function, or a VM)")
    seen = f"running {running}, stored {stored}"
    expected = "the stored firmware runs"
    return ok(seen, expected) if running == stored else bad(seen, expected)


@compared(
    "nic-mlxconfig",
    group="nic",
    severity="W",
    why="settings in the NIC's flash survive a reinstallation, and wait for a reset",
    fix=("mstconfig -d BDF set KEY=VALUE", "mlxfwreset -d BDF reset, or reboot"),
    source=("R35 nccl#531, nccl#615", "R36 infra-controller#3624: LINK_TYPE_P1"),
    needs=("mstconfig -d BDF -e q",),
    requires=("nic-link-type",),
    follows=("pcie-relaxed-ordering", "nic-fw-consistent", "nic-psid-consistent"),
    over=by_mstconfig,
)
def settings(node: Node, bdf: str) -> Outcome | str:
    refuse_without_settings(node, bdf)
    every = nic_settings(node.facts, bdf)
    known = [every[key] for key in _KEYS if key in every]
    if not known:
        raise Unread("missing", f"mstconfig -d {bdf}", "none of the settings in it")
    current = [each for each in known if each.current is not None]
    if len(current) < len(known):
        raise Unread("missing", f"mstconfig -d {bdf} -e", "no current values: use -e")
    link = every.get("LINK_TYPE_P1")
    wanted = node.profile.nic.link_layer
    if link and link.current and wanted == "Ethernet" and "ETH" not in link.current:
        return bad(f"LINK_TYPE_P1={link.current}", "ETH(2) (profile)", severity="E")
    waiting = [
        f"{each.name}: {each.current}, {each.after_boot} after a reset"
        for each in known
        if each.current != each.after_boot
    ]
    if waiting:
        return bad(f"pending reset: {'; '.join(waiting)}", "current as at next boot")
    return ", ".join(f"{each.name}={each.current}" for each in known)


def _boards(node: Node) -> list[Subject[tuple[Port, ...]]]:
    """Ports of a node by their board."""
    every: dict[str, list[Port]] = defaultdict(list)
    for port in node.ports:
        every[port.psid()].append(port)
    return [
        Subject(
            item=tuple(members),
            label=psid,
            touches=frozenset().union(*(port.touches for port in members)),
        )
        for psid, members in sorted(every.items())
    ]


@check(
    "nic-fw-within-node",
    group="nic",
    severity="E",
    why="rails of one node that run different firmware behave differently under load",
    fix=("mlxfwmanager -u -d BDF", "mlxfwreset -d BDF reset, or reboot"),
    source=("article: firmware and drivers",),
    needs=("/sys/class/infiniband/*/fw_ver", "/sys/class/infiniband/*/board_id"),
    follows=("nic-fw-consistent",),
    over=_boards,
)
def within_node(node: Node, members: tuple[Port, ...]) -> Outcome:
    versions: dict[str, list[str]] = defaultdict(list)
    for port in members:
        versions[port.firmware()].append(port.label)
    expected = "one version on all NICs of this board"
    if len(versions) == 1:
        return ok(f"{next(iter(versions))} on {len(members)} ports", expected)
    told = sorted(versions.items(), key=lambda one: (-len(one[1]), one[0]))
    return bad("; ".join(f"{v} on {', '.join(names)}" for v, names in told), expected)
