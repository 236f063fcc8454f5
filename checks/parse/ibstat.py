"""`ibstat`: state, link layer and firmware of ports, as infiniband-diags prints them.

Traps: devices are `CA 'mlx5_0'` at the margin, ports `Port 1:` below them; fields of a
device come before its ports. States are spelled `Active`, `Initializing`, `LinkUp`.
`Link layer` is the last field of a port: a text whose last port has none is cut, and so
is one whose last device has fewer ports than it promised. `ibstat CA PORT` writes
`CA: 'mlx5_0'`. A device ends where the next begins, so a text cut between two devices
looks whole.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from checks.facts import Facts, Unread, derived
from checks.parse.garbled import Garbled

if TYPE_CHECKING:
    from collections.abc import Mapping

SOURCE = "ibstat"
_DEVICE = re.compile(r"^\s*CA:? '([^']+)'\s*$")
_PORT = re.compile(r"^\s*Port (\d+):\s*$")
_FIELD = re.compile(r"^\s*([A-Za-z][\w ]*?):\s+(\S.*?)\s*$")
_OF_PORT = frozenset({"State", "Physical state", "Rate", "Link layer"})
_STATES = {
    "down": "DOWN",
    "initializing": "INIT",
    "armed": "ARMED",
    "active": "ACTIVE",
}
_PHYSICAL = {
    "sleep": "SLEEP",
    "polling": "POLLING",
    "disabled": "DISABLED",
    "portconfigurationtraining": "TRAINING",
    "linkup": "LINK_UP",
    "linkerrorrecovery": "LINK_ERROR_RECOVER",
    "phytest": "PHY_TEST",
}
_LAYERS = {"ethernet": "Ethernet", "infiniband": "InfiniBand"}


@dataclass(frozen=True, slots=True, kw_only=True)
class StatPort:
    """One port; in the spelling of netlink (`ACTIVE`, `LINK_UP`), "" where not told."""

    state: str
    physical: str
    link_layer: str


@dataclass(frozen=True, slots=True, kw_only=True)
class StatDevice:
    """One device; `firmware` is "" where it is not told."""

    firmware: str
    ports: Mapping[int, StatPort]


@dataclass(slots=True)
class _Open:
    """A device that is being read."""

    fields: dict[str, str] = field(default_factory=dict)
    ports: dict[int, dict[str, str]] = field(default_factory=dict)


def parse_ibstat(text: str) -> dict[str, StatDevice]:
    """Devices by name, in the order of the tool."""
    found: dict[str, _Open] = {}
    here = _Open()
    number = 1
    for line in text.splitlines():
        if device := _DEVICE.match(line):
            here, number = _Open(), 1
            found[device.group(1)] = here
        elif port := _PORT.match(line):
            number = int(port.group(1))
            here.ports[number] = {}
        elif pair := _FIELD.match(line):
            key, value = pair.groups()
            of_port = here.ports or key in _OF_PORT
            kept = here.ports.setdefault(number, {}) if of_port else here.fields
            kept.setdefault(key, value)
    _demand_whole(found)
    return {name: _device(device) for name, device in found.items()}


@derived
def ibstat(facts: Facts) -> dict[str, StatDevice]:
    """Devices of the host by name; Unread where the tool told none."""
    every = [r for r in facts.find("ibstat") if not _is_list(r.reading.options)]
    if not every:
        raise Unread("missing", SOURCE, "not collected")
    whole = [r for r in every if r.rc == 0 and not (r.timed_out or r.truncated)]
    merged: dict[str, StatDevice] = {}
    for result in whole or every[:1]:
        merged.update(parse_ibstat(result.text()))
    return merged


def ibstat_told(facts: Facts, device: str, number: int, name: str) -> str:
    """`state`, `physical` or `link_layer` of a port; Unread where it is not told."""
    port = _named(facts, device).ports.get(number)
    value = getattr(port, name) if port is not None else ""
    if not value:
        raise Unread("missing", f"{SOURCE}: {device}/{number}", f"no {name}")
    return str(value)


def ibstat_firmware(facts: Facts, device: str) -> str:
    """The running firmware of a device; Unread where it is not told."""
    firmware = _named(facts, device).firmware
    if not firmware:
        raise Unread("missing", f"{SOURCE}: {device}", "no firmware version")
    return firmware


def _named(facts: Facts, device: str) -> StatDevice:
    found = ibstat(facts).get(device)
    if found is None:
        raise Unread("absent", SOURCE, f"it does not name {device}")
    return found


def _is_list(options: Mapping[str, str]) -> bool:
    """Lists of names or of GUIDs, and devices without their ports."""
    short = {"-l", "--list_of_cas", "-p", "--port_list", "-s", "--short"}
    return bool(short & set(options))


def _demand_whole(found: Mapping[str, _Open]) -> None:
    if not found:
        raise Garbled(SOURCE, "no device in it")
    last = list(found.values())[-1]
    ports = list(last.ports.values())
    promised = last.fields.get("Number of ports", str(len(ports)))
    if not ports or "Link layer" not in ports[-1] or promised != str(len(ports)):
        raise Garbled(SOURCE, "it ends within a device")


def _device(told: _Open) -> StatDevice:
    return StatDevice(
        firmware=told.fields.get("Firmware version", ""),
        ports={number: _port(fields) for number, fields in told.ports.items()},
    )


def _port(fields: Mapping[str, str]) -> StatPort:
    return StatPort(
        state=_word(fields.get("State", ""), _STATES),
        physical=_word(fields.get("Physical state", ""), _PHYSICAL),
        link_layer=_word(fields.get("Link layer", ""), _LAYERS),
    )


def _word(text: str, known: Mapping[str, str]) -> str:
    """A word that is known, in our spelling; any other refuses the whole text."""
    key = text.lower().replace(" ", "")
    if key and key not in known:
        raise Garbled(SOURCE, f"no such state or link layer: {text!r}")
    return known.get(key, "")
