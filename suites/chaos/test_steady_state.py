"""Steady state: a healthy pool is fast, exact, never worse than none, and never leaks.

No fault here but the slow links and dead writers that a pool meets on a good day. Reads
are real bytes in real time and are not scaled: they are judged by the article's own
numbers, and the proportion to T is told beside them.
"""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from chaos.judge.conservation import judge_conservation
from chaos.judge.latency import (
    judge_cost_after_detection,
    judge_cost_per_request,
    judge_eviction_stall,
)
from chaos.judge.limit import at_least, at_most
from chaos.judge.recovery import hit_rate
from chaos.judge.validity import (
    gated,
    scheduling_allowance_s,
    smallest_limit_s,
    validity_of,
)
from chaos.load.generate import GeneratorSettings, generate
from chaos.load.routing import SessionAffine, evenly
from chaos.steps import (
    again,
    ask,
    ask_together,
    data_links,
    judge_equal,
    judge_laws,
    judge_reuse,
    keep,
    prompt,
    reused,
    wait_idle,
    whole_pages,
)
from chaos.steps.healthy import (
    judge_hits,
    judge_reads,
    keep_for_others,
    master_counter,
    replay_fresh,
    replay_in_rounds,
)
from chaos.steps.kv_laws import (
    NOT_THERE,
    KvCode,
    judge_codes,
    judge_no_wrong_bytes,
    judge_refused_before,
    lookups_beside_writes,
    race,
    read_back,
    seconds_until,
    seconds_until_removed,
    seconds_until_written,
    start_when_allowed,
    write_parts,
)
from chaos.steps.soak import HOUR_S, judge_life, live

TOKENS = 4096
KEY_BYTES = 16 << 10
NOT_YET_OR_OK = (*NOT_THERE, KvCode.OK)
TOO_LATE = (KvCode.LEASE_EXPIRED, KvCode.CHECKSUM_MISMATCH)
RANKS = 4

# Long system prompts and short turns: the sessions of agents, as in the article.
SESSIONS = GeneratorSettings(
    requests=128,
    sessions=16,
    system_prompts=2,
    system_blocks=10,
    turn_median=120.0,
    output_median=40.0,
    max_input_tokens=12_288,
)
# Small tiers and a small pool, short patience of the master with dead writers, four
# ranks a page: one cluster for the laws of single keys and pages.
DISCARD, RELEASE = 10.0, 20.0
SMALL = {
    "stores": 2,
    "engines": 2,
    "store_bytes": 16 << 20,
    "overrides": {
        "master": {
            "put_start_discard_timeout_s": DISCARD,
            "put_start_release_timeout_s": RELEASE,
        },
        "engine": {"ranks": RANKS, "l1_pages": 32, "l2_pages": 256},
    },
}
# An hour in 72 s: at this factor every lease (360), heartbeat (3,600 a store), discard
# time (120), release time (6) and breaker window (360) of an hour really elapses. What
# must outlast the scheduler of this machine (T, expiry, puts) is five times as long,
# as it is at the usual factor 0.1.
HOUR_SCALE = 0.02
HOUR = {
    "stores": 4,
    "engines": 2,
    "store_bytes": 8 << 20,
    "time_scale": HOUR_SCALE,
    "overrides": {
        "master": {"client_ttl_s": 50.0},
        "engine": {
            "prefetch_base_s": 10.0,
            "prefetch_per_ki_token_s": 0.5,
            "prefetch_max_s": 150.0,
            "put_timeout_s": 10.0,
        },
    },
}


def test_a_healthy_pool_reads_fast_and_is_never_worse_than_none(
    cluster, load, judge, history, steady_state, rng
):
    """O1 to O5 and the article's read latency, one trace in two arms."""
    kept = keep_for_others(cluster, rng, count=120, tokens=TOKENS, rate_per_s=25.0)

    healthy = replay_fresh(cluster, load, kept, arm="healthy")
    ledger = steady_state()
    for engine in cluster.engines:
        cluster.local_only(engine, True)
    alone = replay_fresh(cluster, load, kept, arm="local_only")

    samples, limits, scale = healthy.samples, cluster.limits, cluster.spec.time_scale
    read = sum(reused(sample) for sample in samples)
    computed = sum(reused(sample) for sample in alone.samples)
    validity = validity_of([healthy, alone], smallest_limit_s(limits))
    dice = np.random.default_rng(rng.getrandbits(64))
    judge(judge_laws(cluster, samples))
    judge(ledger)
    judge(judge_equal("O3", "all is read", read, len(samples) * TOKENS))
    judge(judge_equal("evidence", "local-only reads nothing", computed, 0))
    judge(judge_reads(samples, limits, tokens=TOKENS, time_scale=scale))
    for judged in (
        judge_cost_per_request(
            samples,
            alone.samples,
            limits,
            allowance_s=scheduling_allowance_s(healthy, limits),
        ),
        *judge_cost_after_detection(
            samples, alone.samples, detected_at_s=0.0, rng=dice
        ),
    ):
        judge(gated(judged, validity=validity))


def test_a_session_heavy_trace_hits_as_an_infinite_cache_would(
    cluster, judge, history, rng
):
    """The article reports more than 90 %; here the trace says exactly how much."""
    requests = generate(SESSIONS, rng)
    sessions = {request.session for request in requests}
    route = SessionAffine(
        engines=cluster.engines, explicit=evenly(sessions, cluster.engines)
    )

    samples = replay_in_rounds(cluster, requests, route)

    judge(judge_laws(cluster, samples))
    judge(judge_hits(samples, requests))
    share = hit_rate(samples)
    judge(
        at_least(
            "hit rate",
            "more than 90 % on a session-heavy trace",
            share,
            0.9,
            samples=len(samples),
            unit="share",
            kind="counter",
        )
    )


def test_four_ranks_write_one_object_a_page(cluster_of, judge, history):
    """Ranks write their parts at different offsets of the same object."""
    cluster = cluster_of(**SMALL)
    first, second = cluster.engines
    asked = prompt(cluster, "ranks", 2 * TOKENS)

    keep(cluster, first, asked)
    wait_idle(cluster, first)
    pages = whole_pages(cluster, asked)
    objects = master_counter(cluster, "master_key_count")
    allocated = sum(cluster.owned_bytes().values())
    sample = ask(cluster, second, again(asked, "elsewhere"))

    judge(judge_equal("ranks", "one object a page", objects, pages))
    whole = pages * cluster.spec.page_bytes
    judge(judge_equal("ranks", "bytes in the pool", allocated, whole, unit="bytes"))
    judge(judge_laws(cluster, [sample]))
    judge(judge_reuse(sample, 2 * TOKENS, "another engine reads it back whole"))
    judge(judge_conservation(cluster.conservation()))


def test_parts_may_end_in_any_order(cluster_of, judge, history, rng):
    """Four clients, one part each of the same 16 keys, started in six orders."""
    cluster = cluster_of(**SMALL)
    ranks, reader = [cluster.kv() for _ in range(RANKS)], cluster.kv()
    orders = [rng.sample(range(RANKS), RANKS) for _ in range(6)]

    for number, order in enumerate(orders):
        names = [f"parts-{number}-{i}" for i in range(16)]
        ended = write_parts(ranks, names, order, size_bytes=KEY_BYTES)
        codes, wrong = reader.read(names, size_bytes=KEY_BYTES)
        judge(judge_codes("ranks", f"order {order} is written", ended, KvCode.OK))
        judge(judge_codes("ranks", f"order {order} is read", codes, KvCode.OK))
        judge(judge_no_wrong_bytes(wrong, len(names)))
    allocated = sum(cluster.owned_bytes().values())
    total = len(orders) * 16 * KEY_BYTES
    judge(judge_equal("ranks", "bytes in the pool", allocated, total, unit="bytes"))


def test_a_rank_that_dies_leaves_the_page_unreadable_never_torn(
    cluster_of, judge, history
):
    """Three of four parts are there: nobody reads, until a whole new write."""
    cluster = cluster_of(**SMALL)
    ranks, reader = [cluster.kv() for _ in range(RANKS)], cluster.kv()
    names = [f"torn-{i}" for i in range(16)]
    discard_s = DISCARD * cluster.spec.time_scale

    ended = write_parts(ranks, names, [3, 0, 1], size_bytes=KEY_BYTES)
    codes, wrong = reader.read(names, size_bytes=KEY_BYTES)
    took = seconds_until_written(ranks[0], names, KEY_BYTES, 3 * discard_s)
    whole, torn = reader.read(names, size_bytes=KEY_BYTES)

    judge(judge_codes("ranks", "three ranks ended", ended, KvCode.OK))
    judge(judge_codes("ranks", "the page is unreadable", codes, KvCode.NOT_READY))
    judge(judge_no_wrong_bytes(wrong + torn, 2 * len(names)))
    judge(at_most("ranks", "taken over", took, 2 * discard_s, samples=1, unit="s"))
    judge(judge_codes("ranks", "and then read whole", whole, KvCode.OK))


def test_a_stale_end_has_no_effect(cluster_of, judge, history):
    """A delayed PutEnd meets the next write of its key (Mooncake#3030, D2)."""
    cluster = cluster_of(**SMALL)
    writer, reader = cluster.kv(), cluster.kv()
    discard_s = DISCARD * cluster.spec.time_scale

    first, stale = writer.start_write("stale", size_bytes=KEY_BYTES)
    second, token = start_when_allowed(
        writer, "stale", size_bytes=KEY_BYTES, timeout_s=3 * discard_s
    )
    ended = writer.end_write("stale", stale)
    codes, wrong = reader.read(["stale"], size_bytes=KEY_BYTES)
    finished = writer.end_write("stale", token)
    after = reader.exists(["stale"])

    judge(judge_codes("evidence", "both writes began", [first, second], KvCode.OK))
    judge(judge_equal("D2", "the late end is refused", float(ended < 0), 1))
    judge(judge_codes("D2", "the key stays unreadable", codes, KvCode.NOT_READY))
    judge(judge_no_wrong_bytes(wrong, len(codes)))
    judge(judge_codes("D2", "the new write completes", [finished, *after], KvCode.OK))


def test_a_writer_that_dies_gives_way_in_time(cluster_of, judge, history):
    """Dead between PutStart and PutEnd: 100 keys (Mooncake#974, #849, D1)."""
    cluster = cluster_of(**SMALL)
    dead, heir = cluster.kv(), cluster.kv()
    names = [f"dead-{i}" for i in range(100)]
    discard_s, release_s = (x * cluster.spec.time_scale for x in (DISCARD, RELEASE))

    begin = time.monotonic()
    started = [dead.start_write(name, size_bytes=KEY_BYTES)[0] for name in names]
    all_started = time.monotonic()
    seen = heir.exists(names)
    refused = heir.write(names, size_bytes=KEY_BYTES)
    asked_after_s = time.monotonic() - begin
    took = seconds_until_written(heir, names, KEY_BYTES, 3 * discard_s)
    codes, wrong = heir.read(names, size_bytes=KEY_BYTES)
    held = sum(cluster.owned_bytes().values())
    own = len(names) * KEY_BYTES
    freed = seconds_until(
        lambda: sum(cluster.owned_bytes().values()) == own, 3 * release_s
    )
    freed_after_s = time.monotonic() - all_started

    judge(judge_codes("evidence", "all were announced", started, KvCode.OK))
    judge(judge_codes("D1", "unreadable at once", seen, NOT_THERE))
    for code in set(refused):
        judge(
            judge_refused_before(
                "D1", code, asked_after_s=asked_after_s, limit_s=discard_s
            )
        )
    judge(at_most("D1", "taken over", took, 2 * discard_s, samples=1, unit="s"))
    judge(judge_codes("D1", "the heir's bytes", codes, KvCode.OK))
    judge(judge_no_wrong_bytes(wrong, len(names)))
    judge(judge_equal("D1", "old places are held", held, 2 * own, unit="bytes"))
    judge(at_least("D1", "not before", freed_after_s, release_s, samples=1, unit="s"))
    judge(at_most("D1", "free again", freed, 2 * release_s, samples=1, unit="s"))
    judge(judge_conservation(cluster.conservation()))


@pytest.mark.parametrize("reader", ["remote", "same-host"])
@pytest.mark.parametrize(("keys", "size"), [(1, 16 * KEY_BYTES), (16, KEY_BYTES)])
def test_a_read_longer_than_its_lease_is_no_read(
    cluster_of, inject, judge, history, reader, keys, size
):
    """Bytes that come after the lease may be others' (Mooncake#850, #4239; D3, D4)."""
    cluster = cluster_of(**SMALL)
    store = cluster.stores[0]
    host = cluster.host_of(store)
    probe = cluster.kv(host if reader == "same-host" else "")
    names = [f"late-{i}" for i in range(keys)]
    written = probe.write(names, size_bytes=size, host=host)
    in_time, wrong = probe.read(names, size_bytes=size)
    links, late_s = data_links(cluster, store), 1.5 * cluster.limits.lease_ttl_s
    speed_kb = keys * size / 1024 / late_s / len(links)

    with inject.bandwidth(links, max(1, int(speed_kb))):
        late, torn = probe.read(names, size_bytes=size, timeout_s=10 * late_s)

    judge(judge_codes("D4", "in time", [*written, *in_time], KvCode.OK))
    judge(judge_equal("O1", "values given too late", late.count(KvCode.OK), 0))
    judge(judge_no_wrong_bytes(wrong + torn, 2 * keys))
    judge(judge_codes("D3", "too late", late, KvCode.LEASE_EXPIRED))


@pytest.mark.slow
def test_a_slow_read_never_gives_what_took_its_place(
    cluster_of, inject, judge, history
):
    """The lease ends under way, the place is written anew (Mooncake#850, D3)."""
    cluster = cluster_of(**SMALL)
    store, lease_s = cluster.stores[0], cluster.limits.lease_ttl_s
    host, links = cluster.host_of(store), data_links(cluster, store)
    reader, writer = cluster.kv(), cluster.kv(host)
    names = [f"old-{i}" for i in range(16)]
    written = writer.write(names, size_bytes=KEY_BYTES)
    in_time, _ = reader.read(names, size_bytes=KEY_BYTES)
    speed_kb = len(names) * KEY_BYTES / 1024 / (4 * lease_s) / len(links)

    with inject.bandwidth(links, int(speed_kb)), ThreadPoolExecutor(1) as pool:
        reading = pool.submit(
            reader.read, names, size_bytes=KEY_BYTES, timeout_s=20 * lease_s
        )
        held_s = seconds_until_removed(writer, names, 3 * lease_s)
        running = not reading.done()
        others = writer.write([f"new-{i}" for i in range(16)], size_bytes=KEY_BYTES)
        codes, wrong = reading.result()

    judge(judge_codes("evidence", "written", [*written, *others], KvCode.OK))
    judge(judge_codes("evidence", "read before", in_time, KvCode.OK))
    judge(judge_equal("evidence", "removed while it is read", running, 1))
    judge(at_least("D3", "not under the lease", held_s, lease_s / 2, samples=1))
    judge(judge_codes("D3", "no value", codes, TOO_LATE))
    judge(judge_no_wrong_bytes(wrong, len(codes)))


def test_the_pages_of_a_late_read_serve_nobody_else(cluster_of, inject, judge, history):
    """A read that missed its deadline never writes into pages of others (F3, O1).

    A prompt comes too slowly for its T; others take all of L2 while its bytes are still
    on their way. What L2 gives of the others afterwards must be their own.
    """
    cluster = cluster_of(**SMALL)
    engine, other = cluster.engines
    asked = prompt(cluster, "too-slow", 2 * TOKENS)
    keep(cluster, other, asked)
    fresh = [prompt(cluster, f"fresh-{i}", TOKENS) for i in range(4)]
    links = data_links(cluster, cluster.owners_of(asked)[0][0])
    total_kb = whole_pages(cluster, asked) * cluster.spec.page_bytes / 1024
    slow_s = 4 * cluster.limits.deadline_s(asked.input_length)

    with inject.bandwidth(links, int(total_kb / slow_s / len(links))):
        late = ask(cluster, engine, again(asked, "late"))
        first = ask_together(cluster, [(engine, each) for each in fresh])
    rest = [
        ask(cluster, engine, again(each, f"{turn}"))
        for turn in range(20)
        for each in fresh
    ]

    judge(
        judge_equal(
            "evidence",
            "the read was late",
            float(late.answer.prefetch_outcome == "timeout"),
            1,
        )
    )
    judge(judge_laws(cluster, [late, *first, *rest]))
    found = sum(sample.answer.l2_tokens for sample in rest)
    judge(at_least("evidence", "L2 was read", found, TOKENS, samples=len(rest)))
    judge(judge_conservation(cluster.conservation()))


def test_one_of_many_writers_of_a_key_wins(cluster_of, judge, history):
    """64 writers of a key, each with its own value, ten times (Mooncake#1374, D8)."""
    cluster = cluster_of(**SMALL)
    writer, reader = cluster.kv(), cluster.kv()

    names = [f"race-{i}" for i in range(10)]
    races = [
        race(writer, reader, name, writers=64, size_bytes=KEY_BYTES) for name in names
    ]
    reads = [read_back(reader, each, size_bytes=KEY_BYTES) for each in races]
    allocated = sum(cluster.owned_bytes().values())

    one = sum(each.codes.count(KvCode.OK) == 1 for each in races)
    losers = [code for each in races for code in each.codes if code != KvCode.OK]
    meanwhile = [code for each in races for code in each.read_codes]
    torn = sum(each.torn for each in races) + sum(wrong for _, wrong in reads)
    judge(judge_equal("D8", "races with one winner", one, len(races)))
    judge(judge_codes("D8", "everybody else", losers, KvCode.EXISTS))
    judge(judge_codes("D8", "readers meanwhile", meanwhile, NOT_YET_OR_OK))
    codes = [code for code, _ in reads]
    judge(judge_codes("D8", "the winner is read", codes, KvCode.OK))
    judge(judge_no_wrong_bytes(torn, len(meanwhile) + len(reads)))
    judge(judge_equal("D8", "bytes in the pool", allocated, len(races) * KEY_BYTES))


@pytest.mark.slow
def test_eviction_does_not_stall_lookups(cluster_of, judge, history):
    """The same writes and lookups, below the watermark and above it (O9)."""
    cluster = cluster_of(**SMALL)
    probe, size = cluster.kv(), KEY_BYTES // 2
    hot = [f"hot-{i}" for i in range(64)]
    room = cluster.spec.stores * cluster.spec.store_bytes // size
    names = [f"cold-{i}" for i in range(2 * room)]
    batches = [names[at : at + 64] for at in range(0, len(names), 64)]

    took = lookups_beside_writes(
        probe,
        lambda: master_counter(cluster, "master_evicted_key_count"),
        hot=hot,
        batches=batches,
        size_bytes=size,
        rounds=3,
    )
    kept = probe.exists(hot)

    judge(judge_eviction_stall(took.evicting_s, took.idle_s, evicted=took.evicted))
    judge(judge_codes("O9", "what is read all the time stays", kept, KvCode.OK))
    judge(judge_conservation(cluster.conservation()))


@pytest.mark.slow
@pytest.mark.timeout(240)
def test_nothing_is_left_after_an_hour(cluster_of, load, judge, history, rng):
    """An hour of events, not of time: every timer elapses as often (O11)."""
    cluster = cluster_of(**HOUR)

    life = live(cluster, load, rng, HOUR_S * HOUR_SCALE)

    judge(judge_laws(cluster, life.samples, wait=False))
    judge(judge_life(cluster, life))


@pytest.fixture
def asked_s(soak_s):
    """How long to soak; without `--duration` there is nothing to judge."""
    if not soak_s:
        pytest.skip("a soak lasts --duration seconds, and none was asked for")
    return soak_s


@pytest.mark.timeout(0)
def test_a_soak_leaves_nothing(asked_s, cluster_of, load, judge, history, rng):
    """The same for as long as `--duration` says."""
    cluster = cluster_of(**HOUR)

    life = live(cluster, load, rng, asked_s)

    judge(judge_laws(cluster, life.samples, wait=False))
    judge(judge_life(cluster, life))
