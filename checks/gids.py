"""The GID engine: which index Mooncake will use on a port, by its version.

Taken from `rdma_context.cpp` and `rdma_gid_probe.h` of Mooncake v0.3.0 to v0.3.12.post1
and of its main branch of 2026-08:

- below 0.3.7: the first RoCE v2 entry that is IPv4-mapped; none: index 0. Index 0 also
  means "choose" when it is asked for.
- 0.3.7: the same, but one with a network device wins over one without.
- 0.3.8, 0.3.9: no such entry disables the device, and so does an index that is asked
  for and has no network device (Mooncake#1384).
- 0.3.10, 0.3.11 (PR#1597): IPv6 entries are a fallback, with a network device first;
  the search ends at the first empty slot.
- 0.3.12 and later (PR#2269, PR#2741): ranked by class, lowest index first: routable
  with network device; routable without; private IPv4 (10/8, 172.16/12, 100.64/10, but
  not 192.168/16) with one; link-local or overlay with one; private IPv4 without;
  link-local or overlay without; at last the first entry that is no RoCE v2.

`MC_GID_INDEX`, else `NCCL_IB_GID_INDEX`, is read by `atoi`: an empty text is 0; values
outside of 0..255 are ignored.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import IntEnum
from ipaddress import IPv4Network
from typing import TYPE_CHECKING

from checks.parse.gid_table import V2, Gid, GidTable

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

Version = tuple[int, ...]
"""0.3.8.post1 is (0, 3, 8, 1)."""

ASKED = ("MC_GID_INDEX", "NCCL_IB_GID_INDEX")
_PRIVATE = tuple(
    IPv4Network(net) for net in ("10.0.0.0/8", "172.16.0.0/12", "100.64.0.0/10")
)
_OVERLAY = ("flannel", "cni", "calico", "vxlan", "docker")
_LARGEST_INDEX = 255


class Era(IntEnum):
    """Versions that choose alike."""

    FIRST_MAPPED = 0
    NETDEV_FIRST = 1
    STRICT = 2
    IPV6_FALLBACK = 3
    RANKED = 4


class Rank(IntEnum):
    """Classes of 0.3.12 and later, the best first."""

    ROUTABLE = 0
    ROUTABLE_WITHOUT_NETDEV = 1
    PRIVATE_IPV4 = 2
    DEGRADED = 3
    PRIVATE_IPV4_WITHOUT_NETDEV = 4
    DEGRADED_WITHOUT_NETDEV = 5
    FALLBACK = 6


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """What Mooncake does with a port: uses a GID, or disables the device."""

    index: int | None
    gid: Gid | None
    why: str

    @property
    def is_usable(self) -> bool:
        return self.gid is not None

    def __str__(self) -> str:
        if self.gid is not None:
            return f"GID {self.gid} ({self.why})"
        return self.why


def version_of(text: str) -> Version:
    """(0, 3, 8, 1) of `0.3.8.post1`; candidates of a release count as the release."""
    found = re.match(r"v?(\d+(?:\.\d+)*)(?:\.?post(\d+))?", text)
    if found is None:
        return ()
    numbers = [int(part) for part in found.group(1).split(".")]
    return (*numbers, int(found.group(2))) if found.group(2) else tuple(numbers)


def era(version: Version | None) -> Era:
    """The era of a version; an unknown one counts as the newest."""
    if version is None or version >= (0, 3, 12):
        return Era.RANKED
    if version >= (0, 3, 10):
        return Era.IPV6_FALLBACK
    if version >= (0, 3, 8):
        return Era.STRICT
    return Era.NETDEV_FIRST if version >= (0, 3, 7) else Era.FIRST_MAPPED


def asked_index(env: Mapping[str, str], of: Era = Era.RANKED) -> int | None:
    """The index that the environment asks for; None where Mooncake chooses itself."""
    text = next((env[name] for name in ASKED if name in env), None)
    if text is None:
        return None
    index = atoi(text)
    if not 0 <= index <= _LARGEST_INDEX or (index == 0 and of < Era.STRICT):
        return None
    return index


def atoi(text: str) -> int:
    """A number as C reads it: digits at the beginning, 0 where there are none."""
    found = re.match(r"\s*([+-]?\d+)", text)
    return int(found.group(1)) if found else 0


def choose(table: GidTable, of: Era, asked: int | None = None) -> Choice:
    """What Mooncake of an era uses on a port with this table.

    Raises `Unread` where the answer depends on something that was not read.
    """
    if asked is not None:
        return _asked(table, of, asked)
    return _CHOOSERS[of](table)


def rank(gid: Gid) -> Rank:
    """The class of an entry, as 0.3.12 ranks it."""
    if gid.kind not in {V2, "IB"}:
        return Rank.FALLBACK
    is_v2 = gid.kind == V2
    degraded = is_v2 and (is_overlay(gid) or gid.is_link_local)
    private = is_v2 and not degraded and is_private(gid)
    if has_netdev(gid):
        if degraded:
            return Rank.DEGRADED
        return Rank.PRIVATE_IPV4 if private else Rank.ROUTABLE
    if degraded:
        return Rank.DEGRADED_WITHOUT_NETDEV
    if private:
        return Rank.PRIVATE_IPV4_WITHOUT_NETDEV
    return Rank.ROUTABLE_WITHOUT_NETDEV


def has_netdev(gid: Gid) -> bool:
    """It belongs to a network device; where nobody told, it is taken to."""
    return gid.netdev != ""


def is_overlay(gid: Gid) -> bool:
    """Its network device is one of an overlay, by its name."""
    name = gid.netdev or ""
    return name.startswith(_OVERLAY) or name == "tunl0"


def is_private(gid: Gid) -> bool:
    """IPv4 of a range that Mooncake holds for private; 192.168/16 is not among them."""
    ipv4 = gid.ipv4
    return ipv4 is not None and any(ipv4 in network for network in _PRIVATE)


def _asked(table: GidTable, of: Era, index: int) -> Choice:
    gid = table.at(index)
    if gid is None:
        return Choice(index=index, gid=None, why=f"GID {index} is empty: no device")
    if of is Era.STRICT and not has_netdev(gid):
        why = f"GID {index} has no network device: the device is disabled"
        return Choice(index=index, gid=None, why=why)
    return Choice(index=index, gid=gid, why="asked for")


def _first_mapped(table: GidTable) -> Choice:
    found = next(iter(_mapped(table.typed())), None)
    return _taken(found, "first IPv4") if found else _index_zero(table)


def _netdev_first(table: GidTable) -> Choice:
    found = _with_netdev_first(_mapped(table.typed()))
    return _taken(found, "first IPv4") if found else _index_zero(table)


def _strict(table: GidTable) -> Choice:
    found = _with_netdev_first(_mapped(table.typed()))
    return _taken(found, "first IPv4") if found else _none()


def _ipv6_fallback(table: GidTable) -> Choice:
    fitting = [gid for gid in _until_empty(table) if gid.kind in {V2, "IB"}]
    mapped = [gid for gid in fitting if gid.kind == V2 and gid.ipv4 is not None]
    others = [gid for gid in fitting if gid not in mapped]
    found = _with_netdev_first(mapped)
    if found:
        return _taken(found, "first IPv4")
    found = _with_netdev_first(others)
    return _taken(found, "no IPv4: first IPv6") if found else _none()


def _ranked(table: GidTable) -> Choice:
    every = sorted(table.typed(), key=lambda gid: (rank(gid), gid.index))
    if not every:
        return _none()
    return _taken(every[0], rank(every[0]).name.lower().replace("_", " "))


_CHOOSERS: Mapping[Era, Callable[[GidTable], Choice]] = {
    Era.FIRST_MAPPED: _first_mapped,
    Era.NETDEV_FIRST: _netdev_first,
    Era.STRICT: _strict,
    Era.IPV6_FALLBACK: _ipv6_fallback,
    Era.RANKED: _ranked,
}


def _mapped(gids: Iterable[Gid]) -> list[Gid]:
    return [
        gid
        for gid in gids
        if (gid.kind == V2 and gid.ipv4 is not None) or gid.kind == "IB"
    ]


def _with_netdev_first(gids: list[Gid]) -> Gid | None:
    fitting = [gid for gid in gids if has_netdev(gid)] or gids
    return fitting[0] if fitting else None


def _until_empty(table: GidTable) -> list[Gid]:
    """Entries before the first slot that is known to be empty."""
    found: list[Gid] = []
    for gid in table.typed():
        between = range(found[-1].index + 1 if found else 0, gid.index)
        if table.ends_within(between):
            break
        found.append(gid)
    return found


def _index_zero(table: GidTable) -> Choice:
    gid = table.at(0)
    if gid is None:
        return Choice(index=0, gid=None, why="no IPv4: index 0, and its GID is NULL")
    return Choice(index=0, gid=gid, why="no IPv4: index 0")


def _taken(gid: Gid, why: str) -> Choice:
    return Choice(index=gid.index, gid=gid, why=why)


def _none() -> Choice:
    return Choice(index=None, gid=None, why="no suitable GID: the device is disabled")
