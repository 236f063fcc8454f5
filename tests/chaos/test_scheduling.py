"""What may run side by side, and what may not."""

from __future__ import annotations

from dataclasses import replace

import pytest

from chaos.options import Options
from chaos.scheduling import domain_of

ONE = "suites/chaos/test_partial_reuse.py::test_one"
TWO = "suites/chaos/test_partial_reuse.py::test_two[a-b::c]"
OTHER = "suites/chaos/test_circuit_breaker.py::test_one"


@pytest.fixture
def options() -> Options:
    return Options(
        target="local",
        inventory="",
        arm=False,
        fault_ttl_s=30.0,
        max_nodes_down=None,
        system="refimpl",
        seed=1,
        time_scale=0.1,
        results="results",
        inconclusive="fail",
        defects=(),
        duration_s=0.0,
        require=frozenset(),
        block=None,
        slow=False,
        given=frozenset(),
    )


@pytest.mark.parametrize("target", ["local", "netns"])
def test_modules_have_clusters_of_their_own_and_run_side_by_side(
    options, target
) -> None:
    here = replace(options, target=target)

    assert domain_of(ONE, here) == domain_of(TWO, here)
    assert domain_of(ONE, here) != domain_of(OTHER, here)


def test_machines_are_one_domain_for_every_module(options) -> None:
    here = replace(options, target="ssh", inventory="staging.yaml")

    assert domain_of(ONE, here) == domain_of(OTHER, here)


@pytest.mark.parametrize("target", ["local", "netns"])
def test_a_block_that_was_named_is_one_domain(options, target) -> None:
    here = replace(options, target=target, block=7)

    assert domain_of(ONE, here) == domain_of(OTHER, here)
