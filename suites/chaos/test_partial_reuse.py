"""Timeout with partial reuse: a slow or broken store costs a request at most T.

What arrived in time as a contiguous prefix of whole pages is used, the rest is
recomputed, the output is that of a run without a cache, and no request fails.
T = min(max, base + per_ki_token * tokens / 1024) (SGLang HiCache, policy `timeout`).
Most pages put the head of a prompt on one store and its tail on another, so that what
must survive is known to the token.
"""

from __future__ import annotations

from contextlib import nullcontext

import pytest

from chaos.judge.conservation import judge_conservation
from chaos.judge.limit import at_least, at_most, none_of
from chaos.steps import (
    again,
    ask,
    ask_and_abort,
    ask_together,
    ask_when_kept,
    ask_while,
    asking,
    data_links,
    engine_counter,
    extended,
    judge_equal,
    judge_laws,
    judge_reuse,
    judge_waited,
    keep,
    keep_on_two,
    lookup_link,
    prompt,
    reused,
    seconds_until_reused,
    slots_taken,
    suffix,
    wait_for,
    wait_idle,
    wait_kept,
    whole_pages,
)

HALF = 4096
WHOLE = 8192

# One small cluster serves the pages that need other settings than the default.
HANGS = {
    "stores": 2,
    "engines": 2,
    "page_bytes": 64,
    "overrides": {
        "engine": {
            "l1_pages": 20_000,
            "l2_pages": 40_000,
            "prefill_tokens_per_s": 400_000.0,
            # The formula is on trial here, so nothing may cut a hang short.
            "breaker_consecutive_deadlines": 1000,
            "breaker_min_samples": 1000,
            "quarantine_consecutive_faults": 1000,
            "quarantine_min_samples": 1000,
        }
    },
}
SIDECAR = {
    "stores": 2,
    "engines": 2,
    "overrides": {"engine": {"sidecar_bytes": 4096}},
}
RANKS = tuple(f"rank{rank}_{half}" for rank in range(4) for half in "kv")
TP = {"stores": 2, "engines": 2, "overrides": {"engine": {"components": RANKS}}}
TIGHT = {
    "stores": 2,
    "engines": 2,
    "overrides": {
        "engine": {"l1_pages": 64, "l2_pages": 256, "prefetch_capacity_ratio": 1.0}
    },
}


@pytest.mark.real_proxy
@pytest.mark.parametrize("fault", ["pause", "blackhole", "latency"])
def test_a_silent_store_costs_its_pages_and_at_most_the_deadline(
    cluster, inject, judge, history, fault
):
    asked = prompt(cluster, "split", WHOLE)
    head, tail = keep_on_two(cluster, asked, HALF)
    links = data_links(cluster, tail)
    late_ms = int(3000 * cluster.limits.deadline_s(WHOLE))
    silence = {
        "pause": lambda: inject.pause(tail),
        "blackhole": lambda: inject.blackhole(links),
        "latency": lambda: inject.latency(links, late_ms, late_ms // 10),
    }[fault]

    with silence():
        sample = ask(cluster, cluster.engines[0], asked)

    judge(judge_laws(cluster, [sample]))
    judge(judge_reuse(sample, HALF, f"the head on {head} is reused, {tail} is lost"))
    judge(judge_waited(sample, cluster.limits.deadline_base_s, "the wait was real"))


def test_a_slow_link_gives_the_pages_that_came_in_time(cluster, inject, judge, history):
    asked = prompt(cluster, "narrow", WHOLE)
    _, tail = keep_on_two(cluster, asked, HALF)
    tail_kb = (WHOLE - HALF) // cluster.limits.page_tokens * cluster.spec.page_bytes
    links = data_links(cluster, tail)
    half_of_it = tail_kb / 1024 / 2 / cluster.limits.deadline_s(WHOLE) / len(links)

    with inject.bandwidth(links, int(half_of_it)):
        sample = ask(cluster, cluster.engines[0], asked)

    judge(judge_laws(cluster, [sample]))
    judge(at_least("O3", "the head is reused", reused(sample), HALF, samples=1))
    judge(at_most("O3", "not all came", reused(sample), WHOLE - 64, samples=1))
    judge(judge_waited(sample, cluster.limits.deadline_base_s, "the wait was real"))


@pytest.mark.real_proxy
def test_a_lossy_store_fails_fast_and_costs_only_its_pages(
    cluster, inject, judge, history
):
    asked = prompt(cluster, "lossy", WHOLE)
    head, tail = keep_on_two(cluster, asked, HALF)

    with inject.reset(data_links(cluster, tail)):
        sample = ask(cluster, cluster.engines[0], asked)

    judge(judge_laws(cluster, [sample]))
    judge(judge_reuse(sample, HALF, f"the head on {head} is reused"))
    waited = sample.answer.cache_wait_s
    limit = cluster.limits.deadline_base_s
    judge(at_most("O2", "a reset is not waited for", waited, limit, samples=1))


def test_a_slow_lookup_still_gives_everything(cluster, inject, judge, history):
    asked = prompt(cluster, "slow-lookup", WHOLE)
    engine = cluster.engines[0]
    keep(cluster, engine, asked)
    late_ms = int(1000 * cluster.limits.deadline_base_s / 5)

    with inject.latency([lookup_link(cluster, engine)], late_ms):
        sample = ask(cluster, engine, again(asked, "late"))

    judge(judge_laws(cluster, [sample]))
    judge(judge_reuse(sample, WHOLE, "a slow lookup loses nothing"))
    judge(judge_waited(sample, late_ms / 1000, "the lookup was slow"))


def test_a_hung_lookup_costs_the_base_and_gives_nothing(
    cluster, inject, judge, history
):
    """SGLang: until the hit query answered there are no tokens, so T = base (F2)."""
    asked = prompt(cluster, "hung-lookup", WHOLE)
    engine = cluster.engines[0]
    keep(cluster, engine, asked)

    with inject.blackhole([lookup_link(cluster, engine)]):
        sample = ask(cluster, engine, again(asked, "hung"))

    judge(judge_laws(cluster, [sample]))
    judge(judge_reuse(sample, 0, "nothing is known, nothing is reused"))
    limits, waited = cluster.limits, sample.answer.cache_wait_s
    limit = limits.deadline_base_s + limits.poll_s
    judge(at_most("O2", "wait <= base + poll", waited, limit, samples=1, unit="s"))
    judge(judge_waited(sample, 0.8 * limits.deadline_base_s, "the wait was real"))


@pytest.mark.parametrize("lost", ["first", "middle", "last"])
def test_a_lost_page_costs_itself_and_what_follows(cluster, judge, history, lost):
    asked = prompt(cluster, f"hole-{lost}", WHOLE)
    engine = cluster.engines[0]
    keep(cluster, engine, asked)
    last = whole_pages(cluster, asked) - 1
    page = {"first": 0, "middle": last // 2, "last": last}[lost]
    dropped = cluster.drop_pages(asked, [page])

    sample = ask(cluster, engine, again(asked, "hole"))
    healed = ask_when_kept(cluster, cluster.engines[1], asked)

    judge(judge_equal("evidence", "the page is gone", dropped, 1))
    judge(judge_laws(cluster, [sample, healed]))
    kept = page * cluster.limits.page_tokens
    judge(judge_reuse(sample, kept, f"the prefix before page {page} is reused"))
    judge(judge_reuse(healed, WHOLE, "the hole is written again by the next request"))


def test_one_rail_of_two_down_loses_nothing(cluster, inject, judge, history):
    asked = prompt(cluster, "one-rail", WHOLE)
    engine = cluster.engines[0]
    keep(cluster, engine, asked)
    store = cluster.owners_of(asked)[0][0]

    with inject.nic_down(store, "rail0"):
        sample = ask(cluster, engine, again(asked, "down"))

    judge(judge_laws(cluster, [sample]))
    judge(judge_reuse(sample, WHOLE, "the other rail brings everything"))


def test_a_stale_hit_is_tried_once_per_engine_not_fifty_times(
    cluster, inject, judge, history
):
    """Exists says yes, get times out, again and again (sglang#31315, A9)."""
    tokens = 2048
    asked = prompt(cluster, "stale", tokens)
    keep(cluster, cluster.engines[0], asked)
    store = cluster.owners_of(asked)[0][0]
    limits, engines = cluster.limits, cluster.engines

    with inject.blackhole(data_links(cluster, store)):
        first = [ask(cluster, e, again(asked, f"first-{e}")) for e in engines]
        rest = [(engines[i % 2], again(asked, f"rest-{i}")) for i in range(48)]
        for engine in engines:
            cluster.flush_local(engine)
        later = ask_together(cluster, rest, at_once=4)

    samples = [*first, *later]
    timeouts = sum(s.answer.prefetch_outcome == "timeout" for s in samples)
    waits = [s.answer.cache_wait_s for s in samples]
    wasted = sum(wait for wait in waits if wait > limits.poll_s)
    judge(judge_laws(cluster, samples))
    judge(
        at_most(
            "A9",
            "at most one timeout per engine",
            timeouts,
            len(engines),
            samples=len(samples),
            kind="counter",
        )
    )
    budget = len(engines) * (limits.deadline_s(tokens) + limits.poll_s)
    judge(
        at_most(
            "A9",
            "waits of more than a poll, in all <= engines x T",
            wasted,
            budget,
            samples=len(samples),
            unit="s",
        )
    )
    back_s = 30 * cluster.spec.time_scale
    took = seconds_until_reused(cluster, engines[0], asked, tokens, back_s)
    judge(at_most("A9", "the hit returns", took, back_s, samples=1, unit="s"))


def test_a_hit_that_cannot_be_read_is_loaded_once(cluster, inject, judge, history):
    """Exists always true, get always fails: one attempt, then recompute (G10)."""
    engine = cluster.engines[0]
    prompts = [prompt(cluster, f"liar-{i}", 2048) for i in range(2)]
    for each in prompts:
        keep(cluster, engine, each)
    before = engine_counter(cluster, engine, "storage_operations", "get")
    faults = [
        inject.failpoint(store, "store.read", "return(-800)")
        for store in cluster.stores
        if cluster.owned_bytes()[store]
    ]

    with inject.together(*faults):
        samples = [ask(cluster, engine, again(each, "liar")) for each in prompts]
        loads = engine_counter(cluster, engine, "storage_operations", "get") - before

    judge(judge_laws(cluster, samples))
    judge(judge_equal("G10", "one load attempt per request", loads, len(prompts)))
    for sample in samples:
        judge(judge_reuse(sample, 0, "and then it is recomputed"))


def test_corrupted_bytes_are_never_used(cluster, inject, judge, history):
    """A store that flips a bit in what it sends loses its pages, nothing else (O1)."""
    asked = prompt(cluster, "corrupt", WHOLE)
    head, tail = keep_on_two(cluster, asked, HALF)

    with inject.failpoint(tail, "store.corrupt", "on"):
        sample = ask(cluster, cluster.engines[0], asked)

    judge(judge_laws(cluster, [sample]))
    judge(at_least("O3", f"{head} still serves", reused(sample), HALF, samples=1))
    judge(at_most("O1", f"{tail} does not", reused(sample), WHOLE - 64, samples=1))


def test_local_only_time_does_not_break_the_hash_chain(cluster, judge, history):
    """Pages made while the pool is cut off have the hash of their prefix (F11)."""
    first, second = cluster.engines[:2]
    base = prompt(cluster, "chain-0", 1024, session="chain")
    keep(cluster, first, base)
    cluster.local_only(first, True)
    turns, samples = [base], []
    for turn in range(1, 5):
        turns.append(extended(cluster, turns[-1], f"chain-{turn}", 1024))
        samples.append(ask(cluster, first, turns[-1]))
    cluster.local_only(first, False)
    last = extended(cluster, turns[-1], "chain-5", 1024)
    samples.append(ask(cluster, first, last))
    wait_kept(cluster, [last])

    suffixes = [suffix(cluster, last, cut) for cut in (1024, 2048, 4096)]
    strangers = [ask(cluster, second, suffix) for suffix in suffixes]
    whole = ask(cluster, second, again(last, "whole"))

    judge(judge_laws(cluster, [*samples, *strangers, whole]))
    false = sum(reused(sample) > 0 for sample in strangers)
    judge(none_of("F11", "a suffix never hits", false, of=3, what="false hits"))
    judge(judge_reuse(whole, last.input_length, "the full prefix is found again"))


def test_aborted_requests_leave_no_page_behind(
    cluster, inject, judge, history, rng, steady_state
):
    """Aborts at random points: occupancy 0, pages back, next hit works (F3)."""
    engine = cluster.engines[0]
    kept = [prompt(cluster, f"abort-{i}", 2048) for i in range(6)]
    for each in kept:
        keep(cluster, engine, each)
    links = data_links(cluster)
    slow_ms = int(1000 * cluster.limits.deadline_base_s / 8)
    delays = [rng.uniform(0.0, slow_ms / 1000) for _ in range(500)]

    with inject.latency(links, slow_ms, slow_ms // 2):
        aborted = ask_and_abort(cluster, engine, kept, delays)
    wait_idle(cluster, engine)
    state = cluster.engine_state(engine)["hicache"]
    judge(steady_state())
    forget_s = 30 * cluster.spec.time_scale  # a page that timed out is left alone (A9)
    back_s = seconds_until_reused(cluster, engine, kept[0], 2048, forget_s)
    sample = ask(cluster, engine, again(kept[1], "after"))

    judge(
        at_least(
            "evidence", "requests aborted", aborted, 1, samples=aborted, needed=100
        )
    )
    judge(judge_equal("F3", "occupancy", state["occupancy"]["tokens"], 0))
    in_flight = sum(tier["in_flight"] for tier in state["pages"].values())
    judge(judge_equal("F3", "pages in flight", in_flight, 0, samples=500))
    judge(judge_conservation(cluster.conservation()))
    judge(judge_laws(cluster, [sample]))
    claim = "the next requests hit L3 again"
    judge(at_most("F3", claim, back_s, forget_s, samples=1, unit="s"))


@pytest.mark.slow
@pytest.mark.parametrize("tokens", [256, 1024, 8192, 131_072, 1_048_576])
def test_the_wait_follows_the_formula(cluster_of, inject, judge, history, tokens):
    """2.03, 2.1, 2.8, 14.8 and 30 s at factor 1 (sglang#10512, sglang#23309, F2)."""
    cluster = cluster_of(**HANGS)
    asked = prompt(cluster, f"length-{tokens}", tokens)
    engine = cluster.engines[0]
    keep(cluster, engine, asked)

    with inject.blackhole(data_links(cluster)):
        sample = ask(cluster, engine, again(asked, "hang"))

    limit = cluster.limits.deadline_s(tokens)
    judge(judge_laws(cluster, [sample]))
    judge(judge_reuse(sample, 0, "nothing arrives"))
    judge(judge_waited(sample, limit - cluster.limits.poll_s, f"T of {tokens} tokens"))


@pytest.mark.slow
@pytest.mark.parametrize("policy", ["best_effort", "wait_complete", "timeout"])
@pytest.mark.parametrize("pending", ["none", "main", "sidecar"])
def test_policies_end_as_promised(cluster_of, inject, judge, history, policy, pending):
    """Nine cells: three policies, nothing, the main pages or a sidecar missing (F1)."""
    cluster = cluster_of(**SIDECAR)
    engine, limits = cluster.engines[0], cluster.limits
    asked = prompt(cluster, f"cell-{policy}-{pending}", WHOLE)
    keep(cluster, engine, asked)
    request = again(asked, "cell", policy=policy)
    failpoint = {"main": "hicache.before_get", "sidecar": "hicache.sidecar"}

    if pending == "none":
        sample, early = ask(cluster, engine, request), True
    else:
        fault = inject.failpoint(engine, failpoint[pending], "pause")
        held_s = limits.deadline_s(WHOLE) + 5 * limits.poll_s + 0.5
        # A request that finds a free slot ends a best effort before it began.
        busy_s = 0.5 if policy == "best_effort" else 0.0
        with slots_taken(cluster, engine, busy_s) if busy_s else nullcontext():
            sample, early = ask_while(cluster, engine, request, fault, held_s)

    judge(judge_laws(cluster, [sample], wait=policy == "timeout"))
    waits_on = policy == "wait_complete" and pending != "none"
    judge(judge_equal("F1", "ends while something is missing", early, not waits_on))
    if policy == "timeout" and pending != "none":
        judge(judge_reuse(sample, 0, "only the common prefix of the pools is used"))
        judge(judge_waited(sample, limits.deadline_base_s, "it waited for T"))
    elif policy != "best_effort":
        judge(judge_reuse(sample, WHOLE, "everything is used"))


@pytest.mark.slow
def test_a_missing_component_shortens_the_prefix_of_all(cluster_of, judge, history):
    """Four ranks, keys and values; one component of page 37 is gone (D13)."""
    cluster = cluster_of(**TP)
    asked = prompt(cluster, "ranks", WHOLE)
    engine = cluster.engines[0]
    keep(cluster, engine, asked)
    dropped = cluster.drop_pages(asked, [37], component="rank2_v")

    sample = ask(cluster, engine, again(asked, "torn"))

    judge(judge_equal("evidence", "one component is gone", dropped, 1))
    judge(judge_laws(cluster, [sample]))
    judge(judge_reuse(sample, 37 * cluster.limits.page_tokens, "pages 0 to 36"))


@pytest.mark.slow
def test_a_miss_evicts_nothing(cluster_of, judge, history):
    """Query first, allocate for hits only (sglang#19320, F6)."""
    cluster = cluster_of(**TIGHT)
    engine = cluster.engines[0]
    fill = [prompt(cluster, f"fill-{i}", 64 * 64) for i in range(4)]
    ask_together(cluster, [(engine, each) for each in fill])
    wait_kept(cluster, fill)
    wait_idle(cluster, engine)
    misses = [prompt(cluster, f"miss-{i}", 1024) for i in range(200)]

    before = cluster.engine_state(engine)["hicache"]["pages"]["l2"]
    with slots_taken(cluster, engine, 10.0):  # so that nothing is computed
        for some in (misses[at : at + 8] for at in range(0, 200, 8)):
            missed = engine_counter(cluster, engine, "prefetch_outcomes", "miss")
            with asking(cluster, engine, some):
                wait_for(
                    lambda wanted=missed + 8: (
                        engine_counter(cluster, engine, "prefetch_outcomes", "miss")
                        >= wanted
                    ),
                    "eight requests to miss",
                )
        after = cluster.engine_state(engine)["hicache"]["pages"]["l2"]
    evicted = after["evictions"] - before["evictions"]

    judge(judge_equal("evidence", "free pages in L2", before["free"], 0))
    judge(judge_equal("F6", "evictions for misses", evicted, 0, samples=200))


@pytest.mark.slow
def test_a_hit_cut_to_the_free_room_is_called_unfulfilled(
    cluster_of, inject, judge, history
):
    """A full hit without room is not a miss (sglang#31398, F6)."""
    cluster = cluster_of(**TIGHT)
    engine, other = cluster.engines[:2]
    large = prompt(cluster, "large", 180 * 64)
    asked = prompt(cluster, "asked", WHOLE)
    keep(cluster, other, large)
    keep(cluster, other, asked)

    with (
        inject.failpoint(engine, "hicache.before_get", "1*pause->off"),
        asking(cluster, engine, [again(large, "holds")]),
    ):
        wait_for(
            lambda: (
                cluster.engine_state(engine)["hicache"]["pages"]["l2"]["in_flight"]
                == 180
            ),
            "180 pages in flight",
        )
        sample = ask(cluster, engine, again(asked, "short"))
        missing = engine_counter(cluster, engine, "unfulfilled_tokens")

    room = (256 - 180) * cluster.limits.page_tokens
    judge(judge_laws(cluster, [sample]))
    judge(judge_reuse(sample, room, "what fits is used"))
    judge(judge_equal("F6", "unfulfilled tokens", missing, WHOLE - room))


@pytest.mark.slow
@pytest.mark.parametrize("times", [1, 10])
def test_a_failed_batch_leaves_no_hole(cluster, judge, history, times):
    """Batch 2 of 5 fails: retried; for ever: the chain stops, is counted (F8)."""
    engine = cluster.engines[0]
    asked = prompt(cluster, f"backup-{times}", 5 * WHOLE)
    spec = f"1*off->{times}*return(-800)->off"
    cluster.set_failpoint(engine, "hicache.put_batch", spec)
    first = ask(cluster, engine, asked)
    wait_for(
        lambda: cluster.failpoint_hits(engine, "hicache.put_batch") >= min(times, 3),
        "the second batch to fail",
    )
    wait_idle(cluster, engine)
    stored = sum(bool(owner) for owner in cluster.owners_of(asked))
    failed = engine_counter(cluster, engine, "backup_failed_tokens")
    cluster.clear_failpoints(engine)

    once = times == 1
    whole = whole_pages(cluster, asked)
    judge(judge_laws(cluster, [first]))
    judge(judge_equal("F8", "pages stored", stored, whole if once else 128))
    lost = 0 if once else (whole - 128) * cluster.limits.page_tokens
    judge(judge_equal("F8", "backup_failed_tokens", failed, lost))
    touch = ask(cluster, engine, again(asked, "touch"))
    healed = ask_when_kept(cluster, engine, asked)
    judge(judge_laws(cluster, [touch, healed]))
    judge(judge_reuse(healed, asked.input_length, "the next request backs it up"))
