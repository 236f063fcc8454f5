"""Real arms on machines of their own: two groups of one inventory, behind SSH."""

from __future__ import annotations

import json
import os

import pytest
import yaml

from chaos.canary.live import Asked, run_asked
from chaos.canary.sides import Shape, side_of
from chaos.targets.lab import Lab, LabShape, why_no_lab

_NONE = why_no_lab()
pytestmark = [pytest.mark.slow, pytest.mark.skipif(bool(_NONE), reason=_NONE)]
SCENARIO = """\
name: both stores of a group send wrong bytes
seed: 14
cluster: {stores: 2, engines: 1}
load: {rate_per_s: 1.4, sessions: 8, max_input_tokens: 3072, after: 20s}
timeline:
  - together:
      - {fault: failpoint, target: store-0, name: store.corrupt, spec: "on"}
      - {fault: failpoint, target: store-1, name: store.corrupt, spec: "on"}
    at: 15s
    for: 25s
abort: none
abort_reason: wrong bytes are what is counted
steady_state: {recovery_slo: 100s}
judge: [O3, O4, O11]
"""
SETTINGS = ("engine.l2_pages=64",)  # one engine of its own would remember everything
GROUP = (("master", "engine-0"), ("store-0",), ("store-1",))
GROUPS = {"blue": ("lab0", "lab1", "lab2"), "green": ("lab3", "lab4", "lab5")}


@pytest.fixture(scope="module")
def inventory(tmp_path_factory):
    """Six machines in two groups, each with every role of a cluster."""
    directory = tmp_path_factory.mktemp("groups")
    path = directory / "lab.yaml"
    with Lab.up(
        LabShape(roles=GROUP * 2),
        directory=directory / "lab",
        inventory=path,
        leases=directory,
    ):
        written = yaml.safe_load(path.read_text(encoding="utf-8"))
        written["all"]["children"] = {
            group: {"hosts": dict.fromkeys(names)} for group, names in GROUPS.items()
        }
        path.write_text(yaml.safe_dump(written, sort_keys=False), encoding="utf-8")
        yield path


def asked(inventory, out, **canary):
    scenario = out / "corrupt.yaml"
    scenario.write_text(SCENARIO, encoding="utf-8")
    return Asked(
        sides=(
            side_of("baseline", "group:blue", settings=SETTINGS),
            side_of("canary", "group:green", settings=SETTINGS, **canary),
        ),
        shape=Shape(seed=4, stores=2, engines=1, inventory=str(inventory)),
        out=out,
        requests=60,
        per_block=10,
        sessions=12,
        scenarios=(scenario,),
    )


@pytest.mark.parametrize(
    ("defects", "wanted"),
    [([], {"PASS", "INCONCLUSIVE"}), (["checksum_not_checked"], {"FAIL"})],
)
def test_two_groups_are_measured_and_judged(
    inventory, tmp_path, ledgers_of, defects, wanted
):
    """A group of one engine is no proof of a slower build, but wrong bytes are."""
    result = run_asked(
        asked(inventory, tmp_path, defects=defects), say=lambda _line: None
    )

    told = {each.name: each.reason for each in result.judgements}
    assert result.verdict.value in wanted, told
    assert ledgers_of(os.getpid()) == []
    metas = [
        json.loads((tmp_path / label / "meta.json").read_text(encoding="utf-8"))
        for label in ("baseline", "canary")
    ]
    assert [bool(m["counters"]["wrong_bytes"]) for m in metas] == [False, bool(defects)]
    if not defects:  # harm ends a run early
        assert [m["complete"] for m in metas] == [True, True]
