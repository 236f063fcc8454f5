"""When a store that was told to end can have heard of it."""

from __future__ import annotations

import pytest

from chaos.steps.drain import Drained


@pytest.mark.parametrize(
    ("ended_s", "grace_s", "by_s"),
    [(10.7, 0.5, 10.2), (10.3, 0.5, 10.0), (10.0, 0.0, 10.0), (19.0, 0.5, 10.4)],
    ids=["a long way", "no grace was kept", "none is promised", "ends late"],
)
def test_a_store_had_its_signal_a_grace_before_its_end_at_the_latest(
    ended_s, grace_s, by_s
):
    drained = Drained(sent_s=10.0, ended_s=ended_s, exit_code=0, looks=())

    assert drained.signalled_by_s(grace_s) == pytest.approx(by_s)
