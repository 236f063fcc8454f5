"""Asks a host for the facts that faults and the management guard need."""

from __future__ import annotations

from typing import TYPE_CHECKING

from chaos.hosts import capability
from chaos.safety.facts import COMMANDS, Told, destinations, peers_of, read_facts
from chaos.safety.facts import route_to as _route_to
from chaos.safety.management import HostFacts

if TYPE_CHECKING:
    from collections.abc import Sequence

    from chaos.hosts.host import Host

_TIMEOUT_S = 5.0


def tell(host: Host, argv: Sequence[str], *, stdin: str = "") -> Told:
    """What a command that only reads says on a host.

    Raises:
        HarnessError: The host is not reached.
    """
    done = host.agent.run(list(argv), stdin=stdin, timeout_s=_TIMEOUT_S)
    return Told(rc=done.rc, stdout=done.stdout)


def has_agent(host: Host) -> bool:
    """Whether there is somebody to ask: a plan has hosts without agents."""
    return bool(getattr(host, "agent", None))


def gather(host: Host) -> HostFacts:
    """The facts of a host as it is now; empty where there is no agent (a plan).

    A device that carries roles' traffic as well as management is not closed as a whole:
    its sockets are still guarded, and it is still never taken down or shaped.

    Raises:
        HarnessError: The host is not reached, or does not tell its devices.
    """
    if not has_agent(host):
        return HostFacts(host=host.name)
    told = {name: tell(host, argv) for name, argv in COMMANDS.items()}
    controllers = peers_of(told, str(getattr(host, "controller", "")))
    ways = destinations(told, controllers)
    routes = {address: tell(host, _route_to(address)) for address in ways}
    warden = int(getattr(host.agent.connector, "warden", 0))
    return read_facts(
        host.name,
        told,
        routes,
        controllers=controllers,
        management=_own_management(host),
        metrics_ports=tuple(getattr(host, "metrics_ports", ())),
        pids=frozenset({host.agent.hello().pid, warden}) - {0},
    )


def why_not(host: Host, kind: str) -> str:
    """Why a host cannot do a kind of fault, or lacks one thing; "" when it can.

    Where there is no agent (a plan) everything is taken to be possible.

    Raises:
        HarnessError: The host is not reached.
    """
    if not has_agent(host):
        return ""
    probe = host.agent.probe()
    told = {name: tell(host, argv) for name, argv in capability.COMMANDS.items()}
    extras = capability.extras(told, scratch_of(host))
    if kind in capability.NEEDS:
        return capability.why_not(kind, probe, extras)
    return capability.lacking(kind, probe, extras)


def scratch_of(host: Host) -> str:
    """The mount that may be filled, "" when none is named."""
    return str(getattr(host, "scratch", ""))


def _own_management(host: Host) -> str:
    device = host.devices.get("management", "")
    shared = [d for plane, d in host.devices.items() if plane != "management"]
    return "" if device in shared else device
