"""What a scenario would do, in words that an operator can check; nothing is started.

The schedule with its draws, the exact steps of every fault, and why what cannot run
cannot: the blast radius, a fault that the target does not have, a role that is not
there.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import chaos.faults as build
from chaos.errors import ChaosError, NotHere, UsageError
from chaos.safety.limits import BlastLimits, Topology, refusals
from chaos.scenario.planned_hosts import planned_target
from chaos.scenario.schedule import Schedule, schedule_of, windows
from chaos.systems import load_system
from chaos.targets.place import Place

if TYPE_CHECKING:
    from chaos.scenario.schedule import PlannedFault
    from chaos.scenario.schema import Scenario
    from chaos.systems.base import Cluster

_OF_A_PROCESS = {
    "kill": ("SIGKILL to", "start it again to revert, or leave that to its own rule"),
    "pause": ("SIGSTOP to", "SIGCONT to revert"),
    "restart": ("end", "start it again, or leave that to its own rule"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedStep:
    """One fault of a plan; `why_not` is "" when it would run."""

    name: str
    at_s: float
    for_s: float
    group: str = ""
    commands: tuple[str, ...] = ()
    why_not: str = ""

    def lines(self) -> list[str]:
        """As it is printed: when, what, and how exactly."""
        lasts = f" for {self.for_s:.2f} s" if self.for_s else ""
        with_ = f" [together: {self.group}]" if self.group else ""
        head = f"at {self.at_s:.2f} s{lasts}: {self.name}{with_}"
        if self.why_not:
            return [head, f"  CANNOT: {self.why_not}"]
        return [head, *(f"  {command}" for command in self.commands)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """A scenario as it would be played, in real seconds."""

    name: str
    seed: int
    time_scale: float
    load_s: float
    requests: int
    steps: tuple[PlannedStep, ...]
    abort: tuple[str, ...]
    refusals: tuple[str, ...] = field(default=())

    @property
    def runs(self) -> bool:
        return not self.refusals and not any(step.why_not for step in self.steps)

    def lines(self) -> list[str]:
        """As it is printed."""
        lines = [
            f"{self.name}: seed {self.seed}, time scale {self.time_scale:g}",
            f"load: {self.requests} requests in {self.load_s:.1f} s",
            *(f"abort when {condition}" for condition in self.abort),
        ]
        for step in self.steps:
            lines += step.lines()
        return lines + [f"REFUSED: {refusal}" for refusal in self.refusals]

    def to_json(self) -> dict[str, Any]:
        return {
            "scenario": self.name,
            "seed": self.seed,
            "time_scale": self.time_scale,
            "load_s": self.load_s,
            "requests": self.requests,
            "abort": list(self.abort),
            "refusals": list(self.refusals),
            "steps": [
                {
                    "fault": step.name,
                    "at_s": step.at_s,
                    "for_s": step.for_s,
                    "together": step.group,
                    "commands": list(step.commands),
                    "why_not": step.why_not,
                }
                for step in self.steps
            ],
        }


def planned_cluster(
    scenario: Scenario,
    *,
    system: str = "refimpl",
    place: Place | None = None,
    time_scale: float = 0.1,
) -> Cluster:
    """The cluster of a scenario as it would be in a place, with nothing running.

    Raises:
        UsageError: The inventory of the place cannot be used.
    """
    spec = scenario.cluster.spec(time_scale=time_scale, seed=scenario.seed)
    target = planned_target(place or Place(), Path("results"))
    cluster, _ = load_system(system).plan(spec, target)
    return cluster


def plan_scenario(
    scenario: Scenario,
    cluster: Cluster,
    *,
    seed: int | None = None,
    max_nodes_down: int | None = None,
) -> Plan:
    """The plan of a scenario on a cluster, planned or running."""
    schedule = schedule_of(scenario, seed=seed, host_of=cluster.host_of)
    scale = cluster.spec.time_scale
    scaled = schedule.scaled(scale)
    conditions = [str(spec.condition(scale)) for spec in scenario.abort]
    return Plan(
        name=scenario.name,
        seed=schedule.seed,
        time_scale=scale,
        load_s=scaled.load_s,
        requests=max(1, round(schedule.load_s * scenario.load.rate_per_s)),
        steps=tuple(_step(fault, cluster) for fault in scaled.faults),
        abort=tuple(conditions) or (f"never: {scenario.abort_reason}",),
        refusals=tuple(too_much(scenario, schedule, cluster, max_nodes_down)),
    )


def too_much(
    scenario: Scenario,
    schedule: Schedule,
    cluster: Cluster,
    max_nodes_down: int | None = None,
) -> list[str]:
    """Why the blast radius of a schedule is refused; empty when it is not.

    The operator's own limit can only be narrower than the file's.
    """
    blast = scenario.limits.blast
    if max_nodes_down is not None:
        blast = BlastLimits(
            max_nodes_down=min(max_nodes_down, blast.max_nodes_down),
            allow_quorum_loss=blast.allow_quorum_loss,
        )
    topology = Topology(masters=frozenset(cluster.masters), host_of=cluster.host_of)
    found = refusals(windows(schedule, scenario), blast, topology)
    return [str(refusal) for refusal in found]


def refuse_too_much(
    name: str,
    scenario: Scenario,
    schedule: Schedule,
    cluster: Cluster,
    max_nodes_down: int | None = None,
) -> None:
    """Does not let a scenario start whose blast radius is too large.

    Raises:
        UsageError: It breaks a rule; the first one is told.
    """
    found = too_much(scenario, schedule, cluster, max_nodes_down)
    if found:
        raise UsageError(f"{name}: seed {schedule.seed}: {found[0]}")


def _step(fault: PlannedFault, cluster: Cluster) -> PlannedStep:
    """The exact steps, or why there are none."""
    commands: tuple[str, ...] = ()
    why_not = ""
    try:
        commands = _commands(fault, cluster)
    except NotHere as error:
        why_not = error.reason
    except ChaosError as error:
        why_not = str(error)
    return PlannedStep(
        name=fault.name,
        at_s=fault.at_s,
        for_s=fault.for_s,
        group=fault.group,
        commands=commands,
        why_not=why_not,
    )


def _commands(fault: PlannedFault, cluster: Cluster) -> tuple[str, ...]:
    """What the fault itself says; of processes on hosts that do not run, in words."""
    words = _OF_A_PROCESS.get(fault.kind)
    hosts = cluster.hosts
    if words and hosts is not None and cluster.process(fault.target) is None:
        host = hosts.of(fault.target).name
        who = f"{fault.target} on {host}, by the pid and start time that it then has"
        return (f"{words[0]} {who}", words[1])
    make = getattr(build, fault.kind)
    return tuple(make(cluster, None, fault.target, **fault.parameters).plan())
