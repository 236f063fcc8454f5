from __future__ import annotations

import sys
import threading
import time

import pytest

from chaos.load.replay import Ending, OpenLoop


def plan(fabricate, count, gap_s):
    return [fabricate.request(f"r{i}", at_s=i * gap_s) for i in range(count)]


def instant(fabricate):
    return lambda _engine, request: fabricate.answer(request.request_id)


def test_every_request_has_one_sample_in_plan_order(fabricate):
    requests = plan(fabricate, 40, 0.002)

    run = OpenLoop(instant(fabricate), requests).run()

    assert [s.request for s in run.samples] == requests
    assert {s.ending for s in run.samples} == {Ending.DONE}
    assert run.achieved_share == 1.0
    assert len(run.lag_s) == 40


def test_a_stall_does_not_move_the_schedule_and_shows_in_the_latency(fabricate):
    """The first request comes back only when all later ones have been sent."""
    others, sent = threading.Event(), []

    def send(_engine, request):
        if request.request_id == "r0":
            others.wait(30)
        else:
            sent.append(request)
            if len(sent) == 19:
                others.set()
        return fabricate.answer(request.request_id)

    run = OpenLoop(send, plan(fabricate, 20, 0.01)).run()

    first, *rest = run.samples
    assert first.latency_s >= 0.19
    assert all(s.sent_s < first.done_s for s in rest)
    planned = [s.intended_s - run.started_s for s in run.samples]
    assert planned == pytest.approx([i * 0.01 for i in range(20)])


def test_latency_counts_from_the_intended_start(fabricate):
    release = threading.Event()

    def send(_engine, request):
        release.wait(0.1)
        return fabricate.answer(request.request_id)

    run = OpenLoop(send, plan(fabricate, 3, 0), max_in_flight=3).run()

    for sample in run.samples:
        assert sample.latency_s == pytest.approx(
            (sample.done_s - sample.sent_s) + sample.lag_s
        )
        assert sample.ttft_s == pytest.approx(0.1 + sample.lag_s)


def test_the_cap_sheds_and_counts_and_never_queues(fabricate):
    """Nobody comes back before six requests were shed."""
    release, seen, shed = threading.Event(), [], []

    def send(_engine, request):
        seen.append(request.request_id)
        release.wait(30)
        return fabricate.answer(request.request_id)

    def watch(sample):
        if sample.ending is Ending.SHED:
            shed.append(sample)
            if len(shed) == 6:
                release.set()

    run = OpenLoop(
        send, plan(fabricate, 10, 0.001), max_in_flight=4, on_sample=watch
    ).run()

    assert sorted(seen) == ["r0", "r1", "r2", "r3"]
    assert run.count(Ending.SHED) == 6
    assert (run.offered, run.sent) == (10, 4)
    assert run.achieved_share == 0.4


def test_a_hung_request_is_recorded_as_its_timeout_and_is_aborted(fabricate):
    release, aborted = threading.Event(), []

    def send(_engine, request):
        release.wait(30)
        return fabricate.answer(request.request_id)

    def abort(engine, name):
        aborted.append((engine, name))
        if len(aborted) == 2:
            release.set()

    run = OpenLoop(
        send,
        plan(fabricate, 2, 0.0),
        timeout_s=0.15,
        abort=abort,
        route=lambda _request: "engine-1",
    ).run()

    assert [s.ending for s in run.samples] == [Ending.HUNG, Ending.HUNG]
    assert all(s.latency_s >= 0.15 for s in run.samples)
    assert all(s.answer is None for s in run.samples)
    assert sorted(aborted) == [("engine-1", "r0"), ("engine-1", "r1")]


def test_an_answer_after_the_timeout_is_no_answer(fabricate):
    def send(_engine, request):
        time.sleep(0.06)
        return fabricate.answer(request.request_id)

    run = OpenLoop(send, plan(fabricate, 1, 0.0), timeout_s=0.05).run()

    assert run.samples[0].ending is Ending.HUNG
    assert run.samples[0].answer is None


def test_an_exception_is_a_failed_answer_with_its_cause(fabricate):
    def send(_engine, _request):
        raise ConnectionResetError("peer is gone")

    run = OpenLoop(send, plan(fabricate, 1, 0.0)).run()

    answer = run.samples[0].answer
    assert answer is not None
    assert not answer.ok
    assert answer.error == "ConnectionResetError: peer is gone"


def test_stop_cancels_what_is_open_and_sends_no_more(fabricate):
    release = threading.Event()
    started = threading.Event()

    def send(_engine, request):
        started.set()
        release.wait(5)
        return fabricate.answer(request.request_id)

    loop = OpenLoop(send, plan(fabricate, 50, 5.0), abort=lambda *_: release.set())
    stopper = threading.Thread(target=lambda: (started.wait(5), loop.stop()))
    stopper.start()
    begun = time.monotonic()
    run = loop.run()
    stopper.join()

    assert time.monotonic() - begun < 2
    assert [s.ending for s in run.samples] == [Ending.CANCELLED]
    assert run.offered == 0


def test_no_thread_outlives_the_run(fabricate):
    before = threading.active_count()

    OpenLoop(instant(fabricate), plan(fabricate, 20, 0.0), max_in_flight=16).run()

    assert threading.active_count() == before


def test_the_interpreters_switching_is_put_back(fabricate):
    before = sys.getswitchinterval()
    during = []

    OpenLoop(
        instant(fabricate),
        plan(fabricate, 1, 0),
        on_sample=lambda _sample: during.append(sys.getswitchinterval()),
    ).run()

    assert sys.getswitchinterval() == before
    assert during[0] < before


def test_a_broken_callback_costs_a_counter_and_no_sample(fabricate):
    def broken(_sample):
        raise RuntimeError("display")

    run = OpenLoop(instant(fabricate), plan(fabricate, 5, 0), on_sample=broken).run()

    assert len(run.samples) == 5
    assert run.callback_errors == 5


def test_callbacks_see_every_send_and_every_sample_once(fabricate):
    sent, done = [], []

    OpenLoop(
        instant(fabricate),
        plan(fabricate, 5, 0),
        on_send=lambda request, engine, _now: sent.append((request.request_id, engine)),
        on_sample=lambda sample: done.append(sample.request.request_id),
        route=lambda request: f"for-{request.request_id}",
    ).run()

    assert sorted(sent) == [(f"r{i}", f"for-r{i}") for i in range(5)]
    assert sorted(done) == [f"r{i}" for i in range(5)]


def test_rate_scale_compresses_the_plan(fabricate):
    run = OpenLoop(instant(fabricate), plan(fabricate, 3, 0.1), rate_scale=10.0).run()

    offsets = [s.intended_s - run.started_s for s in run.samples]
    assert offsets == pytest.approx([0, 0.01, 0.02])


def test_lag_is_the_delay_of_the_generator_itself(fabricate):
    """A clock that jumps stands for a generator that got no processor."""
    now = [0.0]

    def jump(_seconds):
        now[0] += 0.5
        return False

    run = OpenLoop(
        instant(fabricate),
        plan(fabricate, 3, 0.1),
        clock=lambda: now[0],
        wait=jump,
    ).run()

    assert run.lag_p99_s >= 0.4
    assert run.lag_max_s == max(run.lag_s)


def test_nothing_offered_is_nothing_achieved():
    run = OpenLoop(lambda *_: None, []).run()

    assert run.achieved_share == 0.0
    assert run.lag_p99_s == float("inf")


@pytest.mark.parametrize(
    "bad", [{"rate_scale": 0}, {"max_in_flight": 0}, {"timeout_s": 0}]
)
def test_senseless_settings_are_refused(bad):
    with pytest.raises(ValueError):
        OpenLoop(lambda *_: None, [], **bad)
