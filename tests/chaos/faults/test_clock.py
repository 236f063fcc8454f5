"""clock_step: one jump through the failpoint of a role, and no un-jumping."""

from __future__ import annotations

import pytest

from chaos.errors import UsageError
from chaos.faults.clock import FAILPOINT, ClockStep
from refimpl.failpoints import Failpoints


def test_a_step_is_taken_once_and_the_failpoint_goes(cluster) -> None:
    cluster.start_role("store-0")
    fault = ClockStep(cluster, "store-0", -2.5)
    fault.inject()
    spec = cluster.failpoints["store-0", FAILPOINT]
    points = Failpoints()
    points.set(FAILPOINT, spec)

    assert [points.hit(FAILPOINT) for _ in range(3)] == [-2500, 0, 0]
    assert fault.probe().effect == 0
    cluster.hits["store-0", FAILPOINT] = 3
    assert fault.probe().effect == 3
    assert fault.verify_reverted() != ""
    fault.revert()
    assert fault.verify_reverted() == ""
    assert fault.target == "store-0 by -2.5 s"


@pytest.mark.parametrize("step_s", [0.0, 0.0001, 1e6, -1e6])
def test_a_step_that_is_none_or_a_year_is_refused(cluster, step_s) -> None:
    with pytest.raises(UsageError, match="clock_step"):
        ClockStep(cluster, "store-0", step_s)
