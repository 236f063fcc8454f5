"""A whole play outside of pytest: real load, ledger and results, a fake system."""

from __future__ import annotations

import json
from types import SimpleNamespace

import pytest

import chaos.faults
from chaos.errors import HarnessError, NotHere
from chaos.faults.base import Evidence
from chaos.safety.halt import LocalLever
from chaos.safety.ledger import Ledger
from chaos.scenario import bench as bench_module
from chaos.scenario.bench import Bench, BenchOptions
from chaos.scenario.load import parse_scenario
from chaos.scenario.schedule import schedule_of

SCALE = 0.01
TEXT = """
name: on a fake system
timeline:
  - {fault: pause, target: store-1, at: 20s, for: 20s}
abort: [{wrong_bytes: 0}]
load: {rate_per_s: 1, pulse: 0, after: 20s}
steady_state: {recovery_slo: 10s}
judge: [O1, O4, O11]
"""


class Fault:
    kind = "pause"

    def __init__(self, target, *, effect=1.0, residual="", error=None) -> None:
        self.target, self.effect = target, effect
        self.residual, self.error = residual, error
        self.reverted = 0

    def plan(self):
        return ["pause"]

    def inject(self):
        if self.error is not None:
            raise self.error

    def probe(self):
        return Evidence(measure="fake", effect=self.effect)

    def revert(self):
        self.reverted += 1

    def verify_reverted(self):
        return self.residual


class FakeClusters:
    """One fake cluster; `Bench` asks for nothing else."""

    def __init__(self, cluster, ledger) -> None:
        self.cluster, self.ledger = cluster, ledger
        self.control = None
        self.closed = 0
        self.target = SimpleNamespace(
            capabilities=frozenset({"local", "pause"}),
            why_not=lambda capability: f"no {capability} in a test",
        )

    def __call__(self, **_given):
        return self

    def get(self, spec):
        self.cluster.spec = spec
        return self.cluster

    def close(self) -> None:
        self.closed += 1


@pytest.fixture
def system(theatre):
    """The fake cluster of a theatre, which answers requests as well."""
    cluster = theatre.cluster
    cluster.sick = False
    cluster.prefill = lambda engine, request, timeout_s: theatre.good_answer(request)
    cluster.expected_output = lambda request: "right"
    cluster.abort = lambda engine, request_id: None
    cluster.owned_bytes = lambda: (
        {} if cluster.sick else dict.fromkeys(cluster.stores, 0)
    )
    cluster.engine_state = lambda engine: {"breaker": "closed"}
    return cluster


@pytest.fixture
def clusters(system, tmp_path, monkeypatch):
    (tmp_path / "state").mkdir()
    ledger = Ledger.create(tmp_path / "state")
    clusters = FakeClusters(system, ledger)
    monkeypatch.setattr(bench_module, "Clusters", clusters)
    monkeypatch.setattr(bench_module, "REVERT_DEADLINE_S", 0.2)
    yield clusters
    ledger.close()


@pytest.fixture
def play(clusters, tmp_path, monkeypatch):
    """`play(**what the fault does)` -> the result; `play.made` are the faults."""

    def go(text=TEXT, **given):
        def pause(cluster, control, role):
            go.made.append(Fault(role, **given))
            return go.made[-1]

        monkeypatch.setattr(chaos.faults, "pause", pause)
        options = BenchOptions(time_scale=SCALE, results=str(tmp_path / "results"))
        bench = Bench(options, levers=[LocalLever(tmp_path / "halt.json")])
        scenario = parse_scenario(text)
        try:
            return bench.run(scenario, schedule_of(scenario), "s.yaml")
        finally:
            bench.close()

    go.made = []
    return go


def on_disk(tmp_path):
    (path,) = (tmp_path / "results" / "scenarios").glob("2*/verdict.json")
    return json.loads(path.read_text())


def test_a_good_play_passes_and_is_on_disk(play, clusters, tmp_path) -> None:
    result = play()

    assert result.document.exit_code == 0
    found = on_disk(tmp_path)
    assert found["verdict"] == "PASS"
    assert (
        found["tests"][0]["reproduce"] == "chaos run s.yaml --seed 1 --time-scale 0.01"
    )
    assert (result.path / "history.jsonl").stat().st_size > 0
    assert clusters.closed == 1


def test_a_fault_without_effect_is_inconclusive(play) -> None:
    assert play(effect=0.0).document.exit_code == 3


def test_an_undo_that_fails_ends_with_five(play, tmp_path) -> None:
    """K2: the verdict is not recovered, and the exit code says what was left."""
    result = play(residual="still stopped")

    assert result.document.exit_code == 5
    found = on_disk(tmp_path)
    assert found["residual"] == ["pause(store-1): still stopped"]
    assert "not recovered" in json.dumps(found)


def test_a_system_that_is_unwell_after_the_undo_ends_with_one(play, system) -> None:
    """K2: everything was undone, and the run is no success all the same."""

    def sick_from_now_on(engine, request, timeout_s):
        system.sick = True
        return answer(engine, request, timeout_s)

    answer, system.prefill = system.prefill, sick_from_now_on

    document = play().document

    assert document.exit_code == 1
    broken = document.outcomes[0].broken[0]
    assert broken.reason == "not recovered: store-0 is not mounted"


def test_what_a_file_requires_is_asked_of_the_target(play, tmp_path) -> None:
    with pytest.raises(NotHere, match="no netem in a test"):
        play(TEXT + "requires: [netem]\n")

    assert play.made == []
    assert on_disk(tmp_path)["verdict"] == "INCONCLUSIVE"


def test_an_error_of_the_harness_is_raised_and_written_down(play, tmp_path) -> None:
    with pytest.raises(HarnessError, match="agent is gone"):
        play(error=HarnessError("agent is gone"))

    assert play.made[0].reverted >= 1
    found = on_disk(tmp_path)
    assert found["verdict"] != "PASS"
    assert found["tests"][0]["error"] == "HarnessError: agent is gone"
    assert found["aborted"] == "HarnessError"


def test_the_reverts_are_in_the_ledger(play, clusters) -> None:
    play()

    states = [
        json.loads(line)["state"]
        for line in clusters.ledger.path.read_text().splitlines()
        if '"fault_id"' in line
    ]
    assert states == ["planned", "armed", "active", "reverting", "reverted"]


@pytest.mark.parametrize(
    ("broken", "verdict"), [((), "PASS"), (("h1: no answer for 30 s",), "INCONCLUSIVE")]
)
def test_a_play_on_hosts_that_lost_their_lease_proves_nothing(
    play, clusters, broken, verdict
) -> None:
    clusters.target.hosts = SimpleNamespace(all=("h0", "h1"))
    clusters.target.broken_promises = broken

    result = play()

    assert result.document.verdict.value == verdict
