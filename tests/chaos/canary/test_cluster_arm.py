from __future__ import annotations

from dataclasses import dataclass, field, replace
from types import SimpleNamespace

import pytest

from chaos.canary.cluster_arm import ClusterArm, calls_of, cause_of, row_of
from chaos.canary.schedule import Numbered
from chaos.errors import HarnessError
from chaos.load.replay import failed
from chaos.load.sample import Ending, Sample
from chaos.systems.base import ClusterSpec, Limits, Request
from chaos.targets.place import Place

LIMITS = Limits(
    deadline_base_s=0.2,
    deadline_per_ki_token_s=0.01,
    deadline_max_s=3.0,
    poll_s=0.02,
    client_ttl_s=1.0,
    ping_interval_s=0.1,
    lease_ttl_s=0.5,
    breaker_window_s=1.0,
    breaker_open_for_s=0.5,
    breaker_probes_to_close=3,
    prefill_tokens_per_s=10_000.0,
    block_tokens=512,
    page_tokens=64,
)


@dataclass
class FakeCluster:
    """Answers what an arm asks of a cluster."""

    limits: Limits = LIMITS
    engines: tuple = ("engine-0", "engine-1")
    stores: tuple = ("store-0",)
    masters: tuple = ("master",)
    breakers: list = field(default_factory=lambda: ["closed"])
    busy: tuple = ()
    laws: list = field(default_factory=list)
    dead: bool = False
    hosts: object = None
    calls: dict = field(
        default_factory=lambda: {
            "batch_exist_key": {"requests": 5},
            "batch_put_end": {"requests": 2},
            "mount_segment": {"requests": 100},
        }
    )

    def expected_output(self, request):
        return f"out-{request.request_id}"

    def role_state(self, role):
        if self.dead:
            message = f"{role} does not answer"
            raise HarnessError(message)
        return {"calls": self.calls}

    def engine_state(self, engine):
        state = self.breakers.pop(0) if len(self.breakers) > 1 else self.breakers[0]
        under_way = int(engine in self.busy)
        quiet = {"requests": under_way, "prefetches": 0, "writeback": {"pending": 0}}
        return {"breaker": state, "hicache": {**quiet, "pages": {}}}

    def conservation(self):
        return self.laws


@pytest.fixture
def cluster():
    return FakeCluster()


@pytest.fixture
def arm(tmp_path, cluster):
    now = [0.0]
    made = ClusterArm(
        label="canary",
        system="refimpl",
        build="here",
        spec=ClusterSpec(),
        place=Place(),
        ledger=None,
        run_dir=tmp_path,
        command="",
        clock=lambda: now[0],
        wait=lambda seconds: now.__setitem__(0, now[0] + seconds),
    )
    made._cluster = cluster  # the only door: `start` would start processes
    made._count("hangs", 0)
    yield made
    made._cluster = None


def request(name="r0", tokens=1024):
    return Request(
        request_id=name,
        session="s",
        at_s=0.0,
        input_length=tokens,
        output_length=1,
        hash_ids=(1, 2),
    )


def sample(name="r0", *, ending=Ending.DONE, sent_s=10.001, **answer):
    asked = request(name)
    fields = {"ok": True, "output_hash": f"out-{name}", "ttft_modelled_s": 0.1}
    given = replace(failed(asked, ""), **{**fields, **answer})
    return Sample(
        request=asked,
        engine="engine-1",
        intended_s=10.0,
        sent_s=sent_s,
        done_s=10.2,
        answer=given if ending is Ending.DONE else None,
        ending=ending,
    )


def test_an_engine_that_never_comes_to_rest_hangs_and_ends_the_measurement(
    arm, cluster
):
    cluster.busy = ("engine-1",)
    arm._idle_s = 0.05

    with pytest.raises(HarnessError, match="engine-1 is not idle"):
        arm.settle()

    assert arm.counters()["hangs"] == 1


def test_wrong_outputs_are_counted_and_right_ones_are_looked_at(arm):
    arm.expect((request("a"), request("b")))

    arm.judge_bytes(sample("a"))
    assert arm.counters() == {"hangs": 0, "wrong_bytes": 0}
    arm.judge_bytes(sample("b", output_hash="else"))
    assert arm.counters() == {"hangs": 0, "wrong_bytes": 1}


def test_without_any_output_nothing_is_claimed_of_bytes(arm):
    arm.expect((request("a"),))

    arm.judge_bytes(sample("a", ok=False))
    arm.judge_bytes(sample("a", ending=Ending.HUNG))

    assert arm.counters() == {"hangs": 1}


def test_a_wait_far_beyond_the_deadline_is_a_hang(arm):
    arm.judge_bytes(sample(cache_wait_s=0.25))
    assert arm.counters()["hangs"] == 0
    arm.judge_bytes(sample(cache_wait_s=1.0))
    assert arm.counters()["hangs"] == 1


def test_calls_of_clients_are_summed_and_mounts_are_not(arm, cluster):
    assert arm.calls() == 7
    assert calls_of({"batch_x": 3, "get_all_segments": 9}) == 3
    cluster.dead = True
    assert arm.calls() is None


def test_the_last_look_counts_broken_laws_and_breakers_that_stay_open(arm, cluster):
    cluster.laws, cluster.breakers = ["a page is lost"], ["open"]

    arm.finish()

    assert arm.counters()["broken_laws"] == 1
    assert arm.counters()["open_breakers"] == 2


def test_a_breaker_that_closes_in_its_time_is_no_open_breaker(arm, cluster):
    cluster.breakers = ["closed", "closed", "half_open", "closed", "closed", "closed"]

    arm.finish()

    assert arm.counters()["open_breakers"] == 0
    assert arm.counters()["broken_laws"] == 0


def test_a_row_tells_what_the_engine_said():
    seen = sample(l1_tokens=64, l3_tokens=512, stores=("a", "b"), cache_wait_s=0.03)

    row = row_of(
        Numbered(number=7, request=seen.request), seen, host="m", turn=3, at_s=1.5
    )

    assert (row.request, row.arm_turn, row.start_s, row.host) == (7, 3, 1.5, "m")
    assert (row.klass, row.prompt_tokens, row.hit_tokens) == ("1k", 1024, 576)
    assert row.ttft_s == pytest.approx(0.101)
    assert row.e2e_s == pytest.approx(0.2)
    assert row.cache_wait_s == 0.03
    assert row.metrics["stores"] == 2.0


def test_rows_are_clustered_by_engine_or_by_machine(arm, cluster):
    assert arm.host_of("engine-1") == "engine-1"
    cluster.hosts = SimpleNamespace(of=lambda role: SimpleNamespace(name=f"on-{role}"))
    assert arm.host_of("engine-1") == "on-engine-1"


def test_a_failed_row_has_a_cause_and_no_reuse():
    seen = sample(ok=False, error="UNAVAILABLE: gone", stores=("a",))

    row = row_of(
        Numbered(number=0, request=seen.request), seen, host="m", turn=0, at_s=0.0
    )

    assert (row.ok, row.cause, row.hit_tokens) == (False, "UNAVAILABLE", 0)
    assert row.metrics["stores"] is None


@pytest.mark.parametrize("ending", [Ending.HUNG, Ending.SHED, Ending.CANCELLED])
def test_what_never_came_back_is_named_by_its_ending(ending):
    assert cause_of(sample(ending=ending)) == ending.value
