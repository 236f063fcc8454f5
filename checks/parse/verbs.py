"""`ibv_devinfo -v`: what libibverbs tells of devices and their ports.

Traps: keys are indented with tabs and end in a colon; `fw_ver` is left out when empty;
`active_mtu: 4096 (5)` is size and enum, `state: PORT_ACTIVE (4)` word and enum. GIDs of
RoCE v1 are printed in full, those of v2 compressed, with the type behind a comma; old
rdma-core prints no type, and GIDs that are null are not printed at all. A device ends
where the next begins, so the last device of a cut text looks whole: nothing may be
concluded from what it does not name but that it is missing.

The `verbs` block of a facts document holds the same from pyverbs.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from ipaddress import IPv6Address

from checks.facts import Facts, Unread, derived
from checks.parse.garbled import Garbled

SOURCE = "ibv_devinfo -v"
MTUS = (256, 512, 1024, 2048, 4096)
_KEY = re.compile(r"^\s*([A-Za-z][\w ]*?):\s+(.*?)\s*$")
_GID = re.compile(r"^\s*GID\[\s*(\d+)\]:\s+([0-9a-fA-F:.]+)(?:,\s*(.*?))?\s*$")
_KINDS = {"RoCE v1": "IB/RoCE v1", "RoCE v2": "RoCE v2", "IB": "IB"}
_PER_PORT = frozenset({"state", "max_mtu", "active_mtu", "link_layer", "phys_state"})


@dataclass(frozen=True, slots=True, kw_only=True)
class VerbsPort:
    """One port; `gids` are (index, address, type in the spelling of sysfs or "")."""

    number: int
    fields: Mapping[str, str]
    gids: tuple[tuple[int, IPv6Address, str], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class VerbsDevice:
    """One device with its attributes as printed."""

    name: str
    fields: Mapping[str, str]
    ports: Mapping[int, VerbsPort]

    def number(self, key: str) -> int:
        """A numeric attribute, decimal or 0x...; Unread where it is not told."""
        text = self.fields.get(key, "").split(" ")[0]
        try:
            return int(text, 0)
        except ValueError:
            raise Unread("missing", f"{SOURCE}: {self.name}", f"no {key}") from None

    def port(self, number: int) -> VerbsPort:
        found = self.ports.get(number)
        if found is None:
            raise Unread("missing", f"{SOURCE}: {self.name}", f"no port {number}")
        return found


@dataclass(slots=True)
class _Open:
    """A device or port that is being read."""

    fields: dict[str, str] = field(default_factory=dict)
    gids: list[tuple[int, IPv6Address, str]] = field(default_factory=list)


def parse_devinfo(text: str) -> dict[str, VerbsDevice]:
    """Devices by name, in the order of the tool."""
    found: dict[str, tuple[_Open, dict[int, _Open]]] = {}
    here = _Open()
    ports: dict[int, _Open] = {}
    for line in text.splitlines():
        gid = _GID.match(line)
        if gid:
            here.gids.append(_gid(gid))
            continue
        pair = _KEY.match(line)
        if not pair:
            continue
        key, value = pair.groups()
        if key == "hca_id":
            here, ports = _Open(), {}
            found[value] = here, ports
        elif key == "port" and value.isdigit():
            here = ports[int(value)] = _Open()
        else:
            here.fields.setdefault(key, value)
    if not found:
        raise Garbled(SOURCE, "no device in it")
    return {name: _device(name, *parts) for name, parts in found.items()}


@derived
def verbs(facts: Facts) -> dict[str, VerbsDevice]:
    """Devices of the host by name; Unread where the tool told none."""
    every = [r for r in facts.find("ibv_devinfo") if _is_verbose(r.reading.options)]
    if not every:
        raise Unread("missing", SOURCE, "not collected")
    whole = [r for r in every if r.rc == 0 and not (r.timed_out or r.truncated)]
    merged: dict[str, VerbsDevice] = {}
    for result in whole or every[:1]:
        merged.update(parse_devinfo(result.text()))
    return merged


def verbs_device(facts: Facts, device: str) -> VerbsDevice:
    """One device; Unread where the tool does not name it."""
    found = verbs(facts).get(device)
    if found is None:
        raise Unread("absent", SOURCE, f"it does not name {device}")
    return found


def pyverbs_number(facts: Facts, device: str, key: str) -> int:
    """A number that pyverbs told of a device; Unread where it told none."""
    block = facts.document.get("verbs")
    told = block.get(device) if isinstance(block, Mapping) else None
    value = told.get(key) if isinstance(told, Mapping) else None
    if not isinstance(value, int) or isinstance(value, bool):
        raise Unread("missing", f"pyverbs: {device}", f"no {key}")
    facts.note("pyverbs")
    return value


def mtu_of(text: str) -> int:
    """The size in `4096 (5)`; Unread where it is none of the five sizes."""
    size = text.split(" ")[0]
    if size.isdigit() and int(size) in MTUS and text.endswith(")"):
        return int(size)
    raise Garbled(SOURCE, f"no MTU: {text!r}")


def _is_verbose(options: Mapping[str, str]) -> bool:
    return "-l" not in options and "--list" not in options


def _gid(match: re.Match[str]) -> tuple[int, IPv6Address, str]:
    index, address, kind = match.groups()
    try:
        return int(index), IPv6Address(address), _KINDS.get(kind or "", "")
    except ValueError as error:
        raise Garbled(SOURCE, f"a GID that is none: {error}") from None


def _device(name: str, told: _Open, ports: dict[int, _Open]) -> VerbsDevice:
    return VerbsDevice(
        name=name,
        fields=told.fields,
        ports={
            number: VerbsPort(number=number, fields=p.fields, gids=tuple(p.gids))
            for number, p in ports.items()
        },
    )


def word(text: str) -> str:
    """`ACTIVE` of `PORT_ACTIVE (4)`."""
    return text.split(" ")[0].removeprefix("PORT_").upper()
