"""Where a ladder stands, and what comes next: pure, no clock, no file, no process.

A stage goes new -> applying -> gating -> passed, or is held (its gate could not tell).
Whatever fails, the way back is the whole ladder: every stage that was begun is undone,
the last one first. What is begun is written down before it is done, so whoever reads
the state after a crash knows what may have happened.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields, replace
from enum import Enum, unique
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Mapping

    from chaos.canary.ladder.schema import Ladder, Stage

SCHEMA: Final = "canary.ladder-state/1"
MOST_ATTEMPTS: Final = 3
"""Times that a stage is begun after its process was killed under it."""
PASS, FAIL, USAGE, INCONCLUSIVE, BROKE, LEFT_BEHIND = range(6)


@unique
class Phase(Enum):
    """Of one stage."""

    NEW = "new"
    APPLYING = "applying"
    GATING = "gating"
    HELD = "held"
    PASSED = "passed"
    UNDOING = "undoing"
    UNDONE = "undone"
    UNDO_FAILED = "undo failed"


_BEGUN: Final = (
    *(Phase.APPLYING, Phase.GATING, Phase.HELD, Phase.PASSED),
    *(Phase.UNDOING, Phase.UNDO_FAILED),
)
_UNDER_WAY: Final = (Phase.APPLYING, Phase.GATING)


@unique
class Do(Enum):
    """What comes next."""

    APPLY = "begin"
    GATE = "gate"
    APPROVE = "approve"
    UNDO = "undo"
    END = "end"


@dataclass(frozen=True, slots=True, kw_only=True)
class StageRecord:
    """What happened to a stage; instants are seconds since the epoch."""

    name: str
    phase: Phase = Phase.NEW
    attempts: int = 0
    approved_by: str = ""
    approved_at: float | None = None
    approved_why: str = ""
    began_at: float | None = None
    ended_at: float | None = None
    told: str = ""

    def to_json(self) -> dict[str, Any]:
        return {**asdict(self), "phase": self.phase.value}

    @classmethod
    def from_json(cls, row: Mapping[str, Any]) -> StageRecord:
        known = {field.name for field in fields(cls)}
        if set(row) != known:
            raise ValueError(f"a stage has the fields {sorted(row)}")
        return cls(**{**row, "phase": Phase(row["phase"])})


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """The next thing to do, and with which stage; `stage` "" at the end."""

    do: Do
    stage: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class LadderState:
    """The whole ladder; `failed` says why it goes back, "" while it goes on.

    `failed_code` is the exit code of that reason. `child` is the command that is
    running, (pid, start ticks), so that a killed process's command is not run beside
    a second one.
    """

    name: str
    digest: str
    folder: str
    stages: tuple[StageRecord, ...]
    failed: str = ""
    failed_code: int = PASS
    child: tuple[int, int] | None = None

    @classmethod
    def fresh(cls, ladder: Ladder, *, digest: str, folder: str) -> LadderState:
        records = tuple(StageRecord(name=stage.name) for stage in ladder.stages)
        return cls(name=ladder.name, digest=digest, folder=folder, stages=records)

    def record(self, name: str) -> StageRecord:
        return next(record for record in self.stages if record.name == name)

    def with_stage(self, name: str, **changed: Any) -> LadderState:
        """The state in which a stage's record is changed."""
        stages = tuple(
            replace(record, **changed) if record.name == name else record
            for record in self.stages
        )
        return replace(self, stages=stages)

    @property
    def outcome(self) -> str:
        """In a word, for people and machines."""
        phases = [record.phase for record in self.stages]
        if Phase.UNDO_FAILED in phases:
            return "rollback failed"
        if self.failed:
            left = any(phase in _BEGUN for phase in phases)
            return "rolling back" if left else "rolled back"
        if all(phase is Phase.PASSED for phase in phases):
            return "complete"
        if Phase.HELD in phases:
            return "held"
        return "not begun" if set(phases) == {Phase.NEW} else "under way"

    @property
    def exit_code(self) -> int:
        """What the command ends with; anything short of the top is not 0."""
        left = dict.fromkeys(("rolling back", "rollback failed"), LEFT_BEHIND)
        codes = {"complete": PASS, **left}
        if self.outcome in codes:
            return codes[self.outcome]
        return self.failed_code or FAIL if self.failed else INCONCLUSIVE

    def to_json(self) -> dict[str, Any]:
        return {
            "schema": SCHEMA,
            "name": self.name,
            "digest": self.digest,
            "folder": self.folder,
            "outcome": self.outcome,
            "failed": self.failed,
            "failed_code": self.failed_code,
            "child": list(self.child) if self.child else None,
            "stages": [record.to_json() for record in self.stages],
        }

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> LadderState:
        """The state of a document.

        Raises:
            ValueError, KeyError, TypeError: It is none.
        """
        if document["schema"] != SCHEMA:
            raise ValueError(f"schema {document['schema']!r} is not {SCHEMA}")
        child = document["child"]
        return cls(
            name=str(document["name"]),
            digest=str(document["digest"]),
            folder=str(document["folder"]),
            failed=str(document["failed"]),
            failed_code=int(document["failed_code"]),
            child=(int(child[0]), int(child[1])) if child else None,
            stages=tuple(StageRecord.from_json(row) for row in document["stages"]),
        )


def next_step(ladder: Ladder, state: LadderState) -> Step:
    """What comes next. A failed rollback is not tried again by itself."""
    if state.failed:
        return _way_back(state)
    for stage in ladder.stages:
        record = state.record(stage.name)
        if record.phase is Phase.PASSED:
            continue
        return _of_stage(stage, record)
    return Step(do=Do.END)


def begun(state: LadderState, step: Step, *, now: float) -> LadderState:
    """A stage is begun, or begun again after the process of its ladder was killed."""
    attempts = state.record(step.stage).attempts + 1
    phase = Phase.APPLYING if step.do is Do.APPLY else Phase.GATING
    return state.with_stage(
        step.stage, phase=phase, attempts=attempts, began_at=now, told=""
    )


def passed(state: LadderState, name: str, *, now: float, told: str) -> LadderState:
    return state.with_stage(name, phase=Phase.PASSED, ended_at=now, told=told)


def held(state: LadderState, name: str, *, now: float, told: str) -> LadderState:
    """Its gate could not tell: it stays as it is until somebody runs it again."""
    return state.with_stage(name, phase=Phase.HELD, attempts=0, ended_at=now, told=told)


def failed(
    state: LadderState, name: str, *, now: float, told: str, code: int
) -> LadderState:
    """The way back begins; the first reason stays."""
    state = state.with_stage(name, ended_at=now, told=told)
    if state.failed:
        return state
    return replace(state, failed=f"{name}: {told}", failed_code=code)


def undone(state: LadderState, name: str, *, now: float, problem: str) -> LadderState:
    phase = Phase.UNDO_FAILED if problem else Phase.UNDONE
    told = problem or state.record(name).told
    return state.with_stage(name, phase=phase, ended_at=now, told=told)


def retried(state: LadderState) -> LadderState:
    """Rollbacks that failed are to be tried again."""
    stages = tuple(
        replace(record, phase=Phase.UNDOING)
        if record.phase is Phase.UNDO_FAILED
        else record
        for record in state.stages
    )
    return replace(state, stages=stages)


def under_way(state: LadderState) -> str:
    """The stage that was being made or judged; "" when none was."""
    names = (record.name for record in state.stages if record.phase in _UNDER_WAY)
    return next(names, "")


def _of_stage(stage: Stage, record: StageRecord) -> Step:
    if record.phase is Phase.NEW and stage.approve and not record.approved_by:
        return Step(do=Do.APPROVE, stage=stage.name)
    judged_only = record.phase in (Phase.HELD, Phase.GATING)
    return Step(do=Do.GATE if judged_only else Do.APPLY, stage=stage.name)


def _way_back(state: LadderState) -> Step:
    for record in reversed(state.stages):
        if record.phase in _BEGUN and record.phase is not Phase.UNDO_FAILED:
            return Step(do=Do.UNDO, stage=record.name)
    return Step(do=Do.END)
