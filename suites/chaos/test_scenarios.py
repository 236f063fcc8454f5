"""Every file of `suites/scenarios` is played and judged, on whatever target runs.

The faults and the load of a scenario come from the seed in its file, so a file is the
same test each time; `chaos run FILE --seed N` plays another draw of it.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from chaos.scenario import judge_played, load_scenario
from chaos.scenario.suite import play_here

FILES = sorted((Path(__file__).parent.parent / "scenarios").glob("*.yaml"))
QUICK = ("store-killed-under-load",)
"""Each takes some twenty seconds: one by default, all with `--slow`."""


def _param(path: Path):
    marks = () if path.stem in QUICK else pytest.mark.slow
    return pytest.param(path, id=path.stem, marks=marks)


@pytest.mark.parametrize("path", [_param(path) for path in FILES])
def test_a_scenario_harms_no_request_and_leaves_nothing(
    path, chaos_run, cluster_of, inject, load, judge, history, steady_state
):
    """The file says what is broken, for how long, and by which laws it is judged."""
    scenario = load_scenario(path)
    cluster = cluster_of(**scenario.cluster.arguments)

    played = play_here(
        scenario,
        cluster=cluster,
        inject=inject,
        load=load,
        steady=steady_state,
        capabilities=chaos_run.capabilities,
        target=chaos_run.options.target,
    )

    judge(judge_played(played, cluster))
