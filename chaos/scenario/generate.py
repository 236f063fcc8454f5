"""Random scenarios from a seed: only such as an operator could have written.

A step is drawn, and kept when the whole is still a scenario that may be played: faults
that exist on the target, blast radius within limits, and no two that cannot be together
(nobody pauses what was killed). What comes out is a plain document, which goes through
the same loader as a file, and can be written to one.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import yaml

from chaos.safety.limits import BlastLimits, Topology, refusals
from chaos.scenario.check import problems_of, role_names, roles_in
from chaos.scenario.kinds import STARTS_A_ROLE
from chaos.scenario.schedule import schedule_of, windows
from chaos.scenario.schema import Scenario

if TYPE_CHECKING:
    import random
    from collections.abc import Callable, Mapping

    from chaos.scenario.schedule import PlannedFault, Schedule

Document = dict[str, Any]
_TRIES = 40
_PROCESS = frozenset({"kill", "pause", "restart"})
_CUTS = frozenset({"partition", "blackhole", "reset"})
_NEEDS_ITS_ROLE = frozenset({"failpoint"})
_FAILPOINTS = {
    "store": (("store.read", "return(-800)"), ("store.read", "sleep(20)")),
    "master": (("master.lookup", "return(-1)"), ("master.put_start", "return(-1)")),
    "engine": (("hicache.before_get", "every(3,-800)"),),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Space:
    """From what scenarios are drawn. Times are the system's own seconds.

    `kinds` are fault kinds with their weights; those that the target lacks are left
    out by whoever knows it.
    """

    stores: int = 3
    engines: int = 2
    rails: int = 2
    store_bytes: int = 16 << 20
    kinds: Mapping[str, int]
    most_steps: int = 4
    lead_s: float = 6.0
    spread_s: float = 16.0
    shortest_s: float = 4.0
    longest_s: float = 14.0
    after_s: float = 8.0
    rate_per_s: float = 1.5


LOCAL_KINDS: Mapping[str, int] = {
    "kill": 3,
    "pause": 4,
    "restart": 3,
    "nic_down": 4,
    "partition": 4,
    "latency": 4,
    "bandwidth": 4,
    "reset": 3,
    "blackhole": 4,
    "failpoint": 4,
}
"""What the local target can do, rarer where it costs the start of a process."""


def random_document(dice: random.Random, space: Space, number: int) -> Document:
    """A scenario as a plain document; `number` is part of its name."""
    document = _frame(dice, space, number)
    wanted = dice.randint(1, space.most_steps)
    for _ in range(_TRIES):
        if len(document["timeline"]) == wanted:
            break
        step = _step(dice, space)
        grown = {**document, "timeline": [*document["timeline"], step]}
        if playable(grown):
            document = grown
    if not document["timeline"]:
        document["timeline"] = [_fallback(space)]
    return document


def random_scenario(dice: random.Random, space: Space, number: int) -> Scenario:
    """The same, checked as a file is."""
    return Scenario.model_validate(random_document(dice, space, number))


def as_yaml(document: Document) -> str:
    """The document as a scenario file."""
    return yaml.safe_dump(document, sort_keys=False, width=100)


def playable(document: Document) -> bool:
    """Whether this is a scenario that would start, and whose faults go together."""
    scenario = Scenario.model_validate(document)
    if problems_of(scenario):
        return False
    host_of = _hosts(scenario)
    schedule = schedule_of(scenario, host_of=host_of)
    blast: BlastLimits = scenario.limits.blast
    topology = Topology(masters=frozenset({"master"}), host_of=host_of)
    if refusals(windows(schedule, scenario), blast, topology):
        return False
    return not clashes(schedule, role_names(scenario.cluster))


def clashes(schedule: Schedule, roles: frozenset[str]) -> list[str]:
    """Pairs of faults that cannot be in place at the same time, in words."""
    return [
        f"{one.name} and {other.name}"
        for one, other in itertools.combinations(schedule.faults, 2)
        if _meet(one, other)
        and (_same_process(one, other, roles) or _cannot_start(one, other, roles))
    ]


def _meet(one: PlannedFault, other: PlannedFault) -> bool:
    return one.at_s <= other.end_s and other.at_s <= one.end_s


def _same_process(
    one: PlannedFault, other: PlannedFault, roles: frozenset[str]
) -> bool:
    """Two that need the very same process: one of them would find it gone."""
    shared = roles_in(one.target, roles) & roles_in(other.target, roles)
    kinds = {one.kind, other.kind}
    if not shared:
        return False
    if kinds <= _PROCESS:
        return True
    return bool(kinds & _PROCESS) and bool(kinds & _NEEDS_ITS_ROLE)


def _cannot_start(
    one: PlannedFault, other: PlannedFault, roles: frozenset[str]
) -> bool:
    """A role that starts asks for the master: neither it nor the way may be away."""
    for starts, away in ((one, other), (other, one)):
        if starts.kind not in STARTS_A_ROLE:
            continue
        about = roles_in(away.target, roles)
        cut = away.kind in _CUTS and bool(about & roles_in(starts.target, roles))
        if cut or away.target == "master":
            return True
    return False


def _frame(dice: random.Random, space: Space, number: int) -> Document:
    """Everything but the timeline."""
    return {
        "name": f"random scenario {number}",
        "seed": dice.randrange(1 << 30),
        "cluster": {
            "stores": space.stores,
            "engines": space.engines,
            "rails": space.rails,
            "store_bytes": space.store_bytes,
        },
        "load": {
            "rate_per_s": space.rate_per_s,
            "sessions": 6,
            "max_input_tokens": 3072,
            "pulse": 2,
            "after": space.after_s,
        },
        "timeline": [],
        "abort": [{"wrong_bytes": 0}],
        "steady_state": {"before": 200, "recovery_slo": 400},
        "limits": {
            "max_nodes_down": dice.choice((1, 1, 1, 2)),
            "allow_quorum_loss": dice.random() < 0.5,
        },
        "judge": ["O1", "O3", "O4", "O11"],
    }


def _step(dice: random.Random, space: Space) -> Document:
    step: Document = {}
    shape = dice.random()
    if shape < 0.2:
        step["together"] = [_fault(dice, space) for _ in range(2)]
    elif shape < 0.3:
        step["one_of"] = [_fault(dice, space) for _ in range(2)]
    else:
        step.update(_fault(dice, space))
    step["at"] = _tenths(dice, space.lead_s, space.lead_s + space.spread_s)
    faults: list[Document] = step.get("together") or step.get("one_of") or [step]
    if any(fault["fault"] != "restart" for fault in faults):
        step["for"] = _lasts(dice, space)
    if shape > 0.85 and "for" in step and not isinstance(step["for"], dict):
        step["every"] = step["for"] + _tenths(dice, 1.0, 4.0)
        step["times"] = 2
    return step


def _lasts(dice: random.Random, space: Space) -> Any:
    """How long: mostly a number, now and then left to the seed."""
    low = _tenths(dice, space.shortest_s, space.longest_s)
    if dice.random() < 0.15:
        return {"between": [low, round(low + 2.0, 1)]}
    return low


def _fault(dice: random.Random, space: Space) -> Document:
    names = sorted(space.kinds)
    (kind,) = dice.choices(names, [space.kinds[name] for name in names])
    return {"fault": kind, **_DRAWS[kind](dice, space)}


def _process(dice: random.Random, space: Space) -> Document:
    """Mostly stores, sometimes the master, rarely an engine."""
    where = dice.random()
    if where < 0.75:
        return {"target": _store(dice, space)}
    if where < 0.92:
        return {"target": "master"}
    return {"target": f"engine-{dice.randrange(space.engines)}"}


def _restart(dice: random.Random, space: Space) -> Document:
    return {**_process(dice, space), "orderly": dice.random() < 0.5}


def _nic_down(dice: random.Random, space: Space) -> Document:
    return {"target": _store(dice, space), "rail": f"rail{dice.randrange(space.rails)}"}


def _partition(dice: random.Random, space: Space) -> Document:
    drawn: Document = {"target": _store(dice, space)}
    if dice.random() < 0.3:
        drawn["plane"] = dice.choice(("data", "rpc", "heartbeat"))
    return drawn


def _link(dice: random.Random, space: Space) -> str:
    """All data links of a store, or one rail, or the way to the master."""
    store = _named_store(dice, space)
    where = dice.random()
    if where < 0.5:
        return store
    if where < 0.8:
        return f"{store}.rail{dice.randrange(space.rails)}"
    return f"master.rpc@engine-{dice.randrange(space.engines)}"


def _latency(dice: random.Random, space: Space) -> Document:
    drawn: Document = {"target": _link(dice, space)}
    drawn["latency_ms"] = dice.choice((100, 500, {"between": [50, 2000]}))
    if dice.random() < 0.3:
        drawn["jitter_ms"] = 100
    return drawn


def _bandwidth(dice: random.Random, space: Space) -> Document:
    return {"target": _link(dice, space), "kb_per_s": dice.choice((5, 20, 200))}


def _links(dice: random.Random, space: Space) -> Document:
    return {"target": _link(dice, space)}


def _failpoint(dice: random.Random, space: Space) -> Document:
    kind = dice.choice(("store", "store", "master", "engine"))
    name, spec = dice.choice(_FAILPOINTS[kind])
    target = "master"
    if kind != "master":
        count = space.stores if kind == "store" else space.engines
        target = f"{kind}-{dice.randrange(count)}"
    return {"target": target, "name": name, "spec": spec}


_DRAWS: Mapping[str, Callable[[random.Random, Space], Document]] = {
    "kill": _process,
    "pause": _process,
    "restart": _restart,
    "nic_down": _nic_down,
    "partition": _partition,
    "latency": _latency,
    "bandwidth": _bandwidth,
    "reset": _links,
    "blackhole": _links,
    "failpoint": _failpoint,
}


def _store(dice: random.Random, space: Space) -> Any:
    """A store by its name, or left to the seed of the scenario."""
    return {"any": "store"} if dice.random() < 0.3 else _named_store(dice, space)


def _named_store(dice: random.Random, space: Space) -> str:
    return f"store-{dice.randrange(space.stores)}"


def _tenths(dice: random.Random, low: float, high: float) -> float:
    return round(dice.uniform(low, high), 1)


def _fallback(space: Space) -> Document:
    """What is always allowed, should every draw have been refused."""
    return {
        "fault": "latency",
        "target": "store-0",
        "latency_ms": 100,
        "at": space.lead_s,
        "for": space.shortest_s,
    }


def _hosts(scenario: Scenario) -> Callable[[str], str]:
    """Hosts as the layout of the reference system has them: store and engine share."""
    shape = scenario.cluster
    hosts = -(-shape.stores // shape.stores_per_host)

    def host_of(role: str) -> str:
        kind, _, number = role.partition("-")
        if kind == "store":
            return f"h{int(number) // shape.stores_per_host}"
        return f"h{int(number) % hosts}" if kind == "engine" else role

    return host_of
