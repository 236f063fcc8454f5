"""Blast radius: a store that dies costs what it held, and nothing else.

Under local-first a session's pages lie on the store beside its engine; placed at random
they lie everywhere, and one dead store cuts nearly every prefix. The healthy arm and
the fault arm replay the same trace; the owner map taken before the fault says what must
be lost. Case ids are those of the public threads that each test answers.
"""

from __future__ import annotations

import time
from dataclasses import replace

import numpy as np
import pytest

from chaos.judge.blast import (
    PREDICTION_POINTS,
    judge_few_stores,
    judge_local_loss,
    judge_nobody_sent,
    judge_prediction,
    judge_random_loses_more,
    judge_removal_time,
    judge_untouched_reuse,
    untouched,
)
from chaos.judge.latency import judge_ratio
from chaos.judge.limit import at_least, at_most, none_of
from chaos.judge.recovery import hit_rate, judge_recovery
from chaos.judge.statistics import pair_ttft
from chaos.load.generate import GeneratorSettings
from chaos.load.noise import NoiseProbe
from chaos.steps import (
    ask,
    data_links,
    extended,
    judge_equal,
    judge_laws,
    keep,
    prompt,
    reused,
    whole_pages,
)
from chaos.steps.drain import drain, judge_gone_before_exit, judge_served
from chaos.steps.kv_laws import KvCode, judge_codes
from chaos.steps.probing import (
    LookupLog,
    in_batches,
    put_all,
    read_rate,
    timed_read,
    write_from,
)
from chaos.steps.put_log import (
    PutLog,
    judge_no_allocation,
    judge_puts_fail_briefly,
    judge_share_in_windows,
    share_of,
)
from chaos.steps.quarantined import (
    ask_until,
    is_blocked,
    judge_breakers_stayed_closed,
    judge_quarantined,
    judge_readmitted,
    wait_readmitted,
)
from chaos.steps.store_loss import (
    Conversations,
    Lost,
    ask_next_turns,
    expect_gone,
    keep_all,
    keep_conversations,
    move_sessions,
    next_turns,
    placed,
    route_evenly,
    settle,
    sharing,
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
    "slow_floor_s": 1.0,
    "prefill_tokens_per_s": 500.0,
}
EIGHT = {"engines": 8, "overrides": {"engine": COUNTING}}


TRANSFER_FAIL = "return(-800)"
RPC_FAIL = "return(-900)"
SMALL = 4096
# What a cache can throw at an engine (A13): (inject, a store with pages, the engine).
MISHAPS = {
    "killed store": lambda inject, store, engine: inject.kill(store),
    "hung store": lambda inject, store, engine: inject.pause(store),
    "store fails": lambda inject, store, engine: inject.failpoint(
        store, "store.read", TRANSFER_FAIL
    ),
    "wrong bytes": lambda inject, store, engine: inject.failpoint(
        store, "store.corrupt", "on"
    ),
    "master fails": lambda inject, store, engine: inject.failpoint(
        "master", "master.lookup", RPC_FAIL
    ),
    "hung master": lambda inject, store, engine: inject.pause("master"),
    "killed master": lambda inject, store, engine: inject.kill("master"),
    "client raises": lambda inject, store, engine: inject.failpoint(
        engine, "client.before_transfer", "panic"
    ),
    "cache raises": lambda inject, store, engine: inject.failpoint(
        engine, "hicache.before_get", "panic"
    ),
    "puts fail": lambda inject, store, engine: inject.failpoint(
        engine, "hicache.put_batch", "return(-500)"
    ),
}
RARE = ("cache raises", "killed master", "master fails", "puts fail", "store fails")
NODES = {"engines": 4, "stores_per_host": 2, "overrides": {"engine": COUNTING}}


def lose_one_store(cluster, inject, load, talks, *, domain=str, route=None):
    """Both arms around a kill, the trace and the routing the same.

    With a `domain` all stores of the victim's die together.
    """
    route = route or route_evenly(cluster, talks)
    keep_conversations(cluster, load, talks, route)
    before = placed(cluster, talks, domain=domain)
    victim = before.private_victim()
    dying = [inject.kill(name) for name in cluster.stores if domain(name) == victim]
    healthy = ask_next_turns(cluster, load, talks, route, arm="healthy")
    with inject.together(*dying):
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


def fails_to_move_bytes(inject, store):
    """The data path answers TRANSFER_FAIL, always; heartbeats and RPCs are well."""
    names = ("store.read", "store.write")
    return [inject.failpoint(store, name, TRANSFER_FAIL) for name in names]


def unmatched_puts(cluster):
    """The alarm of E17: puts of writers whose host has no store."""
    counters = cluster.role_state("master")["counters"]
    return counters["master_local_first_unmatched_total"]


def judge_taken(claim, taken_s, limit_s, late_s):
    """A6: a time; what does not scale with time is measured in the run and added:

    a healthy read of the same bytes, and how late this machine woke sleepers.
    """
    return at_most(
        "A6",
        claim,
        taken_s,
        limit_s + late_s,
        samples=1,
        unit="s",
        reason=f"{limit_s:g} s + {late_s:.3f} s of a healthy read and scheduling",
    )


def judge_healed(lost, after):
    """O7: once it is written again, as much is reused as before the fault."""
    healed = replace(lost, fault=after)
    return at_most(
        "O7",
        "what was lost is written again by its next use",
        healed.measured().share,
        PREDICTION_POINTS,
        samples=healed.measured().requests,
        unit="share",
        label="still lost",
        kind="counter",
    )


@pytest.mark.slow
def test_the_hit_rate_is_back_after_the_store_rejoins(
    cluster_of, inject, load, judge, rng, steady_state
):
    """O7, Mooncake#2039 (A1): nobody is restarted but the dead one."""
    cluster = cluster_of(**EIGHT)
    talks = Conversations.of(TRACE, rng)
    route = route_evenly(cluster, talks)

    lost = lose_one_store(cluster, inject, load, talks)
    healed_at_s = inject.receipts[-1].reverted_at_s
    rounds = [
        ask_next_turns(cluster, load, talks, route, arm="healthy", name=name)
        for name in ("first", "second")
    ]

    judge(steady_state())
    judge(judge_store_loss(lost))
    judge(judge_healed(lost, rounds[-1]))
    samples = [sample for run in rounds for sample in run.samples]
    judge(
        judge_recovery(
            "O7",
            samples,
            former=hit_rate(lost.healthy.samples),
            healed_at_s=healed_at_s,
            budget_s=rounds[-1].samples[20].intended_s - healed_at_s,
        )
    )


@pytest.mark.slow
def test_moved_sessions_lose_what_lies_on_the_victim_wherever_they_are(
    cluster_of, inject, load, judge, rng
):
    """O7, moved sessions: their older turns stay on the store beside the old engine."""
    cluster = cluster_of(**EIGHT)
    talks = Conversations.of(TRACE, rng)
    route = route_evenly(cluster, talks)
    keep_conversations(cluster, load, talks, route)
    moved_route = move_sessions(cluster, route)
    moved = replace(talks, kept=tuple(next_turns(cluster, talks, "moved")))

    lost = lose_one_store(cluster, inject, load, moved, route=moved_route)
    again = [
        ask_next_turns(cluster, load, moved, moved_route, arm="healthy", name=name)
        for name in ("first", "second")
    ]

    private = lost.measured(private=True)
    judge(judge_laws(cluster, lost.fault.samples))
    judge(judge_few_stores(lost.placed.maps, most=2.5))
    judge(judge_prediction(lost.predicted(private=True), private))
    judge(judge_nothing_collateral(lost, rng))
    judge(judge_healed(lost, again[-1]))


@pytest.mark.slow
def test_a_lost_system_prompt_costs_everybody_once_and_is_refilled(
    cluster_of, inject, load, judge
):
    """O7, a lost shared prompt: judged by the map and by the time until it is back."""
    cluster = cluster_of(**EIGHT)
    engine, system = cluster.engines[0], prompt(cluster, "system", 2048)
    keep_all(cluster, [(engine, system)])
    talks = sharing(cluster, system)
    route = route_evenly(cluster, talks)
    keep_conversations(cluster, load, talks, route)
    before = placed(cluster, talks)
    victim = before.shared_victim()

    healthy = ask_next_turns(cluster, load, talks, route, arm="healthy")
    with inject.kill(victim):
        fault = ask_next_turns(cluster, load, talks, route, arm="fault")
        expect_gone(cluster, victim)
        gone_s = time.monotonic()
        after = ask(cluster, engine, extended(cluster, system, "after", 1024))
        settle(cluster)
        refilled_s = time.monotonic() - gone_s
        found = sum(map(bool, cluster.owners_of(system)))

    lost = Lost(
        placed=before,
        victim=victim,
        healthy=healthy,
        fault=fault,
        page_tokens=cluster.limits.page_tokens,
    )
    pages = whole_pages(cluster, system)
    judge(judge_laws(cluster, [*fault.samples, after]))
    judge(judge_prediction(lost.predicted(), lost.measured(), needed=8))
    judge(judge_equal("O7", "one use brings it back", found, pages, unit="pages"))
    judge(
        at_most(
            "O7",
            "refilled within its prefill and 10 s at factor 1",
            refilled_s,
            after.answer.prefill_modelled_s + 10 * cluster.spec.time_scale,
            samples=1,
            unit="s",
        )
    )


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


@pytest.mark.slow
def test_a_node_that_dies_takes_only_its_own_prefixes(
    cluster_of, inject, load, judge, rng, steady_state
):
    """Mooncake#2039 (A1): both stores of one node of four are killed."""
    cluster = cluster_of(**NODES)
    talks = Conversations.of(replace(TRACE, system_prompts=3), rng)
    route = route_evenly(cluster, talks)

    lost = lose_one_store(cluster, inject, load, talks, domain=cluster.host_of)
    again = [
        ask_next_turns(cluster, load, talks, route, arm="healthy", name=name)
        for name in ("first", "second")
    ]

    judge(judge_laws(cluster, lost.fault.samples))
    judge(judge_store_loss(lost))
    judge(judge_nothing_collateral(lost, rng))
    judge(judge_healed(lost, again[-1]))
    judge(steady_state())


@pytest.mark.slow
def test_two_replicas_never_lie_on_one_node(cluster_of, inject, judge):
    """Mooncake#1168 (A7): two stores a node, replica_num 2, any node may die."""
    cluster = cluster_of(**NODES)
    probe = cluster.kv()
    hosts = sorted({cluster.host_of(store) for store in cluster.stores})
    names = [f"twice-{number}" for number in range(5000)]
    for at, host in enumerate(hosts):
        put_all(probe, names[at :: len(hosts)], SMALL, host=host, replicas=2)
    owners = in_batches(names, probe.owners)
    domains = [{cluster.host_of(store) for store in one} for one in owners]
    together = sum(len(one) < 2 for one in domains)
    judge(none_of("A7", "two nodes each", together, of=5000, what="objects on one"))

    dying = [store for store in cluster.stores if cluster.host_of(store) == hosts[0]]
    with inject.together(*(inject.kill(store) for store in dying)):
        codes = in_batches(names, lambda part: probe.read(part, size_bytes=SMALL)[0])
    lost = sum(code != 0 for code in codes)
    judge(
        none_of("A7", f"{hosts[0]} dies, nothing is lost", lost, of=5000, what="lost")
    )


@pytest.mark.slow
def test_a_store_that_rejoins_empty_is_not_flooded(cluster_of, inject, judge):
    """Mooncake#3688 (A3): free-ratio placement is drawn to the one empty segment."""
    cluster = cluster_of(engines=0, placement="free_ratio_first", store_bytes=16 << 20)
    victim, second_s = cluster.stores[3], cluster.spec.time_scale
    objects = cluster.spec.stores * (16 << 20) * 88 // 100 // (128 << 10)
    put_all(cluster.kv(), [f"fill-{i}" for i in range(objects)], 128 << 10)
    puts = {"batch": 64, "size_bytes": 2048, "every_s": second_s / 5}
    with PutLog(cluster.kv(), "on", **puts) as log:
        log.go_on_for(second_s)
        with inject.kill(victim) as receipt:
            expect_gone(cluster, victim)
            gone_s = time.monotonic()
        log.go_on_for(15 * second_s)

    judge(judge_puts_fail_briefly(log, receipt.injected_at_s, second_s))
    judge(
        judge_share_in_windows(
            log.between(gone_s, float("inf")),
            victim,
            stores=cluster.spec.stores,
            window_s=second_s,
        )
    )


def test_a_sick_store_is_quarantined_alone_and_comes_back(cluster, inject, judge):
    """Mooncake#2704 (A2): heartbeats fine, the data path answers TRANSFER_FAIL."""
    engine, sick = cluster.engines[1], cluster.stores[1]
    kept = [prompt(cluster, f"kept-{i}", 2048) for i in range(16)]
    keep_all(cluster, [(engine, each) for each in kept])
    fresh = [prompt(cluster, f"fresh-{i}", 2048) for i in range(4)]

    with inject.together(*fails_to_move_bytes(inject, sick)) as receipts:
        samples = ask_until(
            cluster,
            engine,
            [kept[0], fresh[0], *kept[1:]],
            lambda: is_blocked(cluster, engine, sick),
        )
        settle(cluster)
        samples += [ask(cluster, engine, each) for each in fresh[1:]]
        settle(cluster)
        pages = [page for each in fresh[1:] for page in cluster.owners_of(each)]
    healed_s = max(receipt.reverted_at_s for receipt in receipts)
    wait_readmitted(cluster, engine, sick)

    judge(judge_laws(cluster, samples))
    since_s = receipts[0].injected_at_s
    judge(judge_quarantined(cluster, engine, sick, since_s=since_s))
    written = [page for page in pages if page and sick not in page]
    judge(judge_equal("A2", "pages go elsewhere", len(written), len(pages)))
    judge(judge_breakers_stayed_closed(cluster, since_s=since_s))
    judge(judge_readmitted(cluster, engine, sick, healed_s=healed_s))


def test_what_a_dead_engine_wrote_is_there_for_the_others(cluster, inject, judge):
    """Mooncake#607 (A4): engines contribute nothing, so nothing goes with them."""
    writer, reader = cluster.engines[:2]
    kept = [prompt(cluster, f"kept-{i}", 16_384) for i in range(4)]
    keep_all(cluster, [(writer, each) for each in kept])
    before = cluster.owned_bytes()

    with inject.kill(writer):
        samples = [ask(cluster, reader, each) for each in kept]
        after = cluster.owned_bytes()

    pages = sum(whole_pages(cluster, each) for each in kept)
    found = sum(map(reused, samples)) // cluster.limits.page_tokens
    judge(judge_laws(cluster, samples))
    judge(judge_equal("A4", "all pages are readable", found, pages, unit="pages"))
    lent = sum(size for name, size in before.items() if name not in cluster.stores)
    judge(judge_equal("A4", "an engine contributes nothing", lent, 0, unit="bytes"))
    judge(
        judge_equal("A4", "its pages stay", sum(after.values()), sum(before.values()))
    )


def test_a_second_replica_serves_within_the_deadline(cluster, inject, judge):
    """Mooncake#2910 (A6): two holders, one is silent; the other is asked in time."""
    probe, second_s = cluster.kv(), cluster.spec.time_scale
    names = [f"twice-{number}" for number in range(128)]
    put_all(probe, names, 16 << 10, host=cluster.host_of("store-0"), replicas=2)
    holders = {store for one in probe.owners(names) for store in one}
    silent = min(holders)

    _, healthy_s = timed_read(probe, names, timeout_s=2 * second_s)

    with inject.blackhole(data_links(cluster, silent)), NoiseProbe() as noise:
        first, first_s = timed_read(probe, names, timeout_s=2 * second_s)
        late_s = healthy_s + noise.worst_s()
        second, second_read_s = timed_read(probe, names, timeout_s=2 * second_s)
    judge(judge_equal("A6", "two holders", len(holders), 2, unit="stores"))
    judge(judge_codes("A6", f"read while {silent} is silent", first, KvCode.OK))
    judge(judge_codes("A6", "and the second time", second, KvCode.OK))
    judge(judge_taken("the other is asked in time", first_s, 1.2 * second_s, late_s))
    judge(judge_taken("then it is avoided", second_read_s, second_s, late_s))


def test_sigterm_drains_a_store(cluster, judge):
    """Mooncake#3551 (A8): no new objects, reads served for the grace, gone, exit 0."""
    store, host = cluster.stores[2], cluster.host_of(cluster.stores[2])
    probe, names = cluster.kv(), [f"kept-{number}" for number in range(64)]
    put_all(probe, names, 16 << 10, host=host)
    with PutLog(cluster.kv(), "on", host=host) as log:
        log.go_on_for(0.1)
        drained = drain(cluster, store, probe, names)
    cluster.start_role(store)

    grace_s = 5.0 * cluster.spec.time_scale
    before = share_of(log.over_by(drained.sent_s), store)
    late = log.between(drained.signalled_by_s(grace_s) + 0.05, float("inf"))
    judge(judge_equal("A8", "until then its host's puts went there", before, 1.0))
    judge(judge_no_allocation(late, store, "A8", "nothing new 50 ms after SIGTERM"))
    judge(judge_served(drained, grace_s=grace_s))
    judge(judge_gone_before_exit(drained))
    judge(judge_equal("A8", "exit code", drained.exit_code, 0))


@pytest.mark.parametrize(
    "fault",
    [
        pytest.param(name, marks=pytest.mark.slow if name in RARE else ())
        for name in sorted(MISHAPS)
    ],
)
def test_an_engine_answers_whatever_the_cache_throws(
    cluster, inject, judge, steady_state, fault
):
    """LMCache#1814 (A13): any exception of the cache is a miss, never a failure."""
    kept, fresh = prompt(cluster, "kept", 4096), prompt(cluster, "fresh", 2048)
    keep(cluster, cluster.engines[1], kept)
    holder = cluster.owners_of(kept)[0][0]

    with MISHAPS[fault](inject, holder, cluster.engines[0]):
        samples = [ask(cluster, cluster.engines[0], each) for each in (kept, fresh)]

    judge(judge_laws(cluster, samples))
    judge(steady_state(claim="and the cluster is whole again"))


def test_one_rail_of_two_carries_half(cluster, inject, judge):
    """Mooncake#2960 (E5): one rail down: no batch fails, >= 45 % of the rate is left.

    Loopback is bound by the processor, not by rails: both rails get equal `bandwidth`
    toxics, so that they are the bottleneck and losing one halves what there is.
    """
    store, probe = cluster.stores[0], cluster.kv(cluster.host_of("store-0"))
    names = [f"page-{number}" for number in range(32)]
    put_all(probe, names, 64 << 10)

    with inject.bandwidth(data_links(cluster, store), 8_000):
        healthy = read_rate(probe, names, 64 << 10, batches=6)
        with inject.nic_down(store, "rail1"):
            first = read_rate(probe, names, 64 << 10, batches=1)
            one = read_rate(probe, names, 64 << 10, batches=6)

    failed = healthy.failed + first.failed + one.failed
    judge(
        none_of("E5", "no batch fails", failed, of=13 * len(names), what="reads failed")
    )
    judge(
        at_least(
            "E5",
            "one rail of two carries 45 % of the healthy rate",
            one.bytes_per_s / healthy.bytes_per_s,
            0.45,
            samples=6,
            unit="share",
            reason=f"healthy {healthy.bytes_per_s / 1e6:.1f} MB/s",
        )
    )


def test_writers_with_a_host_fill_it_first_then_spread(cluster, judge):
    """Mooncake#3762 (E17 a): >= 95 % local until the segment is full, then others."""
    probe, hosts = (
        cluster.kv(),
        [cluster.host_of(store) for store in cluster.stores[:3]],
    )
    size, room = 512 << 10, cluster.spec.store_bytes // (512 << 10)
    home = {host: write_from(probe, host, room * 3 // 4, size) for host in hosts}
    local = sum(
        {host} == {cluster.host_of(store) for store in one}
        for host, owners in home.items()
        for one in owners
    )
    over = write_from(probe, hosts[0], room // 2, size, name="over")

    total = sum(map(len, home.values()))
    judge(at_least("E17", "local", local / total, 0.95, samples=total, unit="share"))
    away = sum(one != (cluster.stores[0],) for one in over)
    judge(none_of("E17", "nothing refused", over.count(()), of=len(over), what="lost"))
    judge(
        judge_equal("E17", "the rest spreads", away, len(over) - room + room * 3 // 4)
    )


def test_writers_without_a_host_are_told_and_spread(cluster, judge):
    """Mooncake#3762 (E17 b): pod addresses match no store: an alarm, and no heap."""
    probe, pods = cluster.kv(), ["10.0.0.1", "10.0.0.2", "10.0.0.3"]
    before = unmatched_puts(cluster)
    for pod in pods:
        write_from(probe, pod, 333, SMALL)
    raised = unmatched_puts(cluster) - before
    owned = cluster.owned_bytes()
    largest = max(owned.values()) / sum(owned.values())

    judge(judge_equal("E17", "all puts are counted as unmatched", raised, 999))
    judge(
        at_most(
            "E17",
            "no segment holds more than 2 x its fair share",
            largest,
            2 / len(owned),
            samples=999,
            unit="share",
            kind="counter",
        )
    )


def test_removing_a_store_takes_milliseconds_and_nobody_is_sent_there(cluster, judge):
    """O8: whatever it holds; lookups from then on do not name it.

    Three stores are removed and the middle time counts: a walk over their objects
    would take its time on each of them, a hiccup of this machine on one. One that
    holds nothing goes before: systems that cannot be asked say so at once.
    """
    probe, (empty, *stores) = cluster.kv(), cluster.stores[:4]
    cluster.remove_store(empty)
    held = {store: [f"{store}-{number}" for number in range(4000)] for store in stores}
    for store, names in held.items():
        put_all(probe, names, 64, host=cluster.host_of(store))

    taken_s = []
    for store, names in held.items():
        with LookupLog(cluster.kv(), names[:64]) as log:
            log.wait_more(20)
            taken_s.append(cluster.remove_store(store))
            returned_s = time.monotonic()
            log.wait_more(50)
        judge(judge_nobody_sent(log.rows, removed=store, returned_at_s=returned_s))
    judge(judge_removal_time(sorted(taken_s)[1], objects=4000))
    for store in (empty, *stores):
        cluster.stop_role(store)
        cluster.start_role(store)
