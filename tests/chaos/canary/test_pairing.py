"""Which rows are compared, and which hosts leave a doubt."""

from __future__ import annotations

from chaos.canary.pairing import pair
from chaos.canary.samples import Columns


def arm(name, **fields):
    fields.setdefault("ok", [True] * len(fields.get("request") or [0] * 4))
    return Columns(arm=name, **fields).samples()


def test_rows_are_paired_by_number_whatever_their_order() -> None:
    found = pair(arm("a", request=[3, 1, 2, 9]), arm("b", request=[2, 3, 1]))

    assert found.paired
    assert found.baseline.tolist() == [1, 2, 0]
    assert found.canary.tolist() == [2, 0, 1]
    assert found.unpaired_share == 0.25


def test_without_numbers_nothing_is_paired() -> None:
    found = pair(arm("a", request=[1, 2]), arm("b"))

    assert not found.paired
    assert len(found.canary) == 4


def test_the_same_hosts_in_both_arms_leave_no_doubt() -> None:
    hosts = ["engine-0", "engine-1"] * 2

    assert pair(arm("a", hosts=hosts), arm("b", hosts=hosts)).confounded_hosts is None


def test_hosts_of_their_own_do() -> None:
    left, right = ["h1", "h2"] * 2, ["h3", "h4"] * 2

    assert pair(arm("a", hosts=left), arm("b", hosts=right)).confounded_hosts == 2


def test_enough_hosts_of_their_own_show_their_spread() -> None:
    left, right = (
        arm("a", hosts=["h1", "h2", "h3", "h4"]),
        arm("b", hosts=["h5", "h6", "h7", "h8"]),
    )

    found = pair(left, right)

    assert found.confounded_hosts is None
    assert [each.name for each in found.baseline_clusters] == ["session", "host"]
