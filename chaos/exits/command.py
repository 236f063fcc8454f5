"""`scripts/soak matrix`: the cells that were asked for, on one lab, and one summary."""

from __future__ import annotations

import signal
import sys
import tempfile
from collections import Counter
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from chaos.errors import UsageError
from chaos.exits.cells import ENDINGS, KINDS, TARGETS, draw, product
from chaos.exits.matrix import HOSTS, Matrix, play_all
from chaos.targets.lab import Lab, LabShape

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from chaos.exits.cells import Cell
    from chaos.exits.matrix import Outcome


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """What was asked for; `cells` None is all of the product."""

    seed: int = 1
    cells: int | None = None
    endings: tuple[str, ...] = ENDINGS
    kinds: tuple[str, ...] = KINDS
    targets: tuple[str, ...] = TARGETS


def run(wanted: Wanted) -> bool:
    """Plays the cells; True when nothing was left by any of them.

    Raises:
        UsageError: There is no such cell, or no lab can be had here.
    """
    every = _every(wanted)
    total = len(every)
    if wanted.cells is not None:
        total = max(wanted.cells, len({each.ending for each in every}))
    with ExitStack() as stack:
        for number in (signal.SIGTERM, signal.SIGHUP):  # lab and run end with us
            old = signal.signal(number, lambda code, _: sys.exit(128 + code))
            stack.callback(signal.signal, number, old)
        folder = Path(stack.enter_context(_folder()))
        # What a run leaves in the lab's files is of no interest; what on its hosts is.
        inventory = folder / "lab.yaml"
        lab = None
        if any(each.target != "netns" for each in every):
            lab = stack.enter_context(
                Lab.up(
                    LabShape.of(HOSTS), directory=folder / "lab", inventory=inventory
                )
            )
        matrix = Matrix(folder, lab, inventory)
        outcomes = play_all(matrix, _chosen(wanted, every), total)
    return _summary(wanted, outcomes)


def _every(wanted: Wanted) -> list[Cell]:
    for given, known in (
        (wanted.endings, ENDINGS),
        (wanted.kinds, KINDS),
        (wanted.targets, TARGETS),
    ):
        unknown = [name for name in given if name not in known]
        if unknown:
            raise UsageError(f"no cell has {unknown[0]!r}", f"take {', '.join(known)}")
    every = product(
        wanted.seed,
        endings=wanted.endings,
        kinds=wanted.kinds,
        targets=wanted.targets,
    )
    if not every:
        raise UsageError("there is no such cell", "these endings are of ssh alone")
    return every


def _chosen(
    wanted: Wanted, every: list[Cell]
) -> Callable[[Callable[[Cell], bool]], Iterator[Cell]]:
    if wanted.cells is not None:
        count = wanted.cells
        return lambda here: draw(every, count, wanted.seed, here)
    return lambda here: (each for each in every if here(each))


def _folder() -> tempfile.TemporaryDirectory[str]:
    return tempfile.TemporaryDirectory(prefix="moonquake-soak-")


def _summary(wanted: Wanted, outcomes: list[Outcome]) -> bool:
    bad = [each for each in outcomes if each.problems]
    played = [each for each in outcomes if not each.missing]
    missing = {each.cell.kind: each.missing for each in outcomes if each.missing}
    healed = max((each.healed_s for each in played), default=0.0)
    lines = [f"{kind} is not here: {reason}" for kind, reason in missing.items()]
    lines += [
        f"{len(played)} cells (seed {wanted.seed}), {len(bad)} left something;"
        f" slowest as before after {healed:.1f} s"
    ]
    endings = Counter(each.cell.ending for each in played)
    lines.append("endings: " + ", ".join(f"{n} {c}" for n, c in endings.items()))
    lines += [f"NOT OK: {each.cell.name}: {each.cell.again}" for each in bad]
    sys.stdout.write("".join(f"{line}\n" for line in lines))
    return not bad
