"""Steps of the breaker's pages: what a watch counts, what an exact pattern is."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from chaos.errors import HarnessError
from chaos.steps.outage import (
    Seen,
    StateWatch,
    ask_with_faults,
    breaker_log,
    keep_prompts,
    operations,
    prompts,
    quarantine_events,
    while_open,
)

LIMITS = SimpleNamespace(block_tokens=512, page_tokens=64, prefill_tokens_per_s=1e5)


class FakeCluster:
    """Engine state from a script: one document a look, the last one for ever."""

    def __init__(self, *states, stores=("store-0", "store-1")):
        self.limits = LIMITS
        self.stores = stores
        self.engines = ("engine-0",)
        self.states = list(states)
        self.failing = {}
        self.asked = []
        self.flushed = 0

    def engine_state(self, engine):
        state = self.states.pop(0) if len(self.states) > 1 else self.states[0]
        return {"hicache": state}

    def flush_local(self, engine):
        self.flushed += 1

    def prefill(self, engine, request, *, timeout_s):
        self.asked.append((request.request_id, dict(self.failing)))

    def owners_of(self, request):
        return [self.stores]

    def set_failpoint(self, role, name, spec):
        self.failing.pop(role, None)
        if spec != "off":
            self.failing[role] = spec

    def failpoint_hits(self, role, name):
        return 1


def state(name="open", sent=0, generation=1, probes=0):
    return {
        "breaker": {"state": name, "generation": generation, "transitions": []},
        "counters": {"storage_operations": {"get": sent, "probe": probes}},
        "quarantine": {"events": []},
        "requests": 0,
        "prefetches": 0,
        "writeback": {"pending": 0},
        "pages": {},
    }


def watched(*looks):
    watch = StateWatch(FakeCluster(state()), "engine-0")
    watch.seen = [Seen(at_s=at, state=name, sent=sent) for at, name, sent in looks]
    return watch


def test_a_watch_counts_what_was_sent_while_not_closed():
    watch = watched(
        (0.0, "closed", 4),
        (0.1, "open", 5),
        (0.2, "half_open", 5),
        (0.3, "half_open", 7),
        (0.4, "half_open", 9),
        (0.5, "closed", 12),
    )

    sent, watched_s = watch.sent_until_closed()

    assert sent == 2, "the last look may have counted after the breaker closed"
    assert watched_s == pytest.approx(0.2)


@pytest.mark.parametrize("looks", [[], [(0.0, "closed", 1)], [(0.0, "open", 1)]])
def test_a_watch_without_an_open_stretch_saw_nothing(looks):
    assert watched(*looks).sent_until_closed() == (0, 0.0)


def test_the_longest_gap_between_looks_is_known_and_never_zero_without_any():
    assert watched((0.0, "open", 0), (0.1, "open", 0), (0.4, "open", 0)).longest_gap_s
    assert watched().longest_gap_s == float("inf")


def test_a_watch_looks_until_its_block_ends():
    with StateWatch(FakeCluster(state(sent=3, probes=2)), "engine-0") as watch:
        while not watch.seen:
            pass

    assert watch.seen[0].state == "open"
    assert watch.seen[0].sent == 3, "probes are not operations of requests"


def test_operations_count_probes_where_asked():
    cluster = FakeCluster(state(sent=3, probes=2))

    assert operations(cluster, "engine-0") == 5
    assert operations(cluster, "engine-0", probes=False) == 3


def test_a_stretch_in_which_the_breaker_moved_says_nothing():
    cluster = FakeCluster(state(generation=1))
    looks = iter(range(1000))
    cluster.engine_state = lambda _: {"hicache": state(generation=next(looks))}
    request = prompts(cluster, "p", 1, 512, per_s=1, sessions=1)

    stretch = while_open(cluster, "engine-0", request, lambda: 0, tries=2)

    assert stretch.samples == ()
    assert cluster.flushed == 2


def test_a_stretch_counts_operations_and_flow_of_one_open():
    cluster = FakeCluster(state(sent=3))
    counted = iter([9, 10, 10, 10, 10, 17])
    request = prompts(cluster, "p", 2, 512, per_s=1, sessions=1)

    stretch = while_open(cluster, "engine-0", request, lambda: next(counted))

    assert (stretch.operations, stretch.flowed) == (0, 7)
    assert len(stretch.samples) == 2


def test_faults_come_in_an_exact_pattern_and_go_from_store_to_store():
    cluster = FakeCluster(state())
    requests = prompts(cluster, "p", 10, 512, per_s=1, sessions=2)

    samples, hurt = ask_with_faults(cluster, "engine-0", requests, faults=2, of=5)

    hit = [list(failing) for _, failing in cluster.asked]
    assert hit == [["store-0"], ["store-1"], [], [], []] * 2
    assert hurt == {"store-0", "store-1"}
    assert len(samples) == 10
    assert not cluster.failing


def test_prompts_are_due_in_time_and_share_nothing():
    made = prompts(FakeCluster(state()), "p", 4, 1024, per_s=10, sessions=2)

    assert [request.at_s for request in made] == pytest.approx([0.0, 0.1, 0.2, 0.3])
    assert len({block for request in made for block in request.hash_ids}) == 8
    assert [request.session for request in made] == ["p-s0", "p-s1"] * 2


def test_the_log_and_the_events_of_an_engine_are_read():
    document = state()
    row = {"at": 2.0, "from": "closed", "to": "open", "reason": "5 reads"}
    document["breaker"]["transitions"] = [row]
    document["quarantine"]["events"] = [
        {"at": at, "endpoint": "store-1", "kind": "quarantined"} for at in (1.0, 3.0)
    ]
    cluster = FakeCluster(document)

    assert [change.target for change in breaker_log(cluster, "engine-0")] == ["OPEN"]
    assert quarantine_events(cluster, "engine-0", "quarantined") == {"store-1": 1.0}
    assert quarantine_events(cluster, "engine-0", "readmitted") == {}


class Preparing(FakeCluster):
    """A cluster on a machine that stalls: the first write-backs do not arrive."""

    def __init__(self, *, late: int, faults: int):
        trouble = state("closed")
        if faults:
            trouble["counters"]["faults"] = {"RPC_TIMEOUT": faults}
        super().__init__(trouble)
        self.late = late
        self.events = []

    def owners_of(self, request):
        self.events.append("looked")
        self.late -= 1
        return [()] if self.late >= 0 else [self.stores]

    def stop_role(self, role):
        self.events.append(f"stop {role}")

    def start_role(self, role):
        self.events.append(f"start {role}")


def computing(requests, *, arm, route):
    answer = SimpleNamespace(ok=True)
    samples = [SimpleNamespace(request=r, answer=answer) for r in requests]
    return SimpleNamespace(samples=samples)


@pytest.mark.parametrize(
    ("late", "faults", "events"),
    [
        (0, 0, ["looked"]),
        (2, 0, ["looked"] * 3),
        (1, 3, ["looked"] * 2 + ["stop engine-0", "start engine-0"]),
    ],
)
def test_what_is_kept_is_there_and_engines_have_nothing_behind_them(
    late, faults, events
):
    cluster = Preparing(late=late, faults=faults)

    keep_prompts(cluster, computing, prompts(cluster, "p", 1, 512, per_s=1, sessions=1))

    assert cluster.events == events


def test_what_never_arrives_is_no_verdict(monkeypatch):
    monkeypatch.setattr("chaos.steps.outage._KEEP_WAIT_S", 0.001)
    cluster = Preparing(late=10**9, faults=0)
    one = prompts(cluster, "p", 1, 512, per_s=1, sessions=1)

    with pytest.raises(HarnessError, match="1 prompts are not in the pool"):
        keep_prompts(cluster, computing, one)
