from __future__ import annotations

import threading
from types import SimpleNamespace

import pytest

from chaos.load.sample import Ending
from chaos.safety.abort import Condition, Measure, RunWindow
from chaos.scenario.pulse import KEYS, Pulse
from chaos.scenario.schedule import PlannedFault
from chaos.scenario.watch import GRACE_S, Watch


def fault(kind="kill", target="engine-0", number=0):
    return PlannedFault(number=number, kind=kind, target=target, at_s=0.0, for_s=1.0)


@pytest.fixture
def cluster(theatre):
    return theatre.cluster


def sample(fabricate, engine="engine-0", at_s=5.0, latency_s=0.1, **fields):
    made = fabricate.sample("r", at_s=at_s, latency_s=latency_s, **fields)
    return SimpleNamespace(
        request=made.request,
        engine=engine,
        intended_s=made.intended_s,
        done_s=made.done_s,
        answer=made.answer,
        judged=made.judged,
        ttft_s=made.ttft_s,
    )


def test_a_request_is_put_down_as_it_ended(cluster, fabricate) -> None:
    watch = Watch(cluster, {"r": "out-r"})
    watch.sent(fabricate.request("r"), "engine-0", 5.0)

    watch.sample(sample(fabricate, l3=512))

    found = watch.window.snapshot(6.0)
    assert found.waiting_s == ()
    (seen,) = found.seen
    assert (seen.ok, seen.reused, seen.asked, seen.wrong) == (True, 512, 1024, False)


def test_output_that_differs_is_a_wrong_byte(cluster, fabricate) -> None:
    watch = Watch(cluster, {"r": "something else"})

    watch.sample(sample(fabricate))

    assert watch.window.snapshot(6.0).wrong == 1


def test_what_was_shed_says_nothing(cluster, fabricate) -> None:
    watch = Watch(cluster, {})

    watch.sample(sample(fabricate, ending=Ending.SHED))

    assert watch.window.snapshot(6.0).seen == ()


@pytest.mark.parametrize(
    ("begin_s", "end_s", "spared"),
    [
        (5.05, 6.0, True),  # hit while it was under way
        (4.0, 4.8, True),  # connections come back a little later
        (4.0, 5.0 - GRACE_S - 0.1, False),
        (5.2, 6.0, False),
        (4.0, None, True),
    ],
)
def test_a_request_is_spared_while_a_fault_is_on_its_engine(
    cluster, fabricate, begin_s, end_s, spared
) -> None:
    watch = Watch(cluster, {})
    watch.begins(fault(), begin_s)
    if end_s is not None:
        watch.ends(fault(), end_s)

    assert watch.spares(sample(fabricate)) is spared
    assert not watch.spares(sample(fabricate, engine="engine-1"))


@pytest.mark.parametrize(
    "harmless",
    [fault("kill", "store-1"), fault("partition"), fault("blackhole", "engine-0")],
)
def test_faults_of_the_cache_spare_nobody(cluster, fabricate, harmless) -> None:
    """Inference must survive what cuts an engine off from the cache."""
    watch = Watch(cluster, {})
    watch.begins(harmless, 4.0)

    assert not watch.spares(sample(fabricate))


def test_roles_are_asked_now_and_then_only(cluster) -> None:
    watch = Watch(cluster, {})
    limit = [Condition(measure=Measure.NOT_HEALTHY, limit=9.0)]
    watch.look(limit, 1.0)
    cluster.dead.add("store-2")

    assert watch.look(limit, 1.1)[0].value == 0.0
    watch.look(limit, 2.0)
    assert watch.look(limit, 3.0)[0].value == 1.0


def test_a_role_under_a_fault_is_excused(cluster) -> None:
    watch = Watch(cluster, {})
    limit = [Condition(measure=Measure.NOT_HEALTHY, limit=9.0)]
    cluster.dead.add("store-2")
    watch.begins(fault("kill", "store-2"), 0.0)

    assert watch.look(limit, 1.0)[0].samples == 0
    watch.ends(fault("kill", "store-2"), 1.5)
    assert watch.look(limit, 2.0)[0].detail == "store-2"


class FakeProbe:
    def __init__(self, beats, wrong=0, error=None) -> None:
        self.beats, self.wrong, self.error = beats, wrong, error
        self.closed = False

    def write(self, names, **_given):
        self.beats.set()
        if self.error:
            raise self.error

    def read(self, names, **_given):
        return [0] * len(names), self.wrong

    def close(self) -> None:
        self.closed = True


def pulsed(cluster, **given):
    beats, window = threading.Event(), RunWindow()
    probes = []

    def kv():
        probes.append(FakeProbe(beats, **given))
        return probes[-1]

    cluster.kv = kv
    with Pulse(
        cluster, every_s=60.0, stores=("store-0",), window=window, name="t"
    ) as pulse:
        assert beats.wait(5.0)
    return pulse, window, probes


def test_a_pulse_reads_what_it_wrote_and_closes_its_probe(cluster) -> None:
    pulse, _, (probe,) = pulsed(cluster)

    assert (pulse.count.read, pulse.count.wrong, pulse.count.failed) == (KEYS, 0, 0)
    assert probe.closed


def test_a_wrong_read_is_told_to_the_window_at_once(cluster) -> None:
    pulse, window, _ = pulsed(cluster, wrong=2)

    assert pulse.count.wrong == 2
    assert window.snapshot(0.0).wrong == 2


def test_a_call_that_fails_is_counted_and_the_pulse_goes_on(cluster) -> None:
    pulse, _, (probe,) = pulsed(cluster, error=OSError("no route"))

    assert pulse.count.failed == 1
    assert probe.closed


def test_no_pulse_is_no_thread(cluster) -> None:
    with Pulse(
        cluster, every_s=0.0, stores=("store-0",), window=RunWindow(), name="t"
    ) as pulse:
        assert not any(t.name.startswith("pulse-") for t in threading.enumerate())

    assert pulse.count.read == 0
