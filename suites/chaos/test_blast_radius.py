"""Blast radius: a store that dies costs what it held, and nothing else.

Under local-first a session's pages lie on the store beside its engine; placed at random
they lie everywhere, and one dead store cuts nearly every prefix. The healthy arm and
the fault arm replay the same trace; the owner map taken before the fault says what must
be lost. Case ids are those of the public threads that each test answers.
"""

from __future__ import annotations

import numpy as np

from chaos.judge.blast import (
    judge_few_stores,
    judge_local_loss,
    judge_prediction,
    judge_random_loses_more,
    judge_untouched_reuse,
    untouched,
)
from chaos.judge.latency import judge_ratio
from chaos.judge.statistics import pair_ttft
from chaos.load.generate import GeneratorSettings
from chaos.steps import judge_laws
from chaos.store_loss import (
    Conversations,
    Lost,
    ask_next_turns,
    keep_conversations,
    placed,
    route_evenly,
)

TRACE = GeneratorSettings(
    requests=96,
    sessions=48,
    rate_per_s=60.0,
    system_prompts=12,
    system_blocks=1,
    zipf=0.0,
    max_input_tokens=4096,
)
# Reuse is counted to the page, and no deadline cuts the counting short; a turn takes as
# long as on a real machine (modelled), so that milliseconds of this one do not count.
COUNTING = {
    "prefetch_threshold_tokens": 64,
    "prefetch_base_s": 20.0,
    "prefill_tokens_per_s": 500.0,
}
EIGHT = {"engines": 8, "overrides": {"engine": COUNTING}}


def lose_one_store(cluster, inject, load, talks):
    """Both arms around a kill, the trace and the routing the same."""
    route = route_evenly(cluster, talks)
    keep_conversations(cluster, load, talks, route)
    before = placed(cluster, talks)
    victim = before.private_victim()
    healthy = ask_next_turns(cluster, load, talks, route, arm="healthy")
    with inject.kill(victim):
        fault = ask_next_turns(cluster, load, talks, route, arm="fault")
    return Lost(
        placed=before,
        victim=victim,
        healthy=healthy,
        fault=fault,
        page_tokens=cluster.limits.page_tokens,
    )


def judge_nothing_collateral(lost, rng):
    """O7: who had nothing on the victim keeps reuse (exact) and TTFT (modelled)."""
    arms = lost.healthy.samples, lost.fault.samples
    maps, victim = lost.placed.maps, lost.victim
    pairs = pair_ttft(*(untouched(arm, maps, victim) for arm in reversed(arms)))
    dice = np.random.default_rng(rng.getrandbits(64))
    return [
        judge_untouched_reuse(*arms, maps, victim),
        *judge_ratio("O7", "untouched: same TTFT", pairs, dice, margin=0.10),
    ]


def judge_store_loss(lost):
    """O7 a and b, over what is private to a session."""
    private = lost.measured(private=True)
    return [
        judge_few_stores(lost.placed.maps, most=1.5),
        judge_prediction(lost.predicted(private=True), private),
        judge_local_loss(
            private,
            owned_bytes=lost.placed.owned_bytes,
            victim=lost.victim,
            writers=lost.placed.writers,
        ),
    ]


def test_a_killed_store_costs_what_it_held_and_random_placement_costs_more(
    cluster_of, inject, load, judge, rng
):
    """O7 a, b, c: Mooncake#2039 (A1), one store of eight, the same trace twice."""
    talks = Conversations.of(TRACE, rng)

    cluster = cluster_of(**EIGHT)
    local = lose_one_store(cluster, inject, load, talks)
    judge(judge_laws(cluster, local.fault.samples))
    judge(judge_store_loss(local))
    judge(judge_nothing_collateral(local, rng))

    cluster = cluster_of(**EIGHT, placement="random")
    random = lose_one_store(cluster, inject, load, talks)
    lost = random.measured(private=True)
    judge(judge_laws(cluster, random.fault.samples))
    judge(judge_prediction(random.predicted(private=True), lost, needed=8))
    judge(judge_random_loses_more(local.measured(private=True), lost))
