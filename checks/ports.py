"""RDMA ports of a node: what sysfs and `rdma link` know of them together.

Sysfs is the authority; netlink fills what sysfs does not tell. A port's network device
is taken from `gid_attrs/ndevs`, because `device/net/` of a bonded device names the
first leg only, and soft-RoCE devices have no `device` at all.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING

from checks.commands import pci_address
from checks.facts import Facts, Unread, derived, first
from checks.parse.gid_table import gid_table, show_gids
from checks.parse.ibstat import ibstat, ibstat_firmware, ibstat_told
from checks.parse.ip_addr import links
from checks.parse.rdma_link import RdmaLink, rdma_links
from checks.parse.verbs import verbs, verbs_device, word

if TYPE_CHECKING:
    from collections.abc import Callable

CLASS = "/sys/class/infiniband"
_BDF = re.compile(r"[0-9a-f]{4,}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]", re.IGNORECASE)

_PHYSICAL = {
    "LINKUP": "LINK_UP",
    "LINKERRORRECOVERY": "LINK_ERROR_RECOVER",
    "LINK_ERROR_RECOVERY": "LINK_ERROR_RECOVER",
    "PHYTEST": "PHY_TEST",
    "PORTCONFIGURATIONTRAINING": "TRAINING",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Port:
    """One port of one RDMA device; the methods read its fields and may refuse."""

    facts: Facts
    device: str
    number: int
    netlink: RdmaLink | None

    @property
    def label(self) -> str:
        """`mlx5_0`, or `mlx5_0/2` for a port that is not the first."""
        return self.device if self.number == 1 else f"{self.device}/{self.number}"

    @property
    def touches(self) -> frozenset[str]:
        """Names of what it is: device, netdev, PCI address, as far as known."""
        return self.facts.once(("touches", self.device, self.number), self._touches)

    def _touches(self) -> frozenset[str]:
        names = {self.device}
        for read in (self.netdev, self.bdf):
            try:
                names.add(read())
            except Unread:
                continue
        return frozenset(names - {""})

    def path(self, leaf: str) -> str:
        """The path of something of the port in sysfs."""
        return f"{CLASS}/{self.device}/ports/{self.number}/{leaf}"

    def device_path(self, leaf: str) -> str:
        """The path of something of the device in sysfs."""
        return f"{CLASS}/{self.device}/{leaf}"

    def text(self, leaf: str) -> str:
        """One line of the port in sysfs."""
        return self.facts.line(self.path(leaf))

    def device_text(self, leaf: str) -> str:
        """One line of the device in sysfs; `device/...` also by its PCI address."""
        readers: list[Callable[[], str]] = [
            lambda: self.facts.line(self.device_path(leaf))
        ]
        if leaf.startswith("device/"):
            below = leaf.removeprefix("device/")
            readers.append(lambda: self.facts.line(f"{PCI}/{self.bdf()}/{below}"))
        return first(*readers)

    def state(self) -> str:
        """`ACTIVE`, `DOWN`, `INIT`, `ARMED`, as netlink spells it."""
        return first(
            lambda: _word(self.text("state")),
            lambda: self._told("state"),
            lambda: word(self._verbs("state")),
            lambda: self._ibstat("state"),
        )

    def physical(self) -> str:
        """`LINK_UP`, `POLLING`, `DISABLED`, ... as netlink spells it."""
        return first(
            lambda: _physical(self.text("phys_state")),
            lambda: self._told("physical"),
            lambda: self._ibstat("physical"),
        )

    def link_layer(self) -> str:
        """`Ethernet` or `InfiniBand`."""
        return first(
            lambda: self.text("link_layer"),
            lambda: self._verbs("link_layer"),
            lambda: self._ibstat("link_layer"),
        )

    def netdev(self) -> str:
        """Its network device; "" where it has none in this network namespace."""
        return self.facts.once(("netdev", self.device, self.number), self._netdev)

    def _netdev(self) -> str:
        return first(
            self._netdev_of_gids,
            lambda: self._told("netdev"),
            self._netdev_of_device,
            lambda: self.facts.line(self.device_path("parent")),
            self._netdev_of_addresses,
        )

    def bdf(self) -> str:
        """Its PCI address."""
        return _bdf_of(self.facts, self.device_path("device"))

    def psid(self) -> str:
        """The board (`board_id`), which names the hardware variant."""
        return self.device_text("board_id")

    def firmware(self) -> str:
        """Its running firmware; refuses an empty line (soft-RoCE, some VFs)."""
        text = first(
            lambda: self.device_text("fw_ver"),
            lambda: ibstat_firmware(self.facts, self.device),
        )
        if not text:
            raise Unread("empty", self.device_path("fw_ver"), "no firmware version")
        return text

    def is_vf(self) -> bool:
        """A virtual function, as far as sysfs shows its physical one."""
        for path in (self.device_path("device/physfn"), self._pci("physfn")):
            try:
                if path and self.facts.exists(path):
                    return True
            except Unread:
                continue
        return False

    def _pci(self, leaf: str) -> str:
        try:
            return f"{PCI}/{self.bdf()}/{leaf}"
        except Unread:
            return ""

    def _told(self, field: str) -> str:
        if self.netlink is None:
            raise Unread("missing", f"rdma link {self.label}", "not collected")
        return str(getattr(self.netlink, field))

    def _verbs(self, field: str) -> str:
        told = verbs_device(self.facts, self.device).port(self.number).fields
        if not told.get(field):
            raise Unread("missing", f"ibv_devinfo {self.label}", f"no {field}")
        return told[field]

    def _ibstat(self, field: str) -> str:
        return ibstat_told(self.facts, self.device, self.number, field)

    def _netdev_of_gids(self) -> str:
        base = self.path("gid_attrs/ndevs")
        for index in sorted(self.facts.names(base), key=natural):
            try:
                name = self.facts.line(f"{base}/{index}")
            except Unread:
                continue
            if name:
                return name
        raise Unread("empty", base, "no GID has a network device")

    def _netdev_of_addresses(self) -> str:
        """The link that holds the address of one of its GIDs."""
        every = gid_table(self.facts, self.device, self.number).gids
        told = {gid.ip for gid in every if not gid.is_link_local}
        for link in links(self.facts).values():
            if told & {address.ip for address in link.addresses}:
                return link.name
        raise Unread("absent", self.path("gids"), "no link has the address of a GID")

    def _netdev_of_device(self) -> str:
        for name in self.facts.names(self.device_path("device/net")):
            return name
        raise Unread("empty", self.device_path("device/net"), "no network device")


PCI = "/sys/bus/pci/devices"


@derived
def ports(facts: Facts) -> tuple[Port, ...]:
    """Every RDMA port, ordered by PCI address where known, then by name.

    Where neither tells them, `ibv_devinfo`, `show_gids` or `ibstat` may. Empty where
    the node was looked at and has none; Unread where nobody could tell.
    """
    told: dict[tuple[str, int], RdmaLink] = {}
    refused: Unread | None = None
    try:
        told = {(link.device, link.port): link for link in rdma_links(facts)}
    except Unread as error:
        refused = error
    try:
        listed = set(facts.names(CLASS))
    except Unread as error:
        if refused is not None:
            refusal = error if refused.kind == "missing" else refused
            return _of_tools(facts, refusal)
        listed = set()
    found = set(told)
    for device in sorted(listed):
        found |= {(device, number) for number in _numbers(facts, device)}
    every = [
        Port(
            facts=facts,
            device=device,
            number=number,
            netlink=told.get((device, number)),
        )
        for device, number in sorted(found)
    ]
    return tuple(sorted(every, key=_place))


def _of_tools(facts: Facts, refusal: Unread) -> tuple[Port, ...]:
    """Ports that only tools name; `refusal` where there is none."""
    found: set[tuple[str, int]] = set()
    for tool in (_of_verbs, show_gids, _of_ibstat):
        try:
            found = set(tool(facts))
            break
        except Unread:
            continue
    if not found:
        raise refusal
    every = [
        Port(facts=facts, device=device, number=number, netlink=None)
        for device, number in sorted(found)
    ]
    return tuple(sorted(every, key=_place))


def _of_verbs(facts: Facts) -> set[tuple[str, int]]:
    return {(d.name, at) for d in verbs(facts).values() for at in d.ports or (1,)}


def _of_ibstat(facts: Facts) -> set[tuple[str, int]]:
    return {(name, at) for name, d in ibstat(facts).items() for at in d.ports}


def bdf_of_netdev(facts: Facts, netdev: str) -> str:
    """The PCI address of a network device."""
    return _bdf_of(facts, f"/sys/class/net/{netdev}/device")


@lru_cache(maxsize=65536)
def natural(text: str) -> tuple[tuple[int, str], ...]:
    """A key that puts mlx5_10 after mlx5_9."""
    parts = re.split(r"(\d+)", text)
    return tuple((int(part), "") if part.isdigit() else (-1, part) for part in parts)


def _place(port: Port) -> tuple[str, tuple[tuple[int, str], ...], int]:
    try:
        return port.bdf(), natural(port.device), port.number
    except Unread:
        return "", natural(port.device), port.number


def _numbers(facts: Facts, device: str) -> list[int]:
    try:
        names = facts.names(f"{CLASS}/{device}/ports")
    except Unread:
        return [1]
    return [int(name) for name in names if name.isdigit()] or [1]


def _bdf_of(facts: Facts, path: str) -> str:
    target = facts.link(path)
    found = _BDF.findall(target)
    if not found:
        raise Unread("garbled", path, f"{target!r} is no PCI device")
    return pci_address(found[-1])


def _word(text: str) -> str:
    """`4: ACTIVE` is ACTIVE."""
    return text.rpartition(":")[2].strip().upper()


def _physical(text: str) -> str:
    word = _word(text).replace(" ", "")
    return _PHYSICAL.get(word, word)
