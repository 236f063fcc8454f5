"""What a run of suites would do on other machines, printed instead of done.

Without `--arm` nothing is connected to, started or broken. The plan names every host
with the command of its agent and of its roles, and of every kind of fault that the
chosen tests order one example with its exact steps, or why it cannot be.
"""

from __future__ import annotations

import ast
import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import chaos.faults as build
from chaos.errors import ChaosError, NotHere
from chaos.safety.remote import read_inventory
from chaos.scenario.planned_hosts import planned_target
from chaos.systems import load_system
from chaos.systems.base import ClusterSpec

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from chaos.systems.base import Cluster
    from chaos.targets.place import Place
    from inventory.schema import HostEntry

_EXAMPLES: dict[str, tuple[Any, ...]] = {
    "latency": (50, 5),
    "bandwidth": (8_000,),
    "loss": (1.0,),
    "corrupt": (0.1,),
    "clock_step": (5.0,),
    "memory": (64 << 20,),
    "slow_disk": (1_000,),
    "failpoint": ("store.read", "return(-800)"),
}
"""What an example takes beside its target."""
_TAPPED = "tap"


@dataclass(frozen=True, slots=True, kw_only=True)
class SuitePlan:
    """Hosts with their commands, and the faults that the chosen tests order."""

    hosts: tuple[str, ...]
    faults: tuple[str, ...]

    def lines(self) -> list[str]:
        return [*self.hosts, "", *self.faults]


def kinds_ordered(sources: Iterable[Path]) -> list[str]:
    """The kinds of fault that test modules order, by name: every `inject.<kind>(`."""
    found: set[str] = set()
    for source in sorted(set(sources)):
        for node in ast.walk(ast.parse(source.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Attribute) and _is_inject(node.value):
                found.add(node.attr)
    return sorted(found & set(build.__all__))


def _is_inject(node: ast.expr) -> bool:
    return isinstance(node, ast.Name) and node.id == "inject"


def plan_suites(
    place: Place,
    *,
    system: str,
    time_scale: float,
    sources: Iterable[Path],
) -> SuitePlan:
    """The plan of the suites in these files, on the default cluster.

    Raises:
        UsageError: The inventory cannot be used, or has no host for a role.
    """
    spec = ClusterSpec(time_scale=time_scale)
    target = planned_target(place, Path("results"))
    cluster, commands = load_system(system).plan(spec, target)
    faults: list[str] = []
    for kind in kinds_ordered(sources):
        faults += _fault(kind, cluster)
    return SuitePlan(
        hosts=tuple(_hosts(place, cluster, commands)), faults=tuple(faults)
    )


def _hosts(place: Place, cluster: Cluster, commands: Sequence[str]) -> list[str]:
    """Every host that would be touched, and all that would be started there."""
    assert cluster.hosts is not None
    entries = {e.name: e for e in read_inventory(place.inventory).hosts}
    roles = (*cluster.masters, *cluster.stores, *cluster.engines)
    told: dict[str, list[str]] = {}
    for role, command in zip(roles, commands, strict=True):
        host = cluster.hosts.of(role)
        told.setdefault(host.name, []).append(f"  {role}: {command}")
    lines: list[str] = []
    for name, started in told.items():
        lines += [_agent(entries[name], place.fault_ttl_s), *started]
    return lines


def _agent(entry: HostEntry, ttl_s: float) -> str:
    way = f"{entry.user}@{entry.address}:{entry.port}" if entry.user else entry.address
    words = entry.elevated([entry.python, "-I", "-", "serve", f"--ttl={ttl_s:g}"])
    return f"{entry.name} ({way}): {shlex.join(words)} < chaos/hosts/agent.py"


def _fault(kind: str, cluster: Cluster) -> list[str]:
    """One example of a kind: its steps, or why there are none."""
    target: Any = cluster.stores[0]
    if kind == _TAPPED:
        target = [link for link in cluster.links if link.plane == "rpc"][:1]
    name = f"{kind} on {target if isinstance(target, str) else target[0].name}"
    try:
        fault = getattr(build, kind)(cluster, None, target, *_EXAMPLES.get(kind, ()))
        steps: Sequence[str] = fault.plan()
    except NotHere as error:
        return [f"{name}", f"  CANNOT: {error.reason}"]
    except ChaosError as error:
        return [f"{name}", f"  CANNOT: {error}"]
    return [name, *(f"  {step}" for step in steps)]
