"""Real arms on machines of their own: two groups of one inventory, behind SSH."""

from __future__ import annotations

import json

import pytest
import yaml

from chaos.canary.live import Asked, run_asked
from chaos.canary.sides import Shape, side_of
from chaos.safety.ledger import state_directory
from chaos.targets.lab import Lab, LabShape, why_no_lab

_NONE = why_no_lab()
pytestmark = [pytest.mark.slow, pytest.mark.skipif(bool(_NONE), reason=_NONE)]
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
    return Asked(
        sides=(
            side_of("baseline", "group:blue"),
            side_of("canary", "group:green", **canary),
        ),
        shape=Shape(seed=4, stores=2, engines=1, inventory=str(inventory)),
        out=out,
        requests=60,
        per_block=10,
        sessions=12,
    )


@pytest.mark.parametrize(
    ("settings", "wanted"),
    [([], {"PASS", "INCONCLUSIVE"}), (["engine.prefill_tokens_per_s=400"], {"FAIL"})],
)
def test_two_groups_are_measured_and_judged(inventory, tmp_path, settings, wanted):
    before = set(state_directory().iterdir())

    result = run_asked(
        asked(inventory, tmp_path, settings=settings), say=lambda _line: None
    )

    assert result.verdict.value in wanted
    assert set(state_directory().iterdir()) <= before
    for label in ("baseline", "canary"):
        meta = json.loads((tmp_path / label / "meta.json").read_text(encoding="utf-8"))
        assert (meta["complete"], meta["requests"]) == (True, 60)
