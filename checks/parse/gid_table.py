"""GID tables, from sysfs, `ibv_devinfo -v` or `show_gids`.

Sysfs is the authority: `gids/N`, `gid_attrs/types/N`, `gid_attrs/ndevs/N`. Reading the
type or device of an empty slot gives EINVAL; a collector keeps used slots and the first
ones, so a slot may be missing. `show_gids` prints tab-separated columns `DEV PORT INDEX
GID [IPv4] VER DEV`; the IPv4 column is empty for link-local rows and is printed for
*any* GID that begins with zeros, so it is not trusted; its last line `n_gids_found=N`
says that it is whole. Neither of the tools prints empty slots.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache
from ipaddress import IPv4Address, IPv6Address, ip_address
from typing import TYPE_CHECKING

from checks.facts import Facts, Unread, derived, first
from checks.parse.garbled import Garbled
from checks.parse.verbs import verbs_device

if TYPE_CHECKING:
    from collections.abc import Mapping

SHOW_GIDS = "show_gids"
V1, V2 = "IB/RoCE v1", "RoCE v2"
KINDS = frozenset({V1, V2, "IB"})
_CLASS = "/sys/class/infiniband"
_FULL = 39
"""Letters of a GID as sysfs prints it; fewer means that it was cut off."""
_NULL = ":".join(["0000"] * 8)
_END = re.compile(r"^n_gids_found=(\d+)\s*$")
_EMPTY = frozenset({"errno", "absent"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Gid:
    """One used slot. `kind` "" and `netdev` None mean that nobody told."""

    index: int
    address: IPv6Address
    kind: str
    netdev: str | None

    @property
    def ipv4(self) -> IPv4Address | None:
        return self.address.ipv4_mapped

    @property
    def ip(self) -> str:
        """The address of the packet: IPv4 where it is mapped, else IPv6."""
        return str(self.ipv4 or self.address)

    @property
    def is_link_local(self) -> bool:
        return self.address.is_link_local

    def __str__(self) -> str:
        told = self.kind.rpartition(" ")[2] if self.kind else "type not told"
        return f"[{self.index}] {self.ip} {told}"


@dataclass(frozen=True, slots=True, kw_only=True)
class GidTable:
    """The used slots of one port by index; all others are empty, but for `unread`."""

    source: str
    gids: tuple[Gid, ...]
    unread: frozenset[int] = frozenset()
    empty: frozenset[int] = frozenset()
    """Slots that were looked at and found empty, where the source shows them."""

    def at(self, index: int) -> Gid | None:
        """The GID in a slot, None where it is empty; Unread where nobody looked."""
        if index in self.unread:
            raise Unread("missing", f"{self.source}/{index}", "this slot was not read")
        return next((gid for gid in self.gids if gid.index == index), None)

    def ends_within(self, slots: range) -> bool:
        """One of these slots was seen to be empty."""
        return any(index in self.empty for index in slots)

    def typed(self) -> tuple[Gid, ...]:
        """Every GID; Unread where the type of one of them is not told."""
        for gid in self.gids:
            if not gid.kind:
                raise Unread("missing", self.source, f"GID {gid.index} has no type")
        return self.gids

    def v2(self) -> tuple[Gid, ...]:
        """The RoCE v2 entries; Unread where a type that matters is not told."""
        return tuple(gid for gid in self.typed() if gid.kind == V2)


def gid_table(facts: Facts, device: str, port: int) -> GidTable:
    """The table of one port, from the first source that tells it."""
    return facts.once(
        ("gid table", device, port), lambda: _gid_table(facts, device, port)
    )


def _gid_table(facts: Facts, device: str, port: int) -> GidTable:
    """A source that is cut off or broken is not replaced by another one."""
    try:
        return of_sysfs(facts, device, port)
    except Unread as error:
        if error.kind in {"garbled", "truncated"}:
            raise
        refusal = error
    try:
        return first(
            lambda: of_devinfo(facts, device, port),
            lambda: of_show_gids(facts, device, port),
        )
    except Unread as error:
        raise (error if refusal.kind == "missing" else refusal) from None


def of_sysfs(facts: Facts, device: str, port: int) -> GidTable:
    """Reads the slots below `ports/N`; a slot that cannot be read refuses them all."""
    base = f"{_CLASS}/{device}/ports/{port}"
    known = _indexes(facts, f"{base}/gids")
    known |= _indexes(facts, f"{base}/gid_attrs/types", needed=False)
    slots = {index: _slot(facts, base, index) for index in sorted(known)}
    unread = frozenset(index for index, found in slots.items() if found is False)
    if len(unread) == len(slots):
        raise Unread("missing", f"{base}/gids", "no slot was read")
    return GidTable(
        source=f"{base}/gids",
        gids=tuple(found for found in slots.values() if isinstance(found, Gid)),
        unread=unread,
        empty=frozenset(index for index, found in slots.items() if found is True),
    )


def of_devinfo(facts: Facts, device: str, port: int) -> GidTable:
    """The GIDs that `ibv_devinfo -v` prints; empty slots are not printed.

    Without -v it prints no GID at all; the length of the table tells the two apart.
    """
    told = verbs_device(facts, device).port(port)
    if not told.gids and "gid_tbl_len" not in told.fields:
        raise Unread("missing", "ibv_devinfo -v", f"{device}: no GIDs without -v")
    gids = tuple(
        Gid(index=index, address=address, kind=kind, netdev=None)
        for index, address, kind in told.gids
    )
    return GidTable(source="ibv_devinfo -v", gids=gids, empty=_between(gids))


@derived
def show_gids(facts: Facts) -> Mapping[tuple[str, int], tuple[Gid, ...]]:
    """What `show_gids` lists, by device and port."""
    return parse_show_gids(facts.result("show_gids").text())


def of_show_gids(facts: Facts, device: str, port: int) -> GidTable:
    """The rows of one port; none of them means that all its slots are empty."""
    gids = show_gids(facts).get((device, port), ())
    return GidTable(source=SHOW_GIDS, gids=gids)


def parse_show_gids(text: str) -> dict[tuple[str, int], tuple[Gid, ...]]:
    """Rows by device and port; refuses a listing without its last line."""
    lines = text.rstrip().splitlines()
    end = _END.match(lines[-1]) if lines else None
    if end is None:
        raise Garbled(SHOW_GIDS, "its last line n_gids_found= is missing")
    rows = [_row(line) for line in lines[:-1] if _is_row(line)]
    if len(rows) != int(end.group(1)):
        raise Garbled(SHOW_GIDS, f"{len(rows)} rows, but it counts {end.group(1)}")
    found: dict[tuple[str, int], tuple[Gid, ...]] = {}
    for device, port, gid in rows:
        found[device, port] = (*found.get((device, port), ()), gid)
    return found


def _is_row(line: str) -> bool:
    parts = line.split()
    return len(parts) > 3 and parts[1].isdigit() and parts[2].isdigit()


def _row(line: str) -> tuple[str, int, Gid]:
    parts = line.split()
    version = next((at for at, part in enumerate(parts) if part in {"v1", "v2"}), 0)
    if version < 4:
        raise Garbled(SHOW_GIDS, f"a row without a version: {line.strip()[:60]!r}")
    return (
        parts[0],
        int(parts[1]),
        Gid(
            index=int(parts[2]),
            address=_address(SHOW_GIDS, parts[3]),
            kind=V2 if parts[version] == "v2" else V1,
            netdev=parts[version + 1] if version + 1 < len(parts) else "",
        ),
    )


def _between(gids: tuple[Gid, ...]) -> frozenset[int]:
    """Slots below the last used one that a complete listing does not name."""
    used = {gid.index for gid in gids}
    return frozenset(set(range(max(used, default=0))) - used)


def _indexes(facts: Facts, path: str, *, needed: bool = True) -> set[int]:
    try:
        names = facts.names(path)
    except Unread:
        if needed:
            raise
        return set()
    return {int(name) for name in names if name.isdigit()}


def _slot(facts: Facts, base: str, index: int) -> Gid | bool:
    """The GID of a slot; True where it is empty, False where nobody read it."""
    attributes = f"{base}/gid_attrs"
    try:
        text = facts.line(f"{base}/gids/{index}")
    except Unread as error:
        if error.kind in _EMPTY:
            return True
        if error.kind != "missing":
            raise
        return _says_empty(facts, f"{attributes}/types/{index}")
    if text == _NULL:
        return True
    address = _address(f"{base}/gids/{index}", text)
    if int(address) == 0:
        return True
    return Gid(
        index=index,
        address=address,
        kind=_kind(facts, f"{attributes}/types/{index}"),
        netdev=_netdev(facts, f"{attributes}/ndevs/{index}"),
    )


def _says_empty(facts: Facts, path: str) -> bool:
    try:
        facts.line(path)
    except Unread as error:
        return error.kind in _EMPTY
    return False


def _kind(facts: Facts, path: str) -> str:
    try:
        text = facts.line(path)
    except Unread:
        return ""
    if text not in KINDS:
        raise Garbled(path, f"no type of a GID: {text!r}")
    return text


def _netdev(facts: Facts, path: str) -> str | None:
    """Empty where the kernel says that there is none, None where nobody told."""
    try:
        return facts.line(path)
    except Unread as error:
        if error.kind in _EMPTY:
            return ""
        if error.kind != "missing":
            raise
        return None


def _address(where: str, text: str) -> IPv6Address:
    if "::" not in text and "." not in text and len(text) < _FULL:
        raise Garbled(where, f"a GID that is cut off: {text!r}")
    found = _parsed(text)
    if found is None:
        raise Garbled(where, f"a GID that is none: {text[:60]!r}")
    return found


@lru_cache(maxsize=65536)
def _parsed(text: str) -> IPv6Address | None:
    """An address, IPv4 as mapped IPv6; None where it is none."""
    try:
        found = ip_address(text)
    except ValueError:
        return None
    return IPv6Address(f"::ffff:{found}") if found.version == 4 else found
