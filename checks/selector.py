"""The NIC selector: which RDMA ports are judged.

The first of these that says anything decides: `--nics` > profile > Mooncake's own
environment (`MC_MS_FILTERS`, `MOONCAKE_DEVICE`, `--disaggregation-ib-device`) >
`NCCL_IB_HCA` (prefix match, `=` exact, `^` all but, `:port`) > a heuristic that leaves
out ports that are switched off (Disabled, Sleep), the NIC of the default route, and VFs
beside their own PF. Ports left out stay in the report as info (NVSentinel#1361: a port
that nobody uses was called fatal).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from checks.facts import Facts, Unread, derived
from checks.parse.ip_route import routes
from checks.parse.services import environment, services
from checks.ports import Port, ports

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_OFF = frozenset({"DISABLED", "SLEEP"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """The ports that are judged, and why the others are not."""

    origin: str
    chosen: tuple[Port, ...]
    excluded: Mapping[str, str] = field(default_factory=dict)
    missing: tuple[str, ...] = ()
    """Names that were asked for and that no port answers to."""

    @property
    def is_explicit(self) -> bool:
        """Somebody named the ports: none of them may be missing or off."""
        return self.origin != "heuristic"


def select(
    facts: Facts, nics: Sequence[str] = (), profile: Sequence[str] = ()
) -> Selection:
    """Chooses the ports of a node; Unread where its ports cannot be told."""
    every = ports(facts)
    for origin, names in (("--nics", nics), ("profile", profile)):
        if names:
            return _named(origin, every, tuple(names))
    origin, names = _of_mooncake(facts)
    if names:
        return _named(origin, every, names)
    hcas = environment(facts).get("NCCL_IB_HCA", "")
    if hcas.strip():
        return _nccl(every, hcas.strip())
    return _heuristic(facts, every)


@derived
def mooncake_devices(facts: Facts) -> tuple[str, tuple[str, ...]]:
    """Where Mooncake's devices are named, and their names."""
    return _of_mooncake(facts)


def _of_mooncake(facts: Facts) -> tuple[str, tuple[str, ...]]:
    env = environment(facts)
    for variable in ("MC_MS_FILTERS", "MOONCAKE_DEVICE"):
        names = _split(env.get(variable, ""))
        if names:
            return variable, names
    flag = "--disaggregation-ib-device"
    for service in services(facts):
        names = _split(service.option(flag) or "")
        if names:
            return flag, names
    return "", ()


def _split(text: str) -> tuple[str, ...]:
    words = (word.strip() for word in text.replace(";", ",").split(","))
    return tuple(
        word for word in words if word and word not in {"auto", "auto-discovery"}
    )


def _named(origin: str, every: Sequence[Port], names: tuple[str, ...]) -> Selection:
    answers = {port: {port.device, *port.touches} for port in every}
    chosen = tuple(port for port in every if answers[port] & set(names))
    known = {name for port in chosen for name in answers[port]}
    return Selection(
        origin=origin,
        chosen=chosen,
        excluded=_left(every, chosen, f"not named by {origin}"),
        missing=tuple(name for name in names if name not in known),
    )


def _nccl(every: Sequence[Port], text: str) -> Selection:
    deny = text.startswith("^")
    exact = text[1 if deny else 0 :].startswith("=")
    names = _split(text.lstrip("^="))
    hits = tuple(
        port for port in every if any(_nccl_hit(port, n, exact=exact) for n in names)
    )
    chosen = tuple(port for port in every if (port in hits) != deny)
    unmet = tuple(
        n
        for n in names
        if not deny and not any(_nccl_hit(port, n, exact=exact) for port in every)
    )
    return Selection(
        origin="NCCL_IB_HCA",
        chosen=chosen,
        excluded=_left(every, chosen, f"left out by NCCL_IB_HCA={text}"),
        missing=unmet,
    )


def _nccl_hit(port: Port, name: str, *, exact: bool) -> bool:
    device, _, number = name.partition(":")
    if number.isdigit() and int(number) != port.number:
        return False
    return port.device == device if exact else port.device.startswith(device)


def _heuristic(facts: Facts, every: Sequence[Port]) -> Selection:
    excluded: dict[str, str] = {}
    for port in every:
        reason = _off(port) or ("a virtual function" if port.is_vf() else "")
        if reason:
            excluded[port.label] = reason
    kept = [port for port in every if port.label not in excluded]
    others = [port for port in kept if not _carries_default(facts, port)]
    for port in kept:
        if others and port not in others:
            excluded[port.label] = "the NIC of the default route"
    return Selection(
        origin="heuristic",
        chosen=tuple(port for port in every if port.label not in excluded),
        excluded=excluded,
    )


def _off(port: Port) -> str:
    try:
        physical = port.physical()
    except Unread:
        return ""
    return f"switched off ({physical.capitalize()})" if physical in _OFF else ""


def _carries_default(facts: Facts, port: Port) -> bool:
    try:
        netdev = port.netdev()
    except Unread:
        return False
    return netdev != "" and netdev in default_devices(facts)


@derived
def default_devices(facts: Facts) -> frozenset[str]:
    """Devices of the default routes of table main; empty where they are unreadable."""
    found: set[str] = set()
    for version in (4, 6):
        try:
            main = routes(facts, version).get("main", ())
        except Unread:
            continue
        found |= {hop.dev for route in main if route.is_default for hop in route.hops}
    return frozenset(found)


def _left(every: Sequence[Port], chosen: Sequence[Port], reason: str) -> dict[str, str]:
    return {port.label: reason for port in every if port not in chosen}
