"""The same chaos in both arms: a scenario file, played on the cluster of each.

One schedule and one trace from one seed, so that a request in the middle of an outage
has its twin in the other arm. Its columns have names of their own (`fault_ttft_s`,
`fault_waited`), filled while something is broken: what holds then is judged beside what
holds on a good day, and neither hides in the other.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from chaos.canary.cluster_arm import RESIDUAL, row_of
from chaos.canary.schedule import Numbered
from chaos.driver import LoadDriver
from chaos.errors import HarnessError, UsageError
from chaos.faults.injector import REVERT_DEADLINE_S, Injector
from chaos.history.history import History
from chaos.judge.verdict import Verdict
from chaos.safety.halt import LeverPoll, Levers, LocalLever
from chaos.scenario.judges import judge_played
from chaos.scenario.load import load_scenario
from chaos.scenario.player import Stage, play, requests_of
from chaos.scenario.schedule import schedule_of
from chaos.steady import SteadyState

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from chaos.canary.cluster_arm import ClusterArm
    from chaos.canary.recorder import Recorder, Row
    from chaos.load.sample import Sample
    from chaos.safety.ledger import Ledger
    from chaos.scenario.player import Played
    from chaos.scenario.schedule import Schedule
    from chaos.scenario.schema import Scenario
    from chaos.systems.base import Cluster, Request

UNSTEADY, ABORTED, BROKEN_ORACLES = "unsteady", "aborted_plays", "broken_oracles"
_FAULT_ARM = "fault"


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """A scenario ready for both arms, and the number of its first request."""

    name: str
    scenario: Scenario
    schedule: Schedule
    requests: tuple[Request, ...]
    first: int

    def numbers(self) -> dict[str, Numbered]:
        return {
            request.request_id: Numbered(number=self.first + at, request=request)
            for at, request in enumerate(self.requests)
        }


def prepare(
    paths: Sequence[Path], cluster: Cluster, *, seed: int, first: int
) -> tuple[Piece, ...]:
    """Reads scenario files for arms of this shape.

    Raises:
        UsageError: A file is wrong, or names roles that the arms do not have.
    """
    pieces: list[Piece] = []
    for path in paths:
        scenario = load_scenario(path)
        _check_shape(path, scenario, cluster)
        schedule = schedule_of(scenario, seed=seed, host_of=cluster.host_of)
        made = requests_of(scenario, schedule, cluster.spec.time_scale)
        requests = tuple(
            replace(each, request_id=f"{path.stem}-{each.request_id}") for each in made
        )
        pieces.append(
            Piece(
                name=path.stem,
                scenario=scenario,
                schedule=schedule,
                requests=requests,
                first=first,
            )
        )
        first += len(requests)
    return tuple(pieces)


class Player:
    """Plays pieces on the arms; what they broke is undone whatever happens."""

    def __init__(
        self,
        *,
        ledger: Ledger,
        run_s: Callable[[], float],
        levers: Levers | None = None,
    ) -> None:
        self._ledger = ledger
        self._run_s = run_s
        self._levers = levers or Levers([LocalLever()])

    def injector(self, arm: ClusterArm) -> Injector:
        """What breaks things in one arm."""
        return Injector(
            lambda: arm.cluster,
            arm.control,
            self._ledger,
            revert_deadline_s=REVERT_DEADLINE_S,
        )

    def play(
        self, piece: Piece, arm: ClusterArm, recorder: Recorder, *, turn: int
    ) -> Played:
        """One arm plays one piece; rows and counters go to its directory.

        Raises:
            HarnessError: It could not be played to its end, for a reason of ours.
        """
        arm.expect(piece.requests)
        numbers = {
            numbered.request.request_id.removeprefix(f"{piece.name}-"): numbered
            for numbered in piece.numbers().values()
        }
        origin_s = self._run_s()
        injector = self.injector(arm)
        played: Played | None = None
        with History(recorder.directory / f"history-{piece.name}.jsonl") as history:
            history.test = piece.name
            history.limits(arm.cluster.limits)
            try:
                played = self._played(piece, arm, injector, history)
            finally:
                injector.revert_all()
                arm.add({RESIDUAL: len(injector.residual)})
        self._rows(played, arm, recorder, numbers, turn=turn, origin_s=origin_s)
        arm.add(counts_of(played, arm.cluster))
        refuse_unproved(piece, arm.label, played)
        return played

    def _played(
        self, piece: Piece, arm: ClusterArm, injector: Injector, history: History
    ) -> Played:
        stage = Stage(
            cluster=arm.cluster,
            inject=injector,
            load=LoadDriver(
                lambda: arm.cluster, history=history, on_sample=lambda _arm, _s: None
            ),
            steady=SteadyState(lambda: arm.cluster),
        )
        lever = LeverPoll(self._levers)
        return play(piece.scenario, piece.schedule, stage, lever=lever)

    def _rows(
        self,
        played: Played,
        arm: ClusterArm,
        recorder: Recorder,
        numbers: Mapping[str, Numbered],
        *,
        turn: int,
        origin_s: float,
    ) -> None:
        """Rows of what was sent; a play that did not begin has none."""
        if played.run is None:
            return
        begin_s, end_s = window_of(played.schedule)
        for sample in played.run.samples:
            numbered = numbers[sample.request.request_id]
            at_s = origin_s + numbered.request.at_s
            arm.judge_bytes(_renamed(sample, numbered))
            inside = begin_s <= numbered.request.at_s < end_s
            promise_s = arm.cluster.limits.deadline_s(numbered.request.input_length)
            row = row_of(
                numbered,
                sample,
                host=arm.host_of(sample.engine),
                turn=turn,
                at_s=at_s,
            )
            row = fault_row(row, promise_s)
            late = numbered.request.at_s >= (begin_s + end_s) / 2
            recorder.row(_only(row, inside=inside, late=late))


def window_of(schedule: Schedule) -> tuple[float, float]:
    """From the first fault of a schedule to the end of its last, as planned.

    What was planned is the same in both arms, so the same requests count in both.
    """
    begins = [fault.at_s for fault in schedule.faults]
    ends = [max(fault.end_s, fault.at_s) for fault in schedule.faults]
    return min(begins), max(ends)


def fault_row(row: Row, promise_s: float) -> Row:
    """A row whose times are those of a bad day: columns of their own.

    `fault_waited` is the part of its deadline that a request waited for the cache. It
    is kept from the middle of the window on: by then a sound build has learned.
    """
    wait_s = row.cache_wait_s
    return replace(
        row,
        klass=f"fault-{row.klass}",
        ttft_s=None,
        e2e_s=None,
        cache_wait_s=None,
        prompt_tokens=None,
        hit_tokens=None,
        metrics={
            "fault_ttft_s": row.ttft_s,
            "fault_wait_s": wait_s,
            "fault_waited": None if wait_s is None else wait_s / promise_s,
        },
    )


def counts_of(played: Played, cluster: Cluster) -> dict[str, int]:
    """Laws of the play as counters: steady before and after, not aborted, oracles.

    Only oracles that count exactly are taken: the relative limits of the gate judge
    speed, with their error rates known.
    """
    states = (played.before, played.after)
    judged = judge_played(played, cluster)
    return {
        UNSTEADY: sum(s is not None and s.verdict is Verdict.FAIL for s in states),
        ABORTED: int(played.tripped is not None),
        BROKEN_ORACLES: sum(
            each.verdict is Verdict.FAIL and each.kind == "counter" for each in judged
        ),
    }


def refuse_unproved(piece: Piece, label: str, played: Played) -> None:
    """A play without its faults compares nothing.

    Raises:
        HarnessError: A fault was not injected, is not here, or somebody halted.
    """
    reasons = [str(each) for each in (*played.not_injected, *played.not_here)]
    if played.halted:
        reasons.append(f"halted: {played.halted}")
    if reasons:
        message = f"{piece.name} was not played on the {label}: {reasons[0]}"
        raise HarnessError(message)


def _only(row: Row, *, inside: bool, late: bool) -> Row:
    """The columns of a bad day that a request has by when it was to be sent."""
    if not inside:
        return replace(row, metrics={})
    if late:
        return row
    return replace(row, metrics={**row.metrics, "fault_waited": None})


def _renamed(sample: Sample, numbered: Numbered) -> Sample:
    return replace(sample, request=numbered.request)


def _check_shape(path: Path, scenario: Scenario, cluster: Cluster) -> None:
    """The arms are what they are: a scenario may need less, never more."""
    shape, spec = scenario.cluster, cluster.spec
    wanted = {"stores": shape.stores, "engines": shape.engines, "rails": shape.rails}
    for name, count in wanted.items():
        if count > getattr(spec, name):
            have = getattr(spec, name)
            problem = f"{path}: needs {count} {name}, the arms have {have}"
            raise UsageError(problem, f"say --{name} {count}")
