"""What a measurement under one fault is given, and what all of them share."""

from __future__ import annotations

import time
from dataclasses import dataclass
from importlib import metadata
from typing import TYPE_CHECKING, Any, Final

from chaos.conformance.measured import Measured
from chaos.conformance.properties import PROPERTIES

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from chaos.conformance.faults import NamedFault
    from chaos.conformance.properties import Arm, Property
    from chaos.faults.base import Receipt
    from chaos.faults.injector import Injection, Injector
    from chaos.systems.base import Cluster

STORES: Final = 3
ENOUGH: Final = 5
"""Reads that must have gone well before a property is said to hold."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """Which system in which version, and how it was set."""

    system: str
    version: str
    settings: str = "default"


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """A fault on a running cluster.

    `window_s` is how long the fault lasts; `patience_s` how long one call of a client
    is waited for before it is given up, and so the longest stall that can be told.
    """

    cluster: Cluster
    inject: Injector
    fault: NamedFault
    identity: Identity
    window_s: float
    patience_s: float
    reproduce: str = ""
    clock: Callable[[], float] = time.monotonic
    wait: Callable[[float], object] = time.sleep

    def injection(self, victim: str) -> Injection:
        """The fault, not yet injected."""
        return self.fault.make(self.cluster, self.inject, victim)

    def laws(self, arm: Arm) -> list[Property]:
        """The properties that this fault is measured for in an arm."""
        return [
            law
            for law in PROPERTIES
            if arm in law.arms and not (law.of_stores_only and self.fault.of_master)
        ]

    def measured(
        self, arm: Arm, law: str, *, held: bool | None, **told: Any
    ) -> Measured:
        """One row of this stage."""
        return Measured(
            system=self.identity.system,
            version=self.identity.version,
            settings=self.identity.settings,
            arm=arm,
            fault=self.fault.name,
            law=law,
            held=held,
            reproduce=self.reproduce,
            **told,
        )


def identity_of(cluster: Cluster) -> Identity:
    """What a cluster says it is; what says nothing is ours."""
    package = getattr(cluster, "package", None)
    if package is None:
        return Identity(system="refimpl", version=metadata.version("moonquake"))
    shape: Any = cluster.shape  # type: ignore[attr-defined]
    name = str(shape.profile.name)
    return Identity(system="mooncake", version=str(package.version), settings=name)


def untold(rows: Iterable[Measured], receipt: Receipt) -> list[Measured]:
    """Nothing is told of a fault without effect."""
    if receipt.had_effect:
        return list(rows)
    from dataclasses import replace

    reason = f"{receipt.kind} had no effect that could be seen"
    return [replace(row, held=None, reason=reason) for row in rows]


def held_of(good: int, bad: int, *, enough: int = ENOUGH) -> bool | None:
    """One bad one is enough to fail; some good ones are needed to hold."""
    if bad:
        return False
    return True if good >= enough else None


def why_untold(held: bool | None, samples: int) -> str:
    """The reason of a None, "" otherwise."""
    return f"{samples} reads are too few" if held is None else ""


def seconds(value: float) -> str:
    """As the tables print it."""
    return f"{value:.2f} s"


def longest(values: Sequence[float]) -> float:
    """The largest, 0 of none."""
    return max(values, default=0.0)
