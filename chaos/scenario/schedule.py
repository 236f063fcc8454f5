"""A scenario with its dice thrown: what is broken, exactly when, on which role.

Everything comes from `random.Random("<seed>:<name>")`, in the order of the file, so one
seed is one schedule on every target. Times stay in the system's own seconds; `scaled`
gives real ones.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from chaos.safety.limits import FaultWindow
from chaos.scenario.check import role_names, roles_in, roles_of
from chaos.scenario.kinds import RAIL_DOWN, Effect, Kind, kinds
from chaos.scenario.schema import Between, OneOf

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from chaos.scenario.schema import FaultSpec, RoleChoice, Scenario, Step

_RATE_SUFFIX = "_per_s"
_TIME_SUFFIXES = ("_ms", "_s")


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedFault:
    """One fault of a schedule. `at_s` counts from the beginning of the load.

    `group` is shared by faults that were composed on purpose, "" for a single one.
    """

    number: int
    kind: str
    target: str
    parameters: Mapping[str, Any] = field(default_factory=dict)
    at_s: float
    for_s: float
    group: str = ""

    @property
    def end_s(self) -> float:
        return self.at_s + self.for_s

    @property
    def name(self) -> str:
        words = [self.target, *(f"{k}={v}" for k, v in self.parameters.items())]
        return f"{self.kind}({', '.join(words)})"


@dataclass(frozen=True, slots=True, kw_only=True)
class Schedule:
    """All faults in order of their beginning; the load runs until `load_s`."""

    name: str
    seed: int
    faults: tuple[PlannedFault, ...]
    load_s: float

    @property
    def ends_s(self) -> float:
        """When the last fault is undone."""
        return max((fault.end_s for fault in self.faults), default=0.0)

    def scaled(self, scale: float) -> Schedule:
        """The same in real seconds; see `scaled_parameters` for what else scales."""
        faults = tuple(
            replace(
                fault,
                at_s=fault.at_s * scale,
                for_s=fault.for_s * scale,
                parameters=scaled_parameters(fault.parameters, scale),
            )
            for fault in self.faults
        )
        return replace(self, faults=faults, load_s=self.load_s * scale)


def schedule_of(
    scenario: Scenario,
    *,
    seed: int | None = None,
    host_of: Callable[[str], str] | None = None,
) -> Schedule:
    """Throws the dice of a scenario.

    Args:
        scenario: one without problems.
        seed: instead of the file's own.
        host_of: the host of a role; `{any: store}` prefers one that is not broken
            already. Without it every role has a host of its own.
    """
    number = scenario.seed if seed is None else seed
    dice = random.Random(f"{number}:{scenario.name}")
    draw = _Draw(scenario, dice, host_of or str)
    for index, step in enumerate(scenario.timeline):
        draw.step(step, f"step-{index}")
    faults = sorted(draw.faults, key=lambda fault: (fault.at_s, fault.number))
    ends_s = max((fault.end_s for fault in faults), default=0.0)
    return Schedule(
        name=scenario.name,
        seed=number,
        faults=tuple(faults),
        load_s=ends_s + scenario.load.after,
    )


def windows(schedule: Schedule, scenario: Scenario) -> list[FaultWindow]:
    """The schedule as the guard of the blast radius sees it."""
    roles = role_names(scenario.cluster)
    known = kinds()
    rails = scenario.cluster.rails
    found = []
    for fault in schedule.faults:
        about = roles_in(fault.target, roles)
        effect = known[fault.kind].effect
        rails_down = _rails_down(fault, schedule.faults)
        down = effect is Effect.DOWN or (bool(rails_down) and rails_down >= rails)
        # A link between two roles takes neither of them down; one of its own does.
        whole = "@" not in fault.target
        found.append(
            FaultWindow(
                name=fault.name,
                roles=about if effect is not Effect.NONE else frozenset(),
                down=about if down and whole else frozenset(),
                begin_s=fault.at_s,
                end_s=fault.end_s,
                group=fault.group,
            )
        )
    return found


def scaled_parameters(parameters: Mapping[str, Any], scale: float) -> dict[str, Any]:
    """Parameters in real time: `*_ms` and `*_s` shrink with it, `*_per_s` grow.

    A slow link must stay as slow beside the deadlines that shrink with the factor. What
    was whole stays whole, and never becomes nothing.
    """
    return {name: _scaled(name, value, scale) for name, value in parameters.items()}


def _scaled(name: str, value: Any, scale: float) -> Any:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return value
    if name.endswith(_RATE_SUFFIX):
        factor = 1 / scale
    elif name.endswith(_TIME_SUFFIXES):
        factor = scale
    else:
        return value
    scaled = value * factor
    if not isinstance(value, int) or not value:
        return scaled
    whole = max(1, round(abs(scaled)))
    return whole if value > 0 else -whole


def _rails_down(fault: PlannedFault, faults: Sequence[PlannedFault]) -> int:
    """How many rails of this fault's store are down while it is, itself included."""
    if fault.kind not in RAIL_DOWN:
        return 0
    return len(
        {
            other.parameters.get("rail", "rail0")
            for other in faults
            if other.kind in RAIL_DOWN
            and other.target == fault.target
            and other.at_s < fault.end_s
            and fault.at_s < other.end_s
        }
    )


class _Draw:
    """The faults drawn so far, and the dice."""

    def __init__(
        self, scenario: Scenario, dice: random.Random, host_of: Callable[[str], str]
    ) -> None:
        self.faults: list[PlannedFault] = []
        self._shape = scenario.cluster
        self._roles = role_names(scenario.cluster)
        self._dice = dice
        self._host_of = host_of
        self._kinds: Mapping[str, Kind] = kinds()

    def step(self, step: Step, group: str) -> None:
        """Adds every repetition of one entry of the timeline."""
        turns = self._turns(step)
        first_s = self._drawn(step.at)
        for turn, role in enumerate(turns):
            at_s = first_s + turn * (step.every or 0.0)
            for_s = self._drawn(step.for_) if step.for_ is not None else 0.0
            specs = step.faults
            if step.one_of:
                specs = (self._dice.choice(specs),)
            name = f"{group}.{turn}" if len(specs) > 1 else ""
            for spec in specs:
                rest_s = max(0.0, for_s - spec.delay)
                self._add(spec, at_s + spec.delay, rest_s, name, role)

    def _turns(self, step: Step) -> list[str]:
        """One entry a repetition: the role of that turn, or "" when it is drawn."""
        for fault in step.faults:
            if fault.target.each:
                return list(roles_of(self._shape, fault.target.kind))
        return [""] * max(1, step.times)

    def _add(
        self, spec: FaultSpec, at_s: float, for_s: float, group: str, role: str
    ) -> None:
        lasts_s = 0.0 if self._kinds[spec.fault].instant else for_s
        in_turn = role if spec.target.each else ""
        target = in_turn or self._role(spec.target, at_s, lasts_s)
        parameters = {
            self._kinds[spec.fault].parameters[name].argument: self._drawn(value)
            for name, value in spec.parameters.items()
        }
        self.faults.append(
            PlannedFault(
                number=len(self.faults),
                kind=spec.fault,
                target=target,
                parameters=parameters,
                at_s=at_s,
                for_s=lasts_s,
                group=group,
            )
        )

    def _role(self, choice: RoleChoice, at_s: float, for_s: float) -> str:
        names = list(choice.names or roles_of(self._shape, choice.kind))
        if len(names) == 1:
            return names[0]
        busy = {
            self._host_of(role)
            for fault in self.faults
            if fault.at_s <= at_s + for_s and at_s <= fault.end_s
            for role in roles_in(fault.target, self._roles)
        }
        free = [name for name in names if not self._hosts(name) & busy]
        return self._dice.choice(free or names)

    def _hosts(self, target: str) -> set[str]:
        return {self._host_of(role) for role in roles_in(target, self._roles)}

    def _drawn(self, value: Any) -> Any:
        if isinstance(value, OneOf):
            return self._dice.choice(value.values)
        if isinstance(value, Between):
            low, high = value.low, value.high
            if isinstance(low, int) and isinstance(high, int):
                return self._dice.randint(low, high)
            return self._dice.uniform(low, high)
        return value
