"""What a scenario must know of a kind of fault before there is a cluster.

The parameters come from the builders in `chaos.faults`, so a new fault needs no line
here to be used; how much it takes down does. A kind that nobody described counts as
taking its target down: the careful guess.
"""

from __future__ import annotations

import inspect
from dataclasses import dataclass, field
from enum import Enum, unique
from functools import cache
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import chaos.faults as build
from chaos.faults.injector import Injector

if TYPE_CHECKING:
    from collections.abc import Mapping

_GIVEN = ("cluster", "control")
"""What every builder takes first; the third is the target."""
_TYPES: Mapping[str, tuple[type, ...]] = {
    "int": (int,),
    "float": (int, float),
    "str": (str,),
    "bool": (bool,),
}


@unique
class Effect(Enum):
    """What a fault does to the role that it is on."""

    DOWN = "nobody can use it"
    SLOW = "it is there, but worse"
    NONE = "nothing, it is only watched"


_EFFECTS: Mapping[str, Effect] = {
    "kill": Effect.DOWN,
    "pause": Effect.DOWN,
    "restart": Effect.DOWN,
    "partition": Effect.DOWN,
    "blackhole": Effect.DOWN,
    "reset": Effect.DOWN,
    "nic_down": Effect.SLOW,  # all rails of a store: see `schedule.windows`
    "flap": Effect.SLOW,
    "latency": Effect.SLOW,
    "bandwidth": Effect.SLOW,
    "loss": Effect.SLOW,
    "corrupt": Effect.SLOW,
    "reorder": Effect.SLOW,
    "failpoint": Effect.SLOW,
    "clock_step": Effect.SLOW,
    "cpu": Effect.SLOW,
    "memory": Effect.SLOW,
    "memory_limit": Effect.SLOW,
    "disk_full": Effect.SLOW,
    "slow_disk": Effect.SLOW,
    "port_taken": Effect.SLOW,
    "tap": Effect.NONE,
}
INSTANT = frozenset({"restart"})
"""Over as soon as they are done: they have no `for`."""
RAIL_DOWN = frozenset({"nic_down"})
STARTS_A_ROLE = frozenset({"kill", "restart"})
OF_THE_PROCESS = frozenset(
    {"kill", "pause", "restart", "cpu", "memory", "memory_limit"}
)
"""They hit an engine itself: what it then fails is not the cache's doing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Parameter:
    """One parameter of a kind: its name in a scenario, and what it may be."""

    name: str
    argument: str
    types: tuple[type, ...]
    annotation: str
    required: bool

    def accepts(self, value: object) -> bool:
        """Whether a value of a file may stand here; a truth value is no number."""
        if not self.types:
            return True
        if isinstance(value, bool):
            return bool in self.types
        return isinstance(value, self.types)


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """One kind of fault."""

    name: str
    effect: Effect
    instant: bool
    parameters: Mapping[str, Parameter] = field(default_factory=dict)

    @property
    def takes(self) -> str:
        """The parameters in words."""
        return ", ".join(self.parameters) or "no parameter"


@cache
def kinds() -> Mapping[str, Kind]:
    """Every kind that `inject` offers, by name."""
    names = [name for name in build.__all__ if callable(getattr(Injector, name, None))]
    found = {}
    for name in sorted(names):
        signature = inspect.signature(getattr(build, name))
        if tuple(signature.parameters)[:2] == _GIVEN:
            found[name] = _kind(name, signature)
    return MappingProxyType(found)


def _kind(name: str, signature: inspect.Signature) -> Kind:
    parameters = [
        _parameter(parameter) for parameter in list(signature.parameters.values())[3:]
    ]
    return Kind(
        name=name,
        effect=_EFFECTS.get(name, Effect.DOWN),
        instant=name in INSTANT,
        parameters={parameter.name: parameter for parameter in parameters},
    )


def _parameter(parameter: inspect.Parameter) -> Parameter:
    annotation: Any = parameter.annotation
    return Parameter(
        name=parameter.name.rstrip("_"),
        argument=parameter.name,
        types=_TYPES.get(str(annotation), ()),
        annotation=str(annotation),
        required=parameter.default is inspect.Parameter.empty,
    )
