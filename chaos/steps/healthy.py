"""The arms of a healthy pool: reads from L3 under load, and the same trace without it.

Prompts are computed and kept by one engine and asked of another, so that each of them
is one batched read from the pool, never a hit of a local tier.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from chaos.judge.latency import judge_service_level
from chaos.judge.limit import number
from chaos.judge.validity import smallest_limit_s, validity_of
from chaos.load.sample import answered
from chaos.load.trace import BLOCK_TOKENS, prefix_hit_share
from chaos.steps import (
    ask,
    ask_together,
    judge_equal,
    prompt,
    reused,
    wait_idle,
    wait_kept,
)

if TYPE_CHECKING:
    import random
    from collections.abc import Callable, Iterator, Sequence

    from chaos.driver import LoadDriver
    from chaos.judge.verdict import Judgement
    from chaos.load.sample import LoadRun, Sample
    from chaos.systems.base import Cluster, Limits, Request

READ_MEAN_S = 0.050
READ_P95_S = 0.100
"""The article: a batched read takes 50 ms on average, the vast majority under 100."""
_AT_ONCE = 16
"""Prompts written at one time, so that writing back keeps up."""
_TURNS_AT_ONCE = 8
_ATTEMPTS = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Kept:
    """Prompts that the pool holds, and the engine that shall read each of them."""

    requests: tuple[Request, ...]
    readers: dict[str, str]

    def route(self, request: Request) -> str:
        return self.readers[request.request_id]


def keep_for_others(
    cluster: Cluster,
    rng: random.Random,
    *,
    count: int,
    tokens: int,
    rate_per_s: float,
) -> Kept:
    """Puts `count` prompts into the pool, due at random instants of this rate.

    Each is written by one engine and will be read by the next one.
    """
    engines = cluster.engines
    writers = {f"read-{i}": engines[i % len(engines)] for i in range(count)}
    asked = [prompt(cluster, name, tokens) for name in writers]
    for start in range(0, count, _AT_ONCE):
        some = asked[start : start + _AT_ONCE]
        ask_together(cluster, [(writers[r.request_id], r) for r in some])
        forget_local(cluster)
    wait_kept(cluster, asked)
    at_s, due = 0.0, []
    for request in asked:
        due.append(replace(request, at_s=at_s))
        at_s += rng.expovariate(rate_per_s)
    following = dict(zip(engines, [*engines[1:], engines[0]], strict=True))
    readers = {name: following[writer] for name, writer in writers.items()}
    return Kept(requests=tuple(due), readers=readers)


def forget_local(cluster: Cluster) -> None:
    """Empties the local tiers of every engine, when nothing is under way."""
    for engine in cluster.engines:
        wait_idle(cluster, engine)
        cluster.flush_local(engine)


def replay_fresh(
    cluster: Cluster, load: LoadDriver, kept: Kept, *, arm: str
) -> LoadRun:
    """Replays the kept prompts with empty local tiers.

    A run in which the generator itself could not keep its plan tells nothing of the
    system, good or bad: it is made again, at most twice, and under another name.
    """
    smallest_s = smallest_limit_s(cluster.limits)
    for attempt in range(_ATTEMPTS):
        forget_local(cluster)
        name = f"{arm}-{attempt}" if attempt else arm
        run = load(kept.requests, arm=name, route=kept.route)
        if not validity_of(run, smallest_s).problem:
            break
    return run


def read_seconds(samples: Sequence[Sample]) -> list[float]:
    """How long each batched read took: from the entry into the queue to its last byte.

    Lookup, transfer, checksums and the waiting of the read itself are all in it.
    """
    return [a.cache_wait_s for _, a in answered(tuple(samples)) if a.l3_tokens > 0]


def judge_reads(
    samples: Sequence[Sample], limits: Limits, *, tokens: int, time_scale: float
) -> list[Judgement]:
    """Mean under 50 ms and 95 % under 100 ms, of real bytes in real time.

    Nothing of a read is scaled, so the article's absolute numbers are judged as they
    are; what is scaled is T, so the proportion of a read to T is told beside them, as
    it is here and as it would be at factor 1.
    """
    took = read_seconds(samples)
    mean_s = sum(took) / len(took) if took else float("nan")
    here_s = limits.deadline_s(tokens)
    share, at_one = mean_s / here_s, mean_s * time_scale / here_s
    ratio = (
        f"{tokens} tokens a read; mean / T = {number(share, 'share')} "
        f"at factor {time_scale:g}, {number(at_one, 'share')} at factor 1"
    )
    mean = judge_service_level("SLO", "batched read, mean", took, READ_MEAN_S)
    tail = judge_service_level(
        "SLO", "batched read, 95 %", took, READ_P95_S, quantile=0.95
    )
    return [
        replace(
            judged,
            reason="; ".join(word for word in (judged.reason, ratio) if word),
            numbers={**judged.numbers, "of_t": share, "of_t_at_factor_1": at_one},
        )
        for judged in (mean, tail)
    ]


def replay_in_rounds(
    cluster: Cluster, requests: Sequence[Request], route: Callable[[Request], str]
) -> list[Sample]:
    """Asks turn by turn, every turn when all earlier ones are in the pool.

    Then what can be reused is a property of the trace, not of the speed of the machine.
    The first turns come one by one, since sessions share their system prompts; of later
    ones, one a session, all prefixes are there already.
    """
    samples: list[Sample] = []
    for number_, turns in enumerate(rounds(requests)):
        at_once = 1 if number_ == 0 else _TURNS_AT_ONCE
        samples += _ask_all(cluster, turns, route, at_once)
        wait_kept(cluster, turns)
    return samples


def rounds(requests: Sequence[Request]) -> Iterator[list[Request]]:
    """Cuts a trace where a session comes again: one turn a session in each round."""
    turns: list[Request] = []
    for request in requests:
        if any(request.session == turn.session for turn in turns):
            yield turns
            turns = []
        turns.append(request)
    if turns:
        yield turns


def judge_hits(samples: Sequence[Sample], requests: Sequence[Request]) -> Judgement:
    """Tokens reused are exactly those that an infinite cache would have reused."""
    blocks = sum(len(request.hash_ids) for request in requests)
    expected = round(prefix_hit_share(requests) * blocks) * BLOCK_TOKENS
    found = sum(reused(sample) for sample in samples)
    asked = sum(request.input_length for request in requests)
    return judge_equal(
        "hit rate",
        "as much is reused as an infinite cache could",
        found,
        expected,
        unit="tokens",
        samples=len(samples),
        reason=f"{number(found / asked, 'share')} of {asked} tokens",
    )


def master_counter(cluster: Cluster, name: str) -> int:
    """One counter or gauge of the master, by its upstream name."""
    state = cluster.role_state(cluster.masters[0])
    return int({**state["counters"], **state["gauges"]}[name])


def _ask_all(
    cluster: Cluster,
    requests: Sequence[Request],
    route: Callable[[Request], str],
    at_once: int,
) -> list[Sample]:
    def one(request: Request) -> Sample:
        sample = ask(cluster, route(request), request)
        if at_once == 1:
            wait_kept(cluster, [request])
        return sample

    with ThreadPoolExecutor(at_once, thread_name_prefix="turn") as pool:
        return list(pool.map(one, requests))
