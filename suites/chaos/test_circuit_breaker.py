"""Circuit breaking: what is broken for everybody is asked no more, and asked again.

The breaker of an engine opens under persistent faults, sends nothing while it is open,
probes one at a time, closes soon after the end, and never opens for one bad endpoint.
While it is open the engine is as fast as one that has no pool: O5, against a local-only
arm of the same trace. TTFT is modelled, waits are real.
"""

from __future__ import annotations

import numpy as np
import pytest

from chaos.judge.breaker import (
    JITTER,
    closing_budget_s,
    judge_closes,
    judge_no_flapping,
    judge_opens,
    judge_quarantine,
    judge_same_recovery,
    judge_silent_while_open,
    judge_stays_closed,
    retrips,
    trip_budget_s,
)
from chaos.judge.latency import judge_cost_after_detection, judge_cost_per_request
from chaos.judge.limit import at_least, at_most, none_of
from chaos.judge.recovery import hit_rate, judge_recovery
from chaos.judge.validity import (
    judge_generator,
    scheduling_allowance_s,
    smallest_limit_s,
    validity_of,
)
from chaos.steps import (
    data_links,
    engine_counter,
    judge_equal,
    judge_laws,
    lookup_link,
    wait_for,
    wait_idle,
)
from chaos.steps.outage import (
    Arms,
    StateWatch,
    ask_each,
    ask_with_faults,
    breaker_log,
    breaker_of,
    flowed_through,
    flush,
    holds,
    keep_prompts,
    open_by_silence,
    prompts,
    quarantine_events,
    reaches,
    route,
    while_open,
)

LONG = 8192
SHORT = 512
# Every prompt lies on all stores, so one bad store is met by every read.
SPREAD = {"placement": "random"}
BAD = "store-2"


@pytest.fixture(scope="module")
def arms():
    """The arms without a fault, once for the whole suite."""
    return Arms()


def faults_of(cluster, engine):
    counted = cluster.engine_state(engine)["hicache"]["counters"]
    return sum(counted.get("faults", {}).values())


def wasted_probes(cluster, engine):
    return breaker_of(cluster, engine)["inconclusive_probes"]


def closings_by(reasons, probes):
    return sum(reason == f"{probes} good probes" for reason in reasons)


def judge_back(cluster, log, receipt, *, more_s=0.0):
    """Closed again within open_for + 3 probes of the end of the fault."""
    return judge_closes(
        log,
        healed_at_s=receipt.reverted_at_s,
        healing_from_s=receipt.reverting_at_s,
        budget_s=closing_budget_s(log, cluster.limits, healed_s=receipt.reverted_at_s)
        + more_s,
    )


def judge_one_outage(cluster, run, receipt, *, tokens):
    """O6 of every engine around one outage, and when the last one opened."""
    judged, opened = [], []
    budget_s, formula = trip_budget_s(cluster.limits, tokens)
    for engine in cluster.engines:
        log = breaker_log(cluster, engine, since_s=receipt.injected_at_s)
        first = min(s.intended_s for s in run.samples if s.engine == engine)
        opened += [change.at_s for change in log if change.target == "OPEN"][:1]
        judged += [
            judge_opens(log, fault_at_s=first, budget_s=budget_s, formula=formula),
            judge_back(cluster, log, receipt),
            judge_no_flapping(log, outages=1),
        ]
    return judged, max(opened, default=float("inf"))


def judge_cost(cluster, calm, run, detected_s, seed):
    """O5: at most T + one poll for anybody, nothing once the breaker is open."""
    fault, local = run.samples, calm.local_only.samples
    validity = validity_of([run, calm.local_only], smallest_limit_s(cluster.limits))
    return [
        judge_generator(validity),
        judge_cost_per_request(
            fault,
            local,
            cluster.limits,
            allowance_s=scheduling_allowance_s(run, cluster.limits),
        ),
        *judge_cost_after_detection(
            fault, local, detected_at_s=detected_s, rng=np.random.default_rng(seed)
        ),
    ]


@pytest.mark.parametrize(
    ("faults", "of"), [(1, 5), pytest.param(2, 5, marks=pytest.mark.slow)]
)
def test_spread_faults_below_half_of_the_operations_never_open_it(
    cluster_of, load, judge, history, faults, of
):
    """All stores at 20 % and 40 % (H11): nothing happens, nobody is quarantined."""
    cluster = cluster_of(**SPREAD)
    engine = cluster.engines[0]
    kept = prompts(cluster, "spread", 100, SHORT, per_s=20, sessions=8)
    keep_prompts(cluster, load, kept)

    samples, hurt = ask_with_faults(cluster, engine, kept, faults=faults, of=of)

    seen, reads = (
        faults_of(cluster, engine),
        engine_counter(cluster, engine, "storage_operations", "get"),
    )
    log = breaker_log(cluster, engine)
    why = f"{faults} of {of} reads fail"
    judge(judge_laws(cluster, samples))
    judge(judge_equal("evidence", "stores that failed", len(hurt), 8))
    judge(judge_equal("evidence", "faults", seen, len(kept) * faults // of))
    judge(judge_stays_closed(log, faults=seen, operations=reads, why=why))
    gone = quarantine_events(cluster, engine, "quarantined")
    judge(judge_equal("H11", "stores in quarantine", len(gone), 0))


def test_spread_faults_above_half_of_the_operations_open_it(
    cluster_of, load, judge, history
):
    """All stores at 60 % (H11): OPEN with the first full window, nobody quarantined."""
    cluster = cluster_of(**SPREAD)
    engine, limits = cluster.engines[0], cluster.limits
    kept = prompts(cluster, "spread", 40, SHORT, per_s=20, sessions=8)
    keep_prompts(cluster, load, kept)

    samples, hurt = ask_with_faults(cluster, engine, kept, faults=3, of=5)

    log = breaker_log(cluster, engine)
    first_s = samples[0].sent_s
    judge(judge_laws(cluster, samples))
    judge(at_least("evidence", "stores that failed", len(hurt), 7, samples=len(kept)))
    judge(
        judge_opens(
            log,
            fault_at_s=first_s,
            budget_s=limits.breaker_window_s,
            formula=f"one window, {limits.breaker_min_samples} operations in it",
        )
    )
    judge(judge_no_flapping(log, outages=1))
    gone = quarantine_events(cluster, engine, "quarantined")
    judge(judge_equal("H11", "stores in quarantine", len(gone), 0))


def test_one_bad_endpoint_of_eight_is_quarantined_and_the_breaker_stays_closed(
    cluster_of, inject, load, judge, history
):
    """The data path of one store fails, its heartbeat is fine (Mooncake#2704, A2)."""
    cluster = cluster_of(**SPREAD)
    engine, limits = cluster.engines[0], cluster.limits
    kept = prompts(cluster, "endpoint", 30, 2048, per_s=20, sessions=8)
    keep_prompts(cluster, load, kept)
    fresh = prompts(cluster, "fresh", 10, 2048, per_s=20, sessions=8)
    broken = [
        inject.failpoint(BAD, name, "return(-800)")
        for name in ("store.read", "store.write")
    ]

    with inject.together(*broken) as receipts:
        samples = ask_each(cluster, engine, kept)
        gone = quarantine_events(cluster, engine, "quarantined")
        samples += ask_each(cluster, engine, fresh)
        wait_idle(cluster, engine)
        # Of the prompts' own pages: a probe's canary may come and go on the bad store.
        written = [page for each in fresh for page in cluster.owners_of(each) if page]
    healed_s = receipts[0].reverted_at_s
    back_s = 3 * limits.quarantine_probe_interval_s
    holds(lambda: quarantine_events(cluster, engine, "readmitted"), "re-admission")

    judge(judge_laws(cluster, samples))
    judge(
        judge_quarantine(
            gone,
            bad={BAD},
            taken_s=gone.get(BAD, float("inf")) - samples[0].sent_s,
            budget_s=5.0 * cluster.spec.time_scale,
        )
    )
    there = sum(BAD in page for page in written)
    judge(
        none_of("A2", "no page is placed there", there, of=len(written), what="pages")
    )
    log, seen = breaker_log(cluster, engine), faults_of(cluster, engine)
    why = "one bad endpoint of eight"
    judge(judge_stays_closed(log, faults=seen, operations=len(samples), why=why))
    back = quarantine_events(cluster, engine, "readmitted")
    returned = back.get(BAD, float("inf")) - healed_s
    claim = "re-admitted within 3 probe intervals"
    judge(at_most("A2", claim, returned, back_s, samples=1, unit="s"))


@pytest.mark.parametrize("placement", ["random", "local_first"])
def test_a_store_just_under_the_deadline_for_ever_is_quarantined(
    cluster_of, inject, load, judge, history, placement
):
    """Slower than recomputing is a fault, although every byte arrives in time.

    At random every read meets the slow store and seven good ones: it alone is to blame.
    """
    cluster = cluster_of(placement=placement)
    engine, limits = cluster.engines[0], cluster.limits
    kept = prompts(cluster, "slow", 16, 4096, per_s=20, sessions=8)
    keep_prompts(cluster, load, kept)
    mine = [r for r in kept if route(cluster, kept)(r) == engine]
    store = cluster.owners_of(mine[0])[0][0]
    late_s = 0.8 * limits.deadline_s(4096)

    with inject.latency(data_links(cluster, store), int(1000 * late_s)):
        samples = ask_each(cluster, engine, mine)

    gone = quarantine_events(cluster, engine, "quarantined")
    after_s = gone.get(store, float("inf"))
    judge(judge_laws(cluster, samples))
    judge(
        judge_quarantine(
            gone,
            bad={store},
            taken_s=after_s - samples[0].sent_s,
            budget_s=3 * (limits.deadline_s(4096) + limits.poll_s),
        )
    )
    log = breaker_log(cluster, engine)
    slow = engine_counter(cluster, engine, "slow_operations", "get")
    why = "one slow endpoint"
    judge(judge_stays_closed(log, faults=slow, operations=len(samples), why=why))
    later = [s.answer.cache_wait_s for s in samples if s.sent_s > after_s]
    worst_s = max(later, default=float("nan"))
    claim = "then nobody waits for it: less than half of its delay"
    judge(at_most("O5", claim, worst_s, late_s / 2, samples=len(later), unit="s"))


def test_nothing_is_sent_while_it_is_open(cluster, inject, load, judge, history):
    """Storage operations by the engine's counter, and the links' own counters (O6)."""
    engine = cluster.engines[0]
    kept = prompts(cluster, "silent", 24, SHORT, per_s=20, sessions=8)
    keep_prompts(cluster, load, kept)
    tap = inject.tap([lookup_link(cluster, engine)])
    tap.start()

    silence = open_by_silence(cluster, inject, engine, kept[:8])
    flowed = flowed_through(cluster, tap, silence)
    stretch = while_open(cluster, engine, kept[8:], flowed)

    due, seen = len(stretch.samples), tap.sample().effect
    judge(
        at_least("evidence", "lookups were seen before it opened", seen, 1, samples=1)
    )
    for sent in (stretch.operations, stretch.flowed):
        judge(judge_silent_while_open(sent, open_s=stretch.open_s, due=due))
    inside = breaker_of(cluster, engine)["storage_calls_while_open"]
    judge(judge_equal("O6", "calls while open, by the engine", inside, 0))
    judge(judge_laws(cluster, stretch.samples))


def test_half_open_admits_one_probe_at_a_time_under_load(
    cluster, inject, load, judge, history
):
    """Three good probes close it, one after the other, while requests are due."""
    engine, each_ms = cluster.engines[0], 40
    kept = prompts(cluster, "half", 60, SHORT, per_s=20, sessions=8)
    keep_prompts(cluster, load, kept)

    silence = open_by_silence(cluster, inject, engine, kept[:8])
    slow = inject.failpoint(engine, "client.before_transfer", f"sleep({each_ms})")
    with (
        StateWatch(cluster, engine) as watch,
        load.running(kept[8:], route=lambda _: engine) as running,
        slow,
    ):
        receipt = silence.stop()
        reaches(cluster, engine, "closed", timeout_s=5.0)
        running.stop()

    log = breaker_log(cluster, engine)
    half, closed = (
        [c.at_s for c in log if c.target == state][-1:] or [float("nan")]
        for state in ("HALF_OPEN", "CLOSED")
    )
    probes = cluster.limits.breaker_probes_to_close
    claim = f"{probes} probes of {each_ms} ms follow each other"
    least_s = probes * each_ms / 1000
    reasons = [c.reason for c in log if c.target == "CLOSED"]
    judge(judge_equal("O6", "closings by that many", closings_by(reasons, probes), 1))
    judge(at_least("O6", claim, closed[0] - half[0], least_s, samples=probes, unit="s"))
    sent, watched_s = watch.sent_until_closed()
    due = engine_counter(cluster, engine, "prefetch_outcomes", "breaker_open")
    judge(judge_silent_while_open(sent, open_s=watched_s, due=due))
    judge(judge_back(cluster, log, receipt))


@pytest.mark.parametrize(
    ("role", "name", "spec"),
    [
        ("master", "master.put_start", "2*return(-200)"),
        ("engine-0", "client.before_transfer", "1*pause"),
        ("engine-0", "client.before_transfer", "1*panic"),
    ],
    ids=["neutral", "hung", "killed"],
)
def test_a_probe_that_tells_nothing_gives_its_slot_back(
    cluster, inject, load, judge, history, role, name, spec
):
    """A neutral, a hung, a killed probe: the next one follows (mcp-server#221, H5).

    Hung: it holds its slot for its lease and never comes back. Killed: counts as bad,
    the breaker opens once more.
    """
    engine, limits = cluster.engines[0], cluster.limits
    kept = prompts(cluster, "slot", 8, SHORT, per_s=20, sessions=8)
    keep_prompts(cluster, load, kept)

    before = wasted_probes(cluster, engine)
    silence = open_by_silence(cluster, inject, engine, kept)
    with inject.failpoint(role, name, spec):
        receipt = silence.stop()
        reaches(cluster, engine, "closed")

    log = breaker_log(cluster, engine)
    wasted = wasted_probes(cluster, engine) - before
    bad = retrips(log)
    lost_s = 2 * (limits.breaker_probe_deadline_s + limits.poll_s)
    reopened_s = bad * 2 * (1 + JITTER) * limits.breaker_open_for_s
    judge(judge_back(cluster, log, receipt, more_s=lost_s + reopened_s))
    judge(judge_no_flapping(log, outages=1))
    judge(at_least("H5", "probes that told nothing", wasted + bad, 1, samples=1))


def test_no_room_for_a_probe_is_no_verdict(cluster, inject, load, judge, history):
    """The pool is full at probe time (interlock#194, H8): neither open nor closed."""
    engine, limits = cluster.engines[0], cluster.limits
    kept = prompts(cluster, "full", 8, SHORT, per_s=20, sessions=8)
    keep_prompts(cluster, load, kept)

    before = wasted_probes(cluster, engine)
    silence = open_by_silence(cluster, inject, engine, kept)
    full = inject.failpoint("master", "master.put_start", "return(-200)")
    with full as receipt:
        silence.stop()
        wait_for(
            lambda: wasted_probes(cluster, engine) - before >= 3,
            "three probes without room",
        )
        state = breaker_of(cluster, engine)["state"]
    reaches(cluster, engine, "closed")

    log = breaker_log(cluster, engine)
    judge(judge_equal("H8", "half open while full", state == "half_open", True))
    probes = limits.breaker_probes_to_close + 1
    budget_s = probes * (limits.breaker_probe_deadline_s + limits.poll_s)
    judge(
        judge_closes(
            log,
            healed_at_s=receipt.reverted_at_s,
            healing_from_s=receipt.reverting_at_s,
            budget_s=budget_s,
        )
    )
    judge(judge_no_flapping(log, outages=1))


def test_a_total_outage_costs_a_deadline_at_first_and_then_nothing(
    cluster, inject, load, judge, history, arms, rng
):
    """All stores silent: local-only after the trip time, and back after the end."""
    trace = prompts(cluster, "outage", 48, LONG, per_s=16, sessions=12)
    calm = arms.baseline(cluster, load, trace)

    with inject.blackhole(data_links(cluster)) as outage:
        run = load(trace, route=route(cluster, trace))
    flush(cluster)
    back = load(trace, arm="recovery", route=route(cluster, trace))
    for engine in cluster.engines:
        reaches(cluster, engine, "closed")

    judged, detected_s = judge_one_outage(cluster, run, outage, tokens=LONG)
    judge(judged)
    judge(judge_laws(cluster, [*run.samples, *back.samples]))
    judge(judge_cost(cluster, calm, run, detected_s, rng.getrandbits(32)))
    longest_s = max(
        closing_budget_s(
            breaker_log(cluster, engine), cluster.limits, healed_s=outage.reverted_at_s
        )
        for engine in cluster.engines
    )
    judge(
        judge_recovery(
            "O6",
            back.samples,
            former=hit_rate(calm.healthy.samples),
            healed_at_s=outage.reverted_at_s,
            budget_s=longest_s + cluster.limits.deadline_s(LONG) + 10 / 16,
            window=10,
        )
    )


@pytest.mark.parametrize(
    "fault", ["kill", pytest.param("pause", marks=pytest.mark.slow)]
)
def test_a_master_outage_costs_a_deadline_at_first_and_then_nothing(
    cluster, inject, load, judge, history, arms, rng, fault
):
    """Nobody answers a lookup: the same law as for silent stores."""
    trace = prompts(cluster, "outage", 48, LONG, per_s=16, sessions=12)
    calm = arms.baseline(cluster, load, trace)

    with getattr(inject, fault)("master") as outage:
        run = load(trace, route=route(cluster, trace))
    wait_for(lambda: len(cluster.owned_bytes()) == len(cluster.stores), "all stores")
    for engine in cluster.engines:
        reaches(cluster, engine, "closed")

    judged, detected_s = judge_one_outage(cluster, run, outage, tokens=0)
    judge(judged)
    judge(judge_laws(cluster, run.samples))
    judge(judge_cost(cluster, calm, run, detected_s, rng.getrandbits(32)))


@pytest.mark.slow
def test_two_per_cent_of_faults_never_open_it(cluster_of, load, judge, history):
    """One read in fifty fails, for many windows (erpc#1118, H2)."""
    cluster = cluster_of(**SPREAD)
    engine = cluster.engines[0]
    kept = prompts(cluster, "rare", 300, SHORT, per_s=20, sessions=8)
    keep_prompts(cluster, load, kept)

    samples, _ = ask_with_faults(cluster, engine, kept, faults=1, of=50)

    log, seen = breaker_log(cluster, engine), faults_of(cluster, engine)
    judge(judge_laws(cluster, samples))
    why = "2 % of reads fail"
    judge(judge_stays_closed(log, faults=seen, operations=len(samples), why=why))


@pytest.mark.slow
def test_the_hit_ratio_does_not_decide_who_recovers(
    cluster, inject, load, judge, history
):
    """A timely miss is a success: 5, 20 and 80 % hits recover alike (erpc#1118, H2)."""
    engine, limits = cluster.engines[0], cluster.limits
    taken_s, samples = {}, []
    for percent in (5, 20, 80):
        cluster.reset()
        asked = prompts(cluster, f"hits-{percent}", 100, SHORT, per_s=20, sessions=8)
        known = [r for i, r in enumerate(asked) if 7 * i % 20 < percent // 5]
        keep_prompts(cluster, load, known)
        with load.running(asked, route=lambda _: engine) as running:
            with inject.blackhole(data_links(cluster)) as outage:
                opened = reaches(cluster, engine, "open", timeout_s=5.0)
            reaches(cluster, engine, "closed", timeout_s=5.0)
            running.stop()
        samples += [s for s in running.run.samples if s.judged]
        log = breaker_log(cluster, engine, since_s=outage.injected_at_s)
        judge(judge_equal("O6", f"opened at {percent} % hits", opened, True))
        judge(judge_back(cluster, log, outage))
        half = [c.at_s for c in log if c.target == "HALF_OPEN"]
        closed = [c.at_s for c in log if c.target == "CLOSED"]
        if half and closed:
            taken_s[f"{percent} %"] = closed[-1] - half[-1]

    probe_s = limits.breaker_probe_deadline_s + limits.poll_s
    judge(judge_same_recovery(taken_s, probe_interval_s=probe_s))
    judge(judge_laws(cluster, samples))


@pytest.mark.slow
def test_after_a_long_outage_it_closes_by_itself_and_says_so_all_the_time(
    cluster, inject, load, judge, history
):
    """50 s of silence (at factor 1) are no latch for hours (LMCache#4368, H1)."""
    engine = cluster.engines[0]
    long_s = 50 * cluster.spec.time_scale
    asked = prompts(cluster, "long", int(10 * 2 * long_s), SHORT, per_s=10, sessions=8)
    keep_prompts(cluster, load, asked[:32])

    with (
        StateWatch(cluster, engine) as watch,
        load.running(asked, route=lambda _: engine) as running,
    ):
        silence = inject.blackhole(data_links(cluster))
        begin_s = silence.start().injected_at_s
        wait_for(
            lambda: inject.clock() - begin_s >= long_s,
            "the outage to last",
            timeout_s=2 * long_s + 20,
        )
        receipt = silence.stop()
        reaches(cluster, engine, "closed")
        running.stop()

    log = breaker_log(cluster, engine)
    judge(judge_back(cluster, log, receipt))
    judge(judge_no_flapping(log, outages=1))
    judge(at_least("H1", "probes failed meanwhile", retrips(log), 2, samples=len(log)))
    gap_s, least_s = watch.longest_gap_s, 0.8 * cluster.limits.breaker_open_for_s
    claim = "state visible all the time: no OPEN can be missed"
    looks = len(watch.seen)
    judge(at_most("H1", claim, gap_s, least_s, samples=looks, unit="s"))
    judge(judge_laws(cluster, [s for s in running.run.samples if s.judged]))
