"""A pool under a fault, used by an engine: behind HiCache and all that protects it."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from chaos.conformance.properties import BACK_WITHIN_S, Arm
from chaos.conformance.stage import ENOUGH, held_of, seconds, untold, why_untold
from chaos.errors import HarnessError
from chaos.judge.latency import judge_cache_wait
from chaos.judge.verdict import Verdict
from chaos.load.noise import NoiseProbe
from chaos.steps import again, ask, prompt, wait_for, wait_idle, wait_kept, whole_pages
from chaos.steps.prompts import reused

if TYPE_CHECKING:
    from chaos.conformance.measured import Measured
    from chaos.conformance.stage import Stage
    from chaos.faults.base import Receipt
    from chaos.load.sample import Sample
    from chaos.systems.base import Cluster, Request

TOKENS: Final = 1024
_PROMPTS: Final = 16
_LEAST_PREFIX: Final = 2
_CHOSEN: Final = 3
_PAUSE_S: Final = 0.02
_IDLE_S: Final = 3.0
_MOST: Final = 2000
_HELD = {Verdict.PASS: True, Verdict.FAIL: False}


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """A prompt and the pages of it that lie before the first one on the victim."""

    request: Request
    healthy: int


def measure_engine(stage: Stage) -> list[Measured]:
    """Prompts kept in the pool, asked for again and again under the fault.

    Raises:
        HarnessError: They could not be kept, or none lies as it is needed.
    """
    cluster = stage.cluster
    requests = _kept(stage)
    victim, chosen = _victim(stage, requests)
    with NoiseProbe(clock=stage.clock) as noise:
        receipt, samples = _under_fault(stage, victim, chosen)
        allowance_s = min(noise.worst_s(), cluster.limits.poll_s)
    back_s = _back(stage)
    rows = [_stall(stage, samples, allowance_s)]
    if not stage.fault.of_master:
        rows.append(_healthy(stage, chosen, samples))
    rows += [_no_failure(stage, samples), _came_back(stage, back_s)]
    return untold(rows, receipt)


def _kept(stage: Stage) -> list[Request]:
    """Computes the prompts; the pool has them and the engine has nothing else."""
    cluster, engine = stage.cluster, stage.cluster.engines[0]
    name = f"conformance-{stage.fault.name}"
    made = [prompt(cluster, f"{name}-{n}", TOKENS) for n in range(_PROMPTS)]
    for request in made:
        ask(cluster, engine, request)
    wait_kept(cluster, made)
    wait_idle(cluster, engine)
    cluster.flush_local(engine)
    return made


def _victim(stage: Stage, requests: list[Request]) -> tuple[str, list[Asked]]:
    """The store that lets most prompts begin elsewhere, and those prompts."""
    cluster = stage.cluster
    if stage.fault.of_master:
        return "", [Asked(request=request, healthy=0) for request in requests]
    owners = {request.request_id: cluster.owners_of(request) for request in requests}
    best: tuple[str, list[Asked]] = ("", [])
    for store in cluster.stores:
        asked = [
            Asked(request=request, healthy=_before(owners[request.request_id], store))
            for request in requests
        ]
        good = [
            one
            for one in asked
            if _LEAST_PREFIX <= one.healthy < whole_pages(cluster, one.request)
        ]
        if len(good) > len(best[1]):
            best = store, good
    if len(best[1]) < _CHOSEN:
        message = f"{len(best[1])} prompts begin on healthy stores, {_CHOSEN} needed"
        raise HarnessError(message)
    return best


def _before(pages: list[tuple[str, ...]], store: str) -> int:
    """Leading pages that a store has no part in."""
    return next((n for n, owners in enumerate(pages) if store in owners), len(pages))


def _under_fault(
    stage: Stage, victim: str, chosen: list[Asked]
) -> tuple[Receipt, list[Sample]]:
    """Asks from before the injection until the end of the window."""
    cluster, engine = stage.cluster, stage.cluster.engines[0]
    injection = stage.injection(victim)
    samples: list[Sample] = []
    with injection as receipt:
        end_s = stage.clock() + stage.window_s
        for number in itertools.count():
            if stage.clock() >= end_s or number >= _MOST:
                break
            asked = chosen[number % len(chosen)]
            request = again(asked.request, f"under-{number}")
            samples.append(ask(cluster, engine, request))
            cluster.flush_local(engine)
            stage.wait(_PAUSE_S)
    return receipt, samples


def _back(stage: Stage) -> float:
    """Seconds until a new prompt comes back from the pool; NaN for not so soon."""
    healed_s = stage.clock()
    for attempt in itertools.count():
        if stage.clock() - healed_s > 1.5 * BACK_WITHIN_S:
            return float("nan")
        request = prompt(stage.cluster, f"after-{stage.fault.name}-{attempt}", TOKENS)
        if _comes_back(stage.cluster, request):
            return stage.clock() - healed_s
        stage.wait(_PAUSE_S)
    raise AssertionError


def _comes_back(cluster: Cluster, request: Request) -> bool:
    engine = cluster.engines[0]
    ask(cluster, engine, request)

    def written() -> bool:
        state = cluster.engine_state(engine)["hicache"]
        return not state["writeback"]["pending"]

    try:
        wait_for(written, "the write-back", timeout_s=_IDLE_S)
    except HarnessError:
        return False
    cluster.flush_local(engine)
    sample = ask(cluster, engine, again(request, "back"))
    answer = sample.answer
    return answer is not None and answer.ok and answer.l3_tokens == TOKENS


def _stall(stage: Stage, samples: list[Sample], allowance_s: float) -> Measured:
    judged = judge_cache_wait(
        samples, stage.cluster.limits, allowance_s=allowance_s, needed=ENOUGH
    )
    return stage.measured(
        Arm.HICACHE,
        "stall-bounded",
        held=_HELD.get(judged.verdict),
        observed=seconds(judged.numbers.get("max_wait_s", float("nan"))),
        limit=judged.threshold,
        samples=len(samples),
        reason=judged.reason,
        numbers={"stall_s": judged.numbers.get("max_wait_s", 0.0), **judged.numbers},
    )


def _healthy(stage: Stage, chosen: list[Asked], samples: list[Sample]) -> Measured:
    """Every answer used at least the pages before the first one on the victim."""
    page = stage.cluster.limits.page_tokens
    due = [chosen[n % len(chosen)].healthy * page for n in range(len(samples))]
    short = [
        (reused(sample), tokens)
        for sample, tokens in zip(samples, due, strict=True)
        if reused(sample) < tokens
    ]
    held = held_of(len(samples), len(short))
    example = f", e.g. {short[0][0]} of {short[0][1]} tokens" if short else ""
    return stage.measured(
        Arm.HICACHE,
        "healthy-keys-used",
        held=held,
        observed=f"of {len(samples)} requests {len(short)} lost healthy pages{example}",
        limit="0",
        samples=len(samples),
        reason=why_untold(held, len(samples)),
        numbers={"lost": float(len(short)), "tokens_due": float(sum(due))},
    )


def _no_failure(stage: Stage, samples: list[Sample]) -> Measured:
    """Every request is answered, with the output of a run without a cache."""
    failed = [s for s in samples if s.answer is None or not s.answer.ok]
    wrong = [
        s
        for s in samples
        if s.answer is not None
        and s.answer.ok
        and s.answer.output_hash != stage.cluster.expected_output(s.request)
    ]
    held = held_of(len(samples), len(failed) + len(wrong))
    return stage.measured(
        Arm.HICACHE,
        "no-failure",
        held=held,
        observed=f"of {len(samples)} requests {len(failed)} failed, {len(wrong)} wrong",
        limit="0",
        samples=len(samples),
        reason=why_untold(held, len(samples)),
        numbers={"failed": float(len(failed)), "wrong": float(len(wrong))},
    )


def _came_back(stage: Stage, back_s: float) -> Measured:
    never = back_s != back_s
    return stage.measured(
        Arm.HICACHE,
        "back-after-heal",
        held=not never and back_s <= BACK_WITHIN_S,
        observed=f"not in {1.5 * BACK_WITHIN_S:g} s" if never else seconds(back_s),
        limit=seconds(BACK_WITHIN_S),
        samples=1,
        numbers={} if never else {"back_s": back_s},
    )
