"""The exit matrix: every way in which a run may end, under every kind of fault.

A cell is one run that is ended once; everything random about it comes from the seed and
the cell's own name, so that one cell can be repeated without the others.
"""

from __future__ import annotations

import itertools
import random
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

KINDS: Final = (
    "kill",
    "pause",
    "restart",
    "nic_down",
    "flap",
    "partition",
    "blackhole",
    "reset",
    "loss",
    "bandwidth",
    "tap",
    "latency",
    "reorder",
    "corrupt",
    "memory",
    "memory_limit",
    "cpu",
    "disk_full",
    "slow_disk",
    "clock_step",
    "port_taken",
    "failpoint",
)
SIGNALS: Final = ("sigint", "sigterm", "sighup", "sigkill", "worker-sigkill")
OF_CONTROLLER: Final = ("pass", "failing", "fixture", *SIGNALS)
CUTS: Final = ("cut-before", "cut-arming", "cut-active", "cut-disarming")
ENDINGS: Final = (*OF_CONTROLLER, *CUTS, "reboot")
AT_ONCE: Final = frozenset({"clock_step", "failpoint"})
"""Kinds that no agent arms: they are in, and out, with one request to the role."""
WAYS: Final = ("silent", "sessions", "relays")
"""Of a cut: nothing gets through any more, the daemons of the connections die, or our
programs at their other end die."""
TARGETS: Final = ("ssh", "netns", "observed")
"""`observed`: over SSH, and the role that is broken is somebody else's."""
NEEDS_OUR_ROLE: Final = frozenset({"restart", "port_taken", *AT_ONCE})
"""Kinds that start a role, or tell it something: its owner would not know."""
_PHASES: Final = ("active", "active", "arming", "disarming")


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """One run and its ending.

    `phase` is when the ending comes, `after_s` how long after the phase began, `way`
    how a connection is cut, "" when none is.
    """

    target: str
    ending: str
    kind: str
    seed: int
    phase: str
    after_s: float
    way: str = ""

    @property
    def name(self) -> str:
        way = f" ({self.way})" if self.way else ""
        return f"{self.target} {self.ending}{way} x {self.kind}, {self.phase}"

    @property
    def again(self) -> str:
        """The command that plays this very cell."""
        return (
            f"scripts/soak matrix --seed {self.seed} --target {self.target}"
            f" --only {self.ending} --kind {self.kind}"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """What the run of a cell is told: see `tests/chaos/exits/victim.py`."""

    kind: str
    ending: str
    marks: str
    holds: tuple[str, ...]
    slow: str

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> Order:
        return cls(**{**document, "holds": tuple(document["holds"])})


def cell(target: str, ending: str, kind: str, seed: int) -> Cell:
    """The cell of this name, with what the seed says of it."""
    rng = random.Random(f"{seed}:{target}:{ending}:{kind}")
    phase, way = "active", ""
    if ending in CUTS:
        phase, way = ending.removeprefix("cut-"), rng.choice(WAYS)
    elif ending in SIGNALS and kind not in AT_ONCE:
        phase = rng.choice(_PHASES)
    return Cell(
        target=target,
        ending=ending,
        kind=kind,
        seed=seed,
        phase=phase,
        after_s=round(rng.uniform(0.0, 0.8), 2),
        way=way,
    )


def product(
    seed: int,
    *,
    endings: Sequence[str] = ENDINGS,
    kinds: Sequence[str] = KINDS,
    targets: Sequence[str] = TARGETS,
) -> list[Cell]:
    """Every cell there is; what happens to connections and machines is of ssh alone."""
    return [
        cell(target, ending, kind, seed)
        for target, ending, kind in itertools.product(targets, endings, kinds)
        if (target != "netns" or ending in OF_CONTROLLER)
        and not (target == "observed" and kind in NEEDS_OUR_ROLE)
    ]


def draw(
    cells: Sequence[Cell], count: int, seed: int, here: Callable[[Cell], bool]
) -> Iterator[Cell]:
    """A seeded draw: every ending once, then further cells; kinds by turns.

    Never fewer cells than there are endings. `here` says whether the kind of a cell can
    be had; one that turns out not to be when it is played is replaced.
    """
    rng = random.Random(f"{seed}:draw")
    left = rng.sample(cells, len(cells))
    endings = list(dict.fromkeys(each.ending for each in left))
    seen: list[str] = []
    for ending in [*endings, *[""] * (count - len(endings))]:
        while True:
            fitting = [c for c in left if ending in ("", c.ending) and here(c)]
            if not fitting:
                break
            chosen = min(fitting, key=lambda each: seen.count(each.kind))
            left.remove(chosen)
            yield chosen
            if here(chosen):
                seen.append(chosen.kind)
                break
