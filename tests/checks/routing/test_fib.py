"""The route engine by itself: what it must refuse to guess, runs of destinations."""

from __future__ import annotations

import json
import random

import pytest

from checks.facts import Facts, Unread
from checks.routing.host import fib_of
from checks.routing.query import Query, ask, number

DEFAULT = [
    {"priority": 0, "src": "all", "table": "local"},
    {"priority": 32766, "src": "all", "table": "main"},
    {"priority": 32767, "src": "all", "table": "default"},
]
MAIN = [
    {"dst": "default", "gateway": "192.0.2.254", "dev": "eth10", "flags": []},
    {
        "dst": "13.13.2.0/24",
        "dev": "eth3",
        "scope": "link",
        "prefsrc": "13.13.2.13",
        "flags": [],
    },
]


def fib(bench, rules=(), routes=MAIN, **more):
    cmds = {
        "ip -j -4 rule": json.dumps([DEFAULT[0], *rules, *DEFAULT[1:]]),
        "ip -j route": json.dumps(routes),
        **more,
    }
    return fib_of(Facts(bench.doc(cmds=cmds)), 4)


def test_a_table_that_was_not_collected_is_no_guess(bench):
    engine = fib(bench, [{"priority": 9, "src": "13.13.2.13", "table": "103"}])

    with pytest.raises(Unread, match="table 103"):
        engine.lookup(ask("13.13.2.13", "13.13.2.14"))
    assert engine.lookup(ask("192.0.2.1", "13.13.2.14")).devices == {"eth3"}


def test_a_table_that_cannot_be_read_is_no_guess(bench):
    rule = {"priority": 9, "src": "13.13.2.13", "table": "103"}
    engine = fib(bench, [rule], **{"ip -j route show table 103": (0, "[{", "")})

    with pytest.raises(Unread, match="table 103"):
        engine.lookup(ask("13.13.2.13", "13.13.2.14"))


def test_a_whole_dump_proves_that_a_table_does_not_exist(bench):
    rule = {"priority": 9, "src": "13.13.2.13", "table": "103"}
    more = {"ip -j -4 route show table all": json.dumps(MAIN)}
    engine = fib(bench, [rule], **more)

    assert engine.lookup(ask("13.13.2.13", "13.13.2.14")).devices == {"eth3"}


def test_a_vrf_and_a_group_of_devices_are_no_guess(bench):
    query = Query(src=number("13.13.2.13"), dst=number("13.13.2.14"), oif="eth3")

    with pytest.raises(Unread):
        fib(bench, [{"priority": 9, "src": "all", "l3mdev": None}]).lookup(query)
    rule = {"priority": 9, "src": "all", "table": "main", "suppress_ifgroup": "x"}
    with pytest.raises(Unread):
        fib(bench, [rule]).lookup(query)


def test_equal_default_routes_name_both_devices(bench):
    other = {"dst": "default", "gateway": "198.51.100.1", "dev": "eth11", "flags": []}
    engine = fib(bench, routes=[*MAIN, other])

    decision = engine.lookup(ask("13.13.2.13", "8.8.8.8"))
    assert decision.devices == {"eth10", "eth11"}
    assert decision.leaves() == "leaves eth10 or eth11"


def test_a_goto_without_an_end_is_passed_over(bench):
    rules = [{"priority": 5, "src": "all", "goto": 7000, "unresolved": None}]

    assert fib(bench, rules).lookup(ask("13.13.2.13", "8.8.8.8")).devices == {"eth10"}


def random_prefix(rng):
    length = rng.choice((0, 8, 12, 16, 24, 30, 32))
    value = (
        rng.getrandbits(32) if rng.random() < 0.3 else rng.randrange(10 << 24, 11 << 24)
    )
    if length == 0:
        return "default"
    value = value >> (32 - length) << (32 - length)
    return ".".join(str(value >> s & 255) for s in (24, 16, 8, 0)) + f"/{length}"


def random_fib(bench, rng):
    rules = []
    for priority in sorted(rng.sample(range(1, 99), 4)):
        rule = {"priority": priority, "src": "all", "table": rng.choice("567")}
        if rng.random() < 0.5:
            dst, _, length = (
                random_prefix(rng).replace("default", "0.0.0.0/0").partition("/")
            )
            rule |= {"dst": dst, "dstlen": int(length)}
        rules.append(rule | ({"not": None} if rng.random() < 0.2 else {}))
    routes = [
        {
            "dst": random_prefix(rng),
            "dev": f"eth{rng.randrange(4)}",
            "table": rng.choice(["5", "6", "7", "main"]),
            "flags": [],
        }
        for _ in range(30)
    ]
    return fib(
        bench, rules, [], **{"ip -j -4 route show table all": json.dumps(routes)}
    )


@pytest.mark.parametrize("seed", range(20))
def test_a_run_of_destinations_is_decided_as_each_of_them(bench, seed):
    rng = random.Random(seed)
    engine = random_fib(bench, rng)
    targets = sorted(
        {rng.randrange(10 << 24, 11 << 24) for _ in range(200)}
        | {rng.getrandbits(32) for _ in range(100)}
        | {cut + step for cut in engine.cuts for step in (-1, 0) if cut + step >= 0}
    )
    targets = [each for each in targets if each < 1 << 32]

    runs = list(engine.spread(Query(src=0, dst=0), targets))

    assert [at for _, at, _ in runs] == [0, *[after for _, _, after in runs[:-1]]]
    assert runs[-1][2] == len(targets)
    for decision, first, after in runs:
        for dst in targets[first:after]:
            assert engine.lookup(Query(src=0, dst=dst)) == decision
