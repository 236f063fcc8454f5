"""A schedule inside a suite: the fixtures are its stage, and a failure is cut down.

What is found is shrunk at once, on the same cluster, as far as a time goes, and written
to the results beside the command that plays it again.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from chaos.correctness.bench import until
from chaos.correctness.judges import findings_of, judge_correctness
from chaos.correctness.laws import laws_of
from chaos.correctness.player import Stage, play
from chaos.correctness.schedule import as_yaml
from chaos.correctness.shrink import Budget, shrink
from chaos.correctness.slices import slices
from chaos.correctness.spaces import laws_mode
from chaos.errors import ChaosError, NotHere
from chaos.judge.conservation import judge_conservation
from chaos.judge.verdict import Verdict
from chaos.safety.halt import LeverPoll, Levers, LocalLever
from chaos.scenario.bench import host_levers
from chaos.systems.seen import SeeingProbe

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from chaos.correctness.findings import Finding
    from chaos.correctness.laws import Laws
    from chaos.correctness.player import Played
    from chaos.correctness.schedule import Schedule, Step
    from chaos.faults.injector import Injector
    from chaos.history.history import History
    from chaos.judge.verdict import Judgement
    from chaos.steady import SteadyState
    from chaos.systems.base import Cluster

SHRINK_S: Final = 90.0
SHRINK_TESTS: Final = 60


@dataclass(frozen=True, slots=True, kw_only=True)
class Fixtures:
    """The fixtures of a test that plays schedules."""

    cluster_of: Callable[..., Cluster]
    inject: Injector
    history: History
    steady: SteadyState
    folder: Path


def play_here(schedule: Schedule, fixtures: Fixtures) -> list[Judgement]:
    """Plays a schedule on a cluster of its shape and judges it.

    Raises:
        NotHere: The system or the target cannot do what it needs: a skip.
    """
    cluster = fixtures.cluster_of(**schedule.shape)
    _refuse_missing_paths(schedule, cluster)
    played = play(schedule, _stage(cluster, fixtures))
    if played.not_here:
        raise played.not_here[0]
    mode = laws_mode(schedule.system, schedule.shape)
    laws = laws_of(schedule.system, mode, cluster.limits)
    laws_kept = judge_conservation(cluster.conservation())
    judged = [*judge_correctness(played, laws), laws_kept]
    news = _news(played, laws)
    if not news:
        return judged
    again = _cut_down(schedule, news[0], fixtures)
    return [_with_command(judgement, again) for judgement in judged]


def _news(played: Played, laws: Laws) -> list[Finding]:
    """What was found that nobody expects, the first found first."""
    known = played.schedule.expects
    found = findings_of(played, laws)
    return [finding for finding in found if finding.kind.value not in known]


def _cut_down(schedule: Schedule, finding: Finding, fixtures: Fixtures) -> str:
    """Shrinks, writes the rest down, and says how to play it; in words."""
    kind = finding.kind

    def fails(steps: tuple[Step, ...]) -> bool:
        part = schedule.with_steps(steps)
        try:
            cluster = fixtures.cluster_of(**part.shape)
            played = play(part, _stage(cluster, fixtures), cut=True)
        except ChaosError:  # a part that breaks the harness shows nothing
            return False
        mode = laws_mode(part.system, part.shape)
        found = findings_of(played, laws_of(part.system, mode, cluster.limits))
        return kind in {finding.kind for finding in found}

    budget = Budget(tests=SHRINK_TESTS, ended=until(SHRINK_S))
    guesses = slices(schedule.steps, finding)
    shrunk = shrink(schedule.steps, fails, budget, guesses=guesses)
    small = schedule.with_steps(shrunk.steps)
    path = fixtures.folder / f"minimal-{schedule.system}-{kind.value}.yaml"
    path.write_text(as_yaml(small), encoding="utf-8")
    how = "minimal" if shrunk.minimal else "not yet minimal"
    print(f"{how} for {kind.value}, {len(shrunk.steps)} steps:\n{as_yaml(small)}")  # noqa: T201 - shown with the failure
    return f"chaos correctness replay {path}"


def _with_command(judgement: Judgement, command: str) -> Judgement:
    if judgement.verdict is not Verdict.FAIL:
        return judgement
    reason = "; ".join(word for word in (judgement.reason, command) if word)
    return dataclasses.replace(judgement, reason=reason)


def _stage(cluster: Cluster, fixtures: Fixtures) -> Stage:
    levers = Levers([LocalLever(), *host_levers(cluster)])
    return Stage(
        cluster=cluster,
        inject=fixtures.inject,
        history=fixtures.history,
        settled=lambda limit_s: fixtures.steady(limit_s).verdict is Verdict.PASS,
        lever=LeverPoll(levers),
    )


def _refuse_missing_paths(schedule: Schedule, cluster: Cluster) -> None:
    """Skips what reads by a path that the probe does not have.

    Raises:
        NotHere: It says which.
    """
    probe: Any = cluster.kv()
    try:
        here = probe.read_paths() if isinstance(probe, SeeingProbe) else []
    finally:
        probe.close()
    wanted = {step.path for step in schedule.steps if step.path}
    for path in sorted(wanted - set(here)):
        reason = f"the probe of {schedule.system} reads by {', '.join(here) or 'none'}"
        raise NotHere(capability=f"read by {path}", target="", reason=reason)
