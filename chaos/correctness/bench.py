"""A stage outside of pytest: plays schedules on clusters of their shapes, and shrinks.

One bench keeps its cluster from play to play while schedules ask for the same shape.
"""

from __future__ import annotations

import itertools
import shlex
import sys
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from chaos.clusters import Clusters
from chaos.correctness.judges import findings_of
from chaos.correctness.laws import laws_of
from chaos.correctness.player import Stage, play
from chaos.correctness.shrink import Budget, shrink
from chaos.correctness.slices import slices
from chaos.correctness.spaces import laws_mode
from chaos.errors import ChaosError, UsageError
from chaos.faults.injector import Injector
from chaos.history.history import History
from chaos.judge.verdict import Verdict
from chaos.safety.halt import LeverPoll, Levers, LocalLever
from chaos.scenario.place import place_of
from chaos.steady import SteadyState
from chaos.systems.base import ClusterSpec

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from chaos.correctness.findings import Finding, Kind
    from chaos.correctness.player import Played
    from chaos.correctness.schedule import Schedule, Step
    from chaos.correctness.shrink import Shrunk
    from chaos.systems.base import Cluster


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """One play: what was seen, what was found, and where all of it is written."""

    played: Played
    findings: tuple[Finding, ...]
    history: Path

    @property
    def kinds(self) -> frozenset[Kind]:
        return frozenset(finding.kind for finding in self.findings)


def spec_of(schedule: Schedule, defects: tuple[str, ...] = ()) -> ClusterSpec:
    """The cluster that a schedule asks for.

    Raises:
        UsageError: Its shape has a field that no cluster has.
    """
    shape: dict[str, Any] = dict(schedule.shape)
    shape.setdefault("time_scale", schedule.time_scale)
    shape.setdefault("seed", schedule.seed)
    try:
        return ClusterSpec(**shape, defects=defects)
    except TypeError as error:
        raise UsageError(f"{schedule.name}: shape: {error}") from None


class Bench:
    """Plays schedules one after the other; nothing starts before the first one.

    Args:
        system: name of the system under test; a schedule for another one is refused.
        folder: histories and logs of roles go there.
        defects: of the reference system, to see them found.
    """

    def __init__(
        self,
        system: str,
        folder: Path,
        *,
        target: str = "local",
        defects: tuple[str, ...] = (),
    ) -> None:
        self._system = system
        self._folder = folder
        self._defects = defects
        self._numbers = itertools.count(1)
        folder.mkdir(parents=True, exist_ok=True)
        self._clusters = Clusters(
            system=system,
            run_dir=folder,
            command=shlex.join(sys.argv),
            place=place_of(target),
        )

    def play(self, schedule: Schedule) -> Outcome:
        """Plays once, on an empty cluster; its faults are undone whatever happens."""
        if schedule.system != self._system:
            problem = f"{schedule.name} is for {schedule.system}, not {self._system}"
            raise UsageError(problem, f"say --system {schedule.system}")
        cluster = self._clusters.get(spec_of(schedule, self._defects))
        path = self._folder / f"history-{next(self._numbers)}.jsonl"
        inject = Injector(
            lambda: cluster, lambda: self._clusters.control, self._clusters.ledger
        )
        with History(path) as history:
            history.limits(cluster.limits)
            try:
                played = play(schedule, self._stage(cluster, inject, history))
            finally:
                inject.revert_all()
        mode = laws_mode(self._system, schedule.shape)
        laws = laws_of(self._system, mode, cluster.limits)
        found = tuple(findings_of(played, laws))
        return Outcome(played=played, findings=found, history=path)

    def shrink(
        self,
        schedule: Schedule,
        finding: Finding,
        *,
        budget: Budget | None = None,
        tries: int = 1,
        say: Callable[[str], object] = lambda _: None,
    ) -> Shrunk:
        """The smallest part of a schedule that still shows findings of this kind.

        `tries`: how often a part is played before it is said not to show it (races).
        """
        kind = finding.kind

        def fails(steps: tuple[Step, ...]) -> bool:
            shown = any(
                self._shows(schedule.with_steps(steps), kind) for _ in range(tries)
            )
            say(f"  {len(steps)} steps: {'still' if shown else 'not'} {kind.value}")
            return shown

        guesses = slices(schedule.steps, finding)
        return shrink(schedule.steps, fails, budget, guesses=guesses)

    def renew(self) -> None:
        """The next play has a cluster of its own."""
        self._clusters.stop_cluster()

    def close(self) -> None:
        """Stops the cluster and gives everything back."""
        self._clusters.close()

    def _shows(self, schedule: Schedule, kind: Kind) -> bool:
        """A part that breaks the harness shows nothing."""
        try:
            outcome = self.play(schedule)
        except ChaosError:
            self.renew()
            return False
        outcome.history.unlink(missing_ok=True)
        return kind in outcome.kinds

    def _stage(self, cluster: Cluster, inject: Injector, history: History) -> Stage:
        steady = SteadyState(lambda: cluster)
        return Stage(
            cluster=cluster,
            inject=inject,
            history=history,
            settled=lambda limit_s: steady(limit_s).verdict is Verdict.PASS,
            lever=LeverPoll(Levers([LocalLever()])),
        )


def until(seconds: float) -> Callable[[], bool]:
    """Whether so many seconds from now are over, for a `Budget`."""
    deadline = time.monotonic() + seconds
    return lambda: time.monotonic() >= deadline
