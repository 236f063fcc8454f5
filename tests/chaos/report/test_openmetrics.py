from __future__ import annotations

import math

import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families

from chaos.judge.limit import at_most
from chaos.report import openmetrics
from chaos.report.document import Document, Outcome
from chaos.report.openmetrics import render_metrics
from chaos.report.traces import Arm, Trace, Traces

META = {"started": "2026-03-01T12:00:00+00:00", "monotonic_s": 100.0}
ROW = at_most("O2", 'wait "x"\n', 0.4, 0.3, samples=9, unit="s")


def document(**given):
    fields = {
        "suite": "s",
        "seed": 1,
        "time_scale": 0.1,
        "system": "refimpl",
        "target": "local",
        "outcomes": (Outcome(nodeid="t", judgements=(ROW, ROW), reproduce="r"),),
        "faults": (
            {
                "fault_id": "kill-1",
                "kind": "kill",
                "target": "store-3",
                "test": "t",
                "injected_at_s": 1.0,
                "reverted_at_s": 3.5,
                "evidence": {"measure": "gone", "effect": 1.0},
            },
        ),
    }
    return Document(**{**fields, **given})


def arm():
    return Arm(
        name="fault",
        requests=["a", "b"],
        at_s=[1.0, 2.0],
        ttft_s=[0.1, 0.3],
        wait_s=[0.0, math.nan],
        allowed_s=[0.2, math.nan],
        reused=[512.0, math.nan],
        asked=[1024.0, math.nan],
        ok=[True, False],
        wrong=[False, False],
    )


def samples(text):
    families = text_string_to_metric_families(text)
    return {
        (one.name, tuple(sorted(one.labels.items()))): one.value
        for family in families
        for one in family.samples
    }


def value(found, name, **labels):
    matching = [
        number
        for (known, pairs), number in found.items()
        if known == f"moonquake_{name}" and labels.items() <= dict(pairs).items()
    ]
    (number,) = matching
    return number


@pytest.fixture
def found():
    traces = Traces(tests={"t": Trace(test="t", arms={"fault": arm()})})
    return samples(render_metrics(document(), traces, META))


def test_the_verdict_and_its_numbers_are_there(found):
    assert value(found, "run_verdict", verdict="FAIL", suite="s", seed="1") == 1
    assert value(found, "run_verdict", verdict="PASS") == 0
    assert value(found, "run_exit_code") == 1
    assert value(found, "run_started_timestamp_seconds") == 1772366400.0
    assert value(found, "judgement", number="0", oracle="O2") == 2
    assert value(found, "judgement_value", number="1") == 0.4
    assert value(found, "judgement_limit", number="1") == 0.3


def test_faults_and_arms_are_there_and_ttft_is_called_modelled(found):
    assert value(found, "fault_held_seconds", kind="kill") == 2.5
    assert value(found, "fault_effect", measure="gone") == 1
    assert value(found, "requests", arm="fault") == 2
    assert value(found, "failed_requests", arm="fault") == 1
    assert value(found, "hit_ratio", arm="fault") == 0.5
    assert value(found, "ttft_modelled_seconds", q="0.5") == pytest.approx(0.2)
    assert not [name for name, _ in found if name == "moonquake_ttft_seconds"]


def test_what_is_not_known_is_left_out_and_never_0():
    empty = Arm(name="fault")
    traces = Traces(tests={"t": Trace(test="t", arms={"fault": empty})})
    faults = ({"kind": "kill", "injected_at_s": 1.0, "reverted_at_s": None},)

    found = samples(render_metrics(document(faults=faults), traces, {}))

    names = {name.removeprefix("moonquake_") for name, _ in found}
    assert "requests" in names
    for name in (
        *("hit_ratio", "ttft_modelled_seconds", "fault_held_seconds", "fault_effect"),
        "run_started_timestamp_seconds",
    ):
        assert name not in names


def test_series_are_bounded_and_counted(monkeypatch):
    monkeypatch.setattr(openmetrics, "MOST_SERIES", 3)

    found = samples(render_metrics(document(), Traces(), META))

    assert len(found) == 4
    assert value(found, "series_left_out") > 5


def test_hostile_labels_are_escaped_and_it_ends_as_it_must():
    nasty = 'a"}\n# EOF\nmoonquake_run_exit_code 0\\\0\ud800'
    outcomes = (Outcome(nodeid=nasty, judgements=(ROW,), reproduce=nasty),)

    text = render_metrics(document(outcomes=outcomes, system=nasty), Traces(), META)

    assert text.endswith("# EOF\n")
    assert text.count("\n# EOF") == 1
    assert value(samples(text), "run_exit_code") == 1
