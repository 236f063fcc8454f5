"""Timeout with partial reuse: a slow or broken store costs a request at most T.

What arrived in time as a contiguous prefix of whole pages is used, the rest is
recomputed, the output is that of a run without a cache, and no request fails.
T = min(max, base + per_ki_token * tokens / 1024) (SGLang HiCache, policy `timeout`).
"""

from __future__ import annotations

import pytest

from chaos.steps import (
    ask,
    data_links,
    judge_laws,
    judge_reuse,
    judge_waited,
    keep,
    keep_on_two,
    prompt,
    whole_pages,
)

HALF = 4096
WHOLE = 8192


@pytest.mark.parametrize("fault", ["pause", "blackhole"])
def test_a_silent_store_costs_its_pages_and_at_most_the_deadline(
    cluster, inject, judge, history, fault
):
    asked = prompt(cluster, "split", WHOLE)
    head, tail = keep_on_two(cluster, asked, HALF)
    silence = {
        "pause": lambda: inject.pause(tail),
        "blackhole": lambda: inject.blackhole(data_links(cluster, tail)),
    }[fault]

    with silence():
        sample = ask(cluster, cluster.engines[0], asked)

    judge(judge_laws(cluster, [sample]))
    judge(judge_reuse(sample, HALF, f"the head on {head} is reused, {tail} is lost"))
    judge(
        judge_waited(
            sample, cluster.limits.deadline_base_s, "the deadline was needed"
        )
    )
