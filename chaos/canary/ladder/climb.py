"""Climbs a ladder: does what comes next until nothing does, writing before doing.

The thin shell around `state.next_step`. Interrupted or failed, it takes the way back at
once; interrupted on the way back, it stops and the state says what is left to undo.
"""

from __future__ import annotations

import shlex
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from chaos.canary.ladder import state as moves
from chaos.canary.ladder.state import Do, Phase
from chaos.errors import UsageError
from chaos.report.redaction import clean_text
from chaos.safety.identity import is_alive

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from chaos.canary.ladder.commands import Ended, Runner
    from chaos.canary.ladder.interrupts import Interrupts
    from chaos.canary.ladder.schema import Ladder, Stage
    from chaos.canary.ladder.state import LadderState, Step
    from chaos.canary.ladder.store import LadderStore

GATE_INCONCLUSIVE, GATE_LEFT_BEHIND = 3, 5


@dataclass(slots=True, kw_only=True)
class Climber:
    """One process on a ladder. `now` is seconds since the epoch, `clock` monotonic."""

    ladder: Ladder
    store: LadderStore
    state: LadderState
    run: Runner
    interrupts: Interrupts
    now: Callable[[], float]
    clock: Callable[[], float]
    say: Callable[[str], None]

    def climb(self) -> LadderState:
        """Goes on until the top, a stop or the way back; the state it ends in.

        Raises:
            UsageError: A command of a killed process still runs.
        """
        self._check_child()
        while True:
            step = moves.next_step(self.ladder, self.state)
            if step.do in (Do.END, Do.APPROVE):
                return self.state
            if step.do is Do.UNDO:
                if not self._undo(self.ladder.stage(step.stage)):
                    return self.state
            elif self._interrupted(step.stage):
                continue
            else:
                self._stage(step)
                if self.state.record(step.stage).phase is Phase.HELD:
                    return self.state

    def go_back(self, reason: str) -> LadderState:
        """The way back, because somebody asked for it or to try it again."""
        self._check_child()
        self._save(moves.retried(self.state))
        if not self.state.failed:
            code = moves.FAIL
            self._save(replace(self.state, failed=reason, failed_code=code))
        return self.climb()

    def _stage(self, step: Step) -> None:
        """Applies and judges one stage within its budget."""
        stage = self.ladder.stage(step.stage)
        if self.state.record(stage.name).attempts >= moves.MOST_ATTEMPTS:
            told = f"was begun {moves.MOST_ATTEMPTS} times and never came to an end"
            return self._fail(stage, told, moves.BROKE)
        self._save(moves.begun(self.state, step, now=self.now()))
        ends = self.clock() + stage.budget
        if step.do is Do.APPLY and stage.apply:
            ended = self._command(stage, "apply", stage.apply, ends - self.clock())
            if ended.code != 0:
                return self._fail(stage, _told("apply", ended), self._code(ended))
        self._save(self.state.with_stage(stage.name, phase=Phase.GATING))
        ended = self._command(stage, "gate", stage.gate, ends - self.clock())
        return self._judged(stage, ended)

    def _judged(self, stage: Stage, ended: Ended) -> None:
        if ended.code == 0:
            self.say(f"{stage.name}: passed")
            told = "its gate passed"
            self._save(moves.passed(self.state, stage.name, now=self.now(), told=told))
        elif ended.code == GATE_INCONCLUSIVE and stage.on_inconclusive == "hold":
            told = "its gate could not tell (exit code 3)"
            self.say(f"{stage.name}: HELD, {told}; nothing was changed since")
            self._save(moves.held(self.state, stage.name, now=self.now(), told=told))
        else:
            self._fail(stage, _told("gate", ended), self._code(ended))

    def _undo(self, stage: Stage) -> bool:
        """Takes a stage back; False when it was interrupted."""
        if self.interrupts.pending:
            self.say("stopped on the way back; `canary ladder rollback` goes on")
            return False
        self._save(self.state.with_stage(stage.name, phase=Phase.UNDOING))
        problem = ""
        if stage.undo is not None:
            ended = self._command(stage, "rollback", stage.undo, stage.rollback_budget)
            if ended.interrupted:
                self.say("stopped on the way back; `canary ladder rollback` goes on")
                return False
            problem = "" if ended.code == 0 else _told("rollback", ended)
        self.say(f"{stage.name}: {f'NOT UNDONE, {problem}' if problem else 'undone'}")
        now = self.now()
        self._save(moves.undone(self.state, stage.name, now=now, problem=problem))
        return True

    def _interrupted(self, name: str) -> bool:
        """Between two commands: a signal is the way back, as during one."""
        if not self.interrupts.pending:
            return False
        stage = self.ladder.stage(name)
        self._fail(stage, "the ladder was interrupted", self._signal_code())
        return True

    def _fail(self, stage: Stage, told: str, code: int) -> None:
        self.say(f"{stage.name}: FAILED, {told}; rolling back")
        self.interrupts.take()  # this one is answered; a further one is news
        now = self.now()
        self._save(moves.failed(self.state, stage.name, now=now, told=told, code=code))

    def _code(self, ended: Ended) -> int:
        if ended.interrupted:
            return self._signal_code()
        known = {GATE_LEFT_BEHIND: moves.LEFT_BEHIND}
        return known.get(ended.code or 0, moves.FAIL)

    def _signal_code(self) -> int:
        return 128 + self.interrupts.number

    def _command(
        self, stage: Stage, kind: str, command: Sequence[str], timeout_s: float
    ) -> Ended:
        self.say(f"{stage.name}: {kind}: {shlex.join(command)}")
        try:
            return self.run(
                command,
                timeout_s=max(0.0, timeout_s),
                cwd=Path(self.state.folder),
                environ={
                    "CANARY_LADDER": self.ladder.name,
                    "CANARY_STAGE": stage.name,
                    "CANARY_STEP": kind,
                },
                started=self._started,
                interrupts=self.interrupts,
            )
        finally:
            self._save(replace(self.state, child=None))

    def _started(self, pid: int, start_ticks: int) -> None:
        self._save(replace(self.state, child=(pid, start_ticks)))

    def _check_child(self) -> None:
        child = self.state.child
        if child and is_alive(*child):
            told = f"process {child[0]}, a command of a ladder that was killed, runs"
            raise UsageError(told, "wait until it ends, or end it")

    def _save(self, state: LadderState) -> None:
        self.store.write(state)
        self.state = state


def plan_lines(ladder: Ladder, state: LadderState | None) -> list[str]:
    """What would run, in order, with what is done already: for `--dry-run`."""
    lines = [f"ladder {ladder.name}: {len(ladder.stages)} stages"]
    for number, stage in enumerate(ladder.stages, start=1):
        record = state.record(stage.name) if state else None
        phase = f", {record.phase.value}" if record else ""
        lines.append(f"{number}. {stage.name} (budget {stage.budget:g} s{phase})")
        if stage.approve:
            by = f" [by {record.approved_by}]" if record and record.approved_by else ""
            lines.append(f"   approve:  {stage.approve}{by}")
        if stage.apply:
            lines.append(f"   apply:    {shlex.join(stage.apply)}")
        lines.append(f"   gate:     {shlex.join(stage.gate)}")
        undo = shlex.join(stage.undo) if stage.undo else "none, nothing is changed"
        lines.append(f"   rollback: {undo}")
    return [clean_text(line) for line in lines]


def _told(kind: str, ended: Ended) -> str:
    how = ended.problem or f"ended with exit code {ended.code}"
    return f"its {kind} {how}"
