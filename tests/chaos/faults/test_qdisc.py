"""Shapers at the root of a device: their words, and that only ours is ever deleted."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from chaos.errors import UsageError
from chaos.faults import on_hosts, qdisc
from chaos.faults.steps import holds
from chaos.hosts.host import Host
from chaos.safety.management import HostFacts
from chaos.systems.base import Link

LINK = Link(
    name="store-0.rail0",
    owner="store-0",
    user="",
    plane="data",
    rail="rail0",
    proxy="",
    listen="10.0.0.1:7100",
    upstream="10.0.0.1:7100",
)
HOST = Host(
    name="h0",
    roles=("store-0",),
    agent=None,
    devices={"rail0": "rail0"},
    addresses={"rail0": "10.0.0.1"},
)
CLUSTER = SimpleNamespace(hosts=SimpleNamespace(all=(HOST,), of=lambda role: HOST))


def words_of(fault) -> str:
    (step,) = fault.steps(HOST, HostFacts(host="h0"))
    return " ".join(step.do["run"])


def test_a_shaper_is_deleted_by_its_own_handle_only() -> None:
    step = qdisc.tbf("rail0", 3, 1_000_000)

    own = "dev rail0 root handle 4d03:"

    assert " ".join(step.do["run"]).startswith(f"tc qdisc add {own} tbf ")
    assert " ".join(step.undo["run"]) == f"tc qdisc del {own}"


@pytest.mark.parametrize(
    ("shown", "undone"),
    [
        ("qdisc noqueue 0: root refcnt 2", True),
        ("qdisc tbf 4d03: root refcnt 3 rate 8Mbit", False),
        ("qdisc htb 4d30: root refcnt 3", True),
    ],
)
def test_it_is_undone_when_no_qdisc_has_our_handle(shown, undone) -> None:
    assert holds(qdisc.tbf("rail0", 3, 1000).verify, 0, shown) is undone


@pytest.mark.parametrize(
    ("bytes_per_s", "told"),
    [
        (1_000, "rate 8000bit burst 16384b limit 262144b"),
        (100_000_000, "rate 800000000bit burst 1000000b limit 20000000b"),
    ],
)
def test_burst_and_queue_follow_the_rate_down_to_a_few_frames(
    bytes_per_s, told
) -> None:
    assert " ".join(qdisc.tbf("rail0", 1, bytes_per_s).do["run"]).endswith(told)


@pytest.mark.parametrize("rate", [0, -5])
def test_a_rate_of_nothing_is_a_cut(rate) -> None:
    with pytest.raises(UsageError, match="ask for a partition"):
        qdisc.tbf("rail0", 1, rate)
    with pytest.raises(UsageError, match="a cut, not a limit"):
        on_hosts.bandwidth(CLUSTER, [LINK], rate)


def test_handles_stay_in_a_range_of_our_own() -> None:
    assert {qdisc.handle_of(number)[:2] for number in range(1000)} == {"4d"}


@pytest.mark.parametrize(
    ("kind", "given", "told"),
    [
        ("latency", (40,), "netem limit 10000 delay 40ms"),
        ("latency", (40, 10), "netem limit 10000 delay 40ms 10ms"),
        ("reorder", (25, 20), "netem limit 10000 delay 20ms reorder 25%"),
        ("corrupt", (0.5,), "netem limit 10000 corrupt 0.5%"),
    ],
)
def test_netem_is_asked_in_its_own_words(kind, given, told) -> None:
    fault = getattr(on_hosts, kind)(CLUSTER, [LINK], *given)

    assert words_of(fault).startswith("tc qdisc add dev rail0 root handle 4d")
    assert words_of(fault).endswith(told)


@pytest.mark.parametrize("percent", [0, -1, 101])
@pytest.mark.parametrize("kind", ["corrupt", "loss"])
def test_a_share_of_nothing_or_of_more_than_all_is_refused(kind, percent) -> None:
    with pytest.raises(UsageError, match="above 0"):
        getattr(on_hosts, kind)(CLUSTER, [LINK], percent)
