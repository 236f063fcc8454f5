from __future__ import annotations

import json
import threading
import time
from dataclasses import dataclass, field, replace
from types import SimpleNamespace

import pytest

from chaos.canary.cluster_arm import row_of
from chaos.canary.recorder import META, ROWS, About, Recorder
from chaos.canary.run import CanaryRun, Plan, warm_up
from chaos.canary.schedule import ARMS, blocks_of
from chaos.errors import HarnessError, UsageError
from chaos.load.replay import failed
from chaos.systems.base import Request


@dataclass
class FakeArm:
    """Answers at once, and remembers who was asked what, and when it was settled."""

    label: str
    log: list
    members: tuple = ("m0", "m1")
    breaks_after: int = 1_000
    calls_each: int = 3
    system: str = "fake"
    build: str = "fake"
    time_scale: float = 1.0
    cluster: object = None
    seen: list = field(default_factory=list)
    counted: int = 0
    lock: threading.Lock = field(default_factory=threading.Lock)
    counts: dict = field(default_factory=lambda: {"hangs": 0})

    def expect(self, requests):
        self.expected = len(requests)

    def send(self, member, request):
        with self.lock:
            self.seen.append((member, request.request_id))
            self.counted += self.calls_each
        answer = failed(request, "")
        return replace(answer, ok=True, ttft_modelled_s=0.01, l3_tokens=512)

    def abort(self, member, request_id):
        pass

    def row(self, numbered, sample, *, turn, at_s):
        host = sample.engine
        return row_of(numbered, sample, host=host, turn=turn, at_s=at_s)

    def calls(self):
        return self.counted

    def look_up(self, request):
        self.counted += 1
        return 0.002

    def settle(self):
        self.log.append(self.label)
        if len(self.seen) > self.breaks_after:
            message = "the master is gone"
            raise HarnessError(message)

    def counters(self):
        return self.counts

    def finish(self):
        self.counts = {"hangs": 0, "broken_laws": 0}


def trace(count=12):
    return [
        Request(
            request_id=f"r{i}",
            session=f"s{i % 4}",
            at_s=i * 0.004,
            input_length=1000,
            output_length=1,
            hash_ids=(i, i + 1),
        )
        for i in range(count)
    ]


def plan_of(count=12, **fields):
    blocks = blocks_of(trace(count), 4)
    return Plan(warm=warm_up(blocks), first=blocks, **fields)


@pytest.fixture
def recorders(tmp_path):
    made = {
        label: Recorder(
            tmp_path / label,
            About(arm=label, system="fake", build="fake", seed=1, time_scale=1.0),
        )
        for label in ARMS
    }
    yield made
    for recorder in made.values():
        recorder.broken("the test is over")


def arms(**canary):
    log: list[str] = []
    return {
        "baseline": FakeArm("baseline", log),
        "canary": FakeArm("canary", log, **canary),
    }


def meta(recorder):
    return json.loads((recorder.directory / META).read_text(encoding="utf-8"))


def rows(recorder):
    text = (recorder.directory / ROWS).read_text(encoding="utf-8")
    return [json.loads(line) for line in text.splitlines()]


def test_both_arms_replay_the_same_trace_and_are_complete(recorders):
    sides = arms()

    CanaryRun(sides, recorders, plan_of()).run()

    both = [rows(recorders[label]) for label in ARMS]
    assert [each["request"] for each in both[0]] == list(range(12))
    assert [each["request"] for each in both[1]] == list(range(12))
    assert [r["host"] for r in both[0]] == [r["host"] for r in both[1]]
    for label in ARMS:
        found = meta(recorders[label])
        assert found["complete"] is True
        assert found["counters"] == {"hangs": 0, "broken_laws": 0}


def test_the_warm_up_is_replayed_and_not_recorded(recorders):
    sides = arms()

    CanaryRun(sides, recorders, plan_of()).run()

    warmed = [name for _, name in sides["canary"].seen if name.startswith("warm-")]
    assert len(warmed) == 4
    assert len(rows(recorders["canary"])) == 12


def test_arms_take_turns_and_each_is_idle_before_the_other_begins(recorders):
    sides = arms()

    CanaryRun(sides, recorders, plan_of()).run()

    order = sides["canary"].log
    assert [label[0] for label in order] == list("bc" + "bccbbc")


def test_calls_of_a_turn_are_one_sample_and_lookups_are_not_among_them(recorders):
    sides = arms(calls_each=4)

    CanaryRun(sides, recorders, plan_of()).run()

    for label, each in (("baseline", 3.0), ("canary", 4.0)):
        found = [row.get("rpcs") for row in rows(recorders[label])]
        assert [value for value in found if value is not None] == [each] * 3
    looked = [row.get("lookup_ms") for row in rows(recorders["canary"])]
    assert [value for value in looked if value is not None] == [2.0] * 3


def test_an_arm_that_nobody_counts_has_no_calls(recorders):
    sides = arms()
    sides["canary"].calls = lambda: None

    CanaryRun(sides, recorders, plan_of()).run()

    assert all(row.get("rpcs") is None for row in rows(recorders["canary"]))


def test_what_was_counted_before_an_arm_broke_is_not_lost(recorders):
    sides = arms(breaks_after=0)
    sides["canary"].counts = {"hangs": 1}

    with pytest.raises(HarnessError):
        CanaryRun(sides, recorders, plan_of()).run()

    found = meta(recorders["canary"])
    assert (found["complete"], found["counters"]["hangs"]) == (False, 1)


def test_an_arm_that_dies_half_way_leaves_two_incomplete_directories(recorders):
    sides = arms(breaks_after=8)

    with pytest.raises(HarnessError) as broken:
        CanaryRun(sides, recorders, plan_of()).run()

    assert broken.value.__notes__ == ["on the canary"]
    for label in ARMS:
        found = meta(recorders[label])
        assert found["complete"] is False
        assert "the master is gone on the canary" in found["incomplete_because"]
        assert found["requests"] == len(rows(recorders[label])) > 0


def test_ctrl_c_leaves_incomplete_directories_and_goes_on_upwards(recorders):
    sides = arms()

    def interrupt(_line):
        if len(sides["canary"].seen) > 6:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        CanaryRun(sides, recorders, plan_of(), say=interrupt).run()

    for label in ARMS:
        assert meta(recorders[label])["complete"] is False
        assert "KeyboardInterrupt" in meta(recorders[label])["incomplete_because"]


def test_a_failed_request_is_a_row_with_its_cause(recorders):
    sides = arms()
    sides["canary"].send = lambda _m, request: failed(request, "UNAVAILABLE: gone")

    CanaryRun(sides, recorders, plan_of()).run()

    found = rows(recorders["canary"])
    assert [row["ok"] for row in found] == [False] * 12
    assert {row["cause"] for row in found} == {"UNAVAILABLE"}
    assert all(row["ttft_s"] is not None for row in found)


def test_a_request_that_hangs_is_a_row_and_takes_its_timeout(recorders):
    sides = arms()
    ended = threading.Event()

    def hang(_member, request):
        if request.request_id == "r2":
            ended.wait(5)
        return replace(failed(request, ""), ok=True)

    sides["canary"].send = hang
    CanaryRun(sides, recorders, plan_of(timeout_s=0.2)).run()
    ended.set()

    hung = [row for row in rows(recorders["canary"]) if not row["ok"]]
    assert [(row["request"], row["cause"]) for row in hung] == [(2, "hung")]
    assert hung[0]["e2e_s"] >= 0.2


def test_arms_of_different_size_are_refused(recorders):
    sides = arms(members=("only",))

    with pytest.raises(UsageError, match="same number of members"):
        CanaryRun(sides, recorders, plan_of())


def test_chaos_on_an_arm_of_somebody_else_is_refused(recorders):
    sides = arms()
    player = SimpleNamespace(injector=lambda _arm: None)

    with pytest.raises(UsageError, match="no chaos is played there"):
        CanaryRun(sides, recorders, plan_of(drills=True), player=player).run()

    assert meta(recorders["baseline"])["complete"] is False


def test_progress_says_what_is_done_and_how_long_it_takes(recorders):
    lines: list[str] = []

    CanaryRun(arms(), recorders, plan_of(), say=lines.append).run()

    assert len(lines) == 8
    assert "warm-up" in lines[0]
    assert "canary, block 1" in lines[4]
    assert all("to go" in line for line in lines)


def test_rows_start_when_they_were_to_start_on_one_clock(recorders):
    begin_s = time.monotonic() - 100.0

    CanaryRun(arms(), recorders, plan_of(), begin_s=begin_s).run()

    starts = [row["start_s"] for row in rows(recorders["baseline"])]
    assert starts == sorted(starts)
    assert 100.0 <= starts[0] < 110.0
