"""A live run from what was asked to the verdict: refuse, start, measure, judge.

Everything that can be refused is refused before anything starts. The gate judges what
is on disk, read back: a run that was broken half-way is judged like one that somebody
else measured.
"""

from __future__ import annotations

import contextlib
import random
import shlex
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from chaos.canary import play
from chaos.canary.cluster_arm import ClusterArm
from chaos.canary.recorder import ROWS, About, Recorder
from chaos.canary.run import (
    CanaryRun,
    Plan,
    StoppedEarly,
    same_members,
    warm_up,
)
from chaos.canary.schedule import ARMS, BASELINE, CANARY, blocks_of
from chaos.canary.sides import URLS, Shape, arm_of, same_but_label
from chaos.errors import ChaosError, ResidualFault, UsageError
from chaos.load.generate import GeneratorSettings, generate
from chaos.load.trace import load_trace
from chaos.safety.halt import Levers, LocalLever
from chaos.safety.ledger import Ledger
from chaos.scenario.interrupt import Interrupts

if TYPE_CHECKING:
    from collections.abc import Callable

    from chaos.canary.arms import Arm
    from chaos.canary.floor import NoiseFloor
    from chaos.canary.policy import Policy
    from chaos.canary.result import GateResult
    from chaos.canary.samples import Samples
    from chaos.canary.sides import Side
    from chaos.systems.base import Request

POLICY = "policy.yaml"
_BLOCK_BITS = 20
"""Block ids of one seed; those of scenarios begin at 0. Another seed is another text,
so that no server knows it from an earlier run."""
_DEADLINE_OF_URLS_S = 120.0
_DEADLINE_S = 30.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """Everything the operator said, checked as far as it can be without starting."""

    sides: tuple[Side, Side]
    shape: Shape
    out: Path
    requests: int = 360
    per_block: int = 15
    rate_per_s: float = 15.0
    sessions: int = 60
    roam: float = 0.5
    trace: Path | None = None
    scenarios: tuple[Path, ...] = ()
    drills: bool = False
    policy: Path | None = None
    on_inconclusive: str = ""
    early_abort: bool = True
    floor: Path | None = None
    command: str = field(default_factory=lambda: shlex.join(sys.argv))

    @property
    def plays(self) -> bool:
        return bool(self.scenarios) or self.drills

    @property
    def aa(self) -> bool:
        """Whether both sides are the same, so that any difference is noise."""
        return same_but_label(*self.sides)

    def directory(self, label: str) -> Path:
        return self.out / label


def run_asked(
    asked: Asked,
    *,
    say: Callable[[str], object],
    arms_of: Callable[[Asked, Ledger], dict[str, Arm]] | None = None,
) -> GateResult:
    """Measures and judges.

    Raises:
        ChaosError: Asked wrongly, or the harness broke, or a fault was left behind.
        Interrupted: A signal ended it, orderly.
    """
    check(asked)
    with contextlib.ExitStack() as stack:
        ledger = Ledger.create(command=asked.command)
        stack.callback(ledger.close)
        stack.enter_context(Interrupts())
        arms = (arms_of or make_arms)(asked, ledger)
        for arm in arms.values():
            stack.callback(arm.close)
        policy = policy_of(asked)
        asked.out.mkdir(parents=True, exist_ok=True)
        write_policy(asked.out / POLICY, policy)
        early = measure(asked, arms, ledger, say, policy)
    return early or judge(asked, policy)


def check(asked: Asked) -> None:
    """Refuses what would be found out too late.

    Raises:
        UsageError: With the remedy.
    """
    if asked.plays and not all(side.ours for side in asked.sides):
        problem = "chaos is played on arms that we start, and an endpoint is none"
        raise UsageError(problem, "leave --scenario and --drills out")
    shared = set(asked.sides[0].urls) & set(asked.sides[1].urls)
    if shared:
        problem = f"{min(shared)} is in both arms"
        raise UsageError(problem, "they would fill each other's cache; name two")
    if asked.requests < asked.per_block:
        problem = f"--requests {asked.requests} is less than one block"
        raise UsageError(problem, f"ask for {2 * asked.per_block} at least")
    for label in ARMS:
        if (asked.directory(label) / ROWS).exists():
            problem = f"{asked.directory(label)} holds a measurement already"
            raise UsageError(problem, "choose another --out, or move it away")
    Levers([LocalLever()]).refuse()


def make_arms(asked: Asked, ledger: Ledger) -> dict[str, Arm]:
    """Both arms, not started."""
    return {
        side.label: arm_of(
            side,
            asked.shape,
            ledger=ledger,
            run_dir=asked.directory(side.label),
            command=asked.command,
        )
        for side in asked.sides
    }


def measure(
    asked: Asked,
    arms: dict[str, Arm],
    ledger: Ledger,
    say: Callable[[str], object],
    policy: Policy | None = None,
) -> GateResult | None:
    """Fills both directories; the verdict if it was clear before the planned end.

    An arm that dies while it is measured is no error of the command: its directory says
    so, and the gate answers INCONCLUSIVE. Without a policy nobody looks before the end.

    Raises:
        ChaosError: An arm did not start, or a fault was left behind.
    """
    for label in ARMS:
        say(f"starting the {label}: {arms[label].build}")
        arms[label].start()
    requests = trace_of(asked)
    plan = plan_of(asked, arms, requests)
    begin_s = time.monotonic()
    player = play.Player(ledger=ledger, run_s=lambda: time.monotonic() - begin_s)
    same_members(arms)
    with contextlib.ExitStack() as stack:
        recorders = {}
        for label in ARMS:
            about = _about(asked, arms[label])
            recorders[label] = Recorder(asked.directory(label), about)
            stack.callback(recorders[label].broken, "")  # nothing after `complete`
        eye = _Eye(asked, policy)
        run = CanaryRun(
            arms,
            recorders,
            plan,
            player=player,
            say=say,
            look=eye,
            begin_s=begin_s,
        )
        _measured(run, say)
    return eye.seen


def _measured(run: CanaryRun, say: Callable[[str], object]) -> None:
    """Runs; an arm that broke is told, what must not be judged is raised."""
    try:
        run.run()
    except StoppedEarly:
        say("stopped before the planned end: harm is shown")
    except (ResidualFault, UsageError):
        raise
    except ExceptionGroup as group:
        left = group.subgroup(ResidualFault)
        if left is None:
            raise
        raise left.exceptions[0] from group
    except ChaosError as error:
        where = " ".join(getattr(error, "__notes__", []))
        say(f"the measurement broke {where}: {error}")


class _Eye:
    """Looks at what is on disk, as often as it likes: the test is valid at every look.

    Events are seen at once. What is slower is looked for from `_LEAST` rows an arm on:
    with fewer, moments of the machine cannot be told from the build.
    """

    _LEAST = 200

    def __init__(self, asked: Asked, policy: Policy | None) -> None:
        self._asked = asked
        self._policy = policy if asked.early_abort else None
        self.seen: GateResult | None = None

    def __call__(self) -> bool:
        if self._policy is None:
            return False
        from chaos.canary.gate import abort_early
        from chaos.canary.policy import EarlyAbort

        baseline, canary = samples_of(self._asked)
        policy = self._policy
        if min(len(baseline), len(canary)) < self._LEAST:
            policy = policy.model_copy(
                update={"early_abort": EarlyAbort(enabled=False)}
            )
        self.seen = abort_early(
            policy,
            baseline,
            canary,
            floor=_floor(self._asked, self._policy),
            seed=self._asked.shape.seed,
        )
        return self.seen is not None


def trace_of(asked: Asked) -> list[Request]:
    """The trace of both arms: of a file, or generated from the seed.

    Raises:
        UsageError: The file cannot be used.
    """
    if asked.trace is not None:
        try:
            return load_trace(asked.trace, limit=asked.requests)
        except (OSError, ValueError) as error:
            raise UsageError(f"--trace {asked.trace}: {error}") from error
    settings = GeneratorSettings(
        requests=asked.requests,
        rate_per_s=asked.rate_per_s,
        sessions=min(asked.sessions, asked.requests),
        system_prompts=2,
        turn_median=600.0,
        max_input_tokens=4_096,
        first_block_id=(asked.shape.seed + 1) << _BLOCK_BITS,
        request_prefix="c",
    )
    return generate(settings, random.Random(f"{asked.shape.seed}:canary:trace"))


def plan_of(asked: Asked, arms: dict[str, Arm], requests: list[Request]) -> Plan:
    """Blocks, and the chaos between their halves.

    Raises:
        UsageError: A scenario does not fit the arms.
    """
    blocks = blocks_of(requests, asked.per_block)
    half = -(-len(blocks) // 2) if asked.plays else len(blocks)
    pieces: tuple[play.Piece, ...] = ()
    if asked.scenarios:
        baseline = arms[BASELINE]
        assert isinstance(baseline, ClusterArm)
        pieces = play.prepare(
            asked.scenarios,
            baseline.cluster,
            seed=asked.shape.seed,
            first=len(requests),
        )
    urls = any(side.kind == URLS for side in asked.sides)
    return Plan(
        warm=warm_up(blocks),
        first=blocks[:half],
        second=blocks[half:],
        pieces=pieces,
        drills=asked.drills,
        roam=asked.roam,
        seed=asked.shape.seed,
        timeout_s=_DEADLINE_OF_URLS_S if urls else _DEADLINE_S,
    )


def policy_of(asked: Asked) -> Policy:
    """The policy that was named, or that of runs like this.

    Raises:
        UsageError: The file cannot be used.
    """
    from chaos.canary.policy import load_policy
    from chaos.canary.run_policy import policy_for

    policy = policy_for(
        {side.kind for side in asked.sides},
        played=bool(asked.scenarios),
        drilled=asked.drills,
    )
    if asked.policy is not None:
        policy = load_policy(asked.policy)
    if asked.on_inconclusive:
        policy = policy.model_copy(update={"on_inconclusive": asked.on_inconclusive})
    return policy


def write_policy(path: Path, policy: Policy) -> None:
    """The policy as a file, so that `canary judge` can judge a live run again."""
    import yaml

    from chaos.report.files import write_text

    document = policy.model_dump(mode="json", by_alias=True, exclude_none=True)
    # A check that is switched off is null, and null is not its default.
    document["validity"] = policy.validity.model_dump(mode="json")
    write_text(path, yaml.safe_dump(document, sort_keys=False))


def judge(asked: Asked, policy: Policy) -> GateResult:
    """Reads the two directories back and judges what is on disk, nothing else.

    Raises:
        UsageError: A directory or the noise floor cannot be used.
    """
    from chaos.canary.gate import judge as judge_samples

    baseline, canary = samples_of(asked)
    return judge_samples(
        policy, baseline, canary, floor=_floor(asked, policy), seed=asked.shape.seed
    )


def samples_of(asked: Asked) -> tuple[Samples, Samples]:
    """Both arms as they are on disk."""
    from chaos.canary.sources.jsonl import read_directory

    return (
        read_directory(asked.directory(BASELINE), BASELINE),
        read_directory(asked.directory(CANARY), CANARY),
    )


def _floor(asked: Asked, policy: Policy) -> NoiseFloor | None:
    from chaos.canary.floor import floor_of, read_floor

    if asked.floor is not None:
        return read_floor(asked.floor)
    folder = asked.policy.parent if asked.policy else Path()
    return floor_of(policy, folder)


def _about(asked: Asked, arm: Arm) -> About:
    return About(
        arm=arm.label,
        system=arm.system,
        build=arm.build,
        seed=asked.shape.seed,
        time_scale=arm.time_scale,
        facts={"command": asked.command, **arm.facts()},
    )
