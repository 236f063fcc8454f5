from __future__ import annotations

from collections import Counter

import pytest

from chaos.load.routing import SessionAffine, evenly, preference

ENGINES = ("engine-0", "engine-1", "engine-2", "engine-3")


def routes(routing, fabricate, count=400):
    names = [f"s{i}" for i in range(count)]
    return {name: routing(fabricate.request(session=name)) for name in names}


def test_a_session_always_has_the_same_engine(fabricate):
    routing = SessionAffine(engines=ENGINES)

    assert routes(routing, fabricate) == routes(routing, fabricate)


def test_the_choice_is_the_same_on_every_machine():
    assert preference("s0", ENGINES) == preference("s0", tuple(reversed(ENGINES)))
    assert preference("s0", ENGINES)[0] == "engine-0"


def test_sessions_are_spread_over_all_engines(fabricate):
    counts = Counter(routes(SessionAffine(engines=ENGINES), fabricate).values())

    assert all(70 <= counts[engine] <= 130 for engine in ENGINES)


def test_losing_an_engine_moves_only_its_own_sessions(fabricate):
    before = routes(SessionAffine(engines=ENGINES), fabricate)
    after = routes(SessionAffine(engines=ENGINES[:-1]), fabricate)

    moved = {name for name in before if before[name] != after[name]}
    assert moved == {name for name in before if before[name] == ENGINES[-1]}


def test_moved_sessions_go_to_their_second_choice_and_others_stay(fabricate):
    routing = SessionAffine(engines=ENGINES)
    before, after = routes(routing, fabricate), routes(routing.move({"s1"}), fabricate)

    assert {name for name in before if before[name] != after[name]} == {"s1"}
    assert after["s1"] == preference("s1", ENGINES)[1]


def test_an_explicit_route_wins(fabricate):
    routing = SessionAffine(engines=ENGINES, explicit={"s0": "engine-3"})

    assert routing(fabricate.request(session="s0")) == "engine-3"


def test_evenly_leaves_no_engine_without_sessions():
    counts = Counter(evenly([f"s{i}" for i in range(9)], ENGINES).values())

    assert sorted(counts.values()) == [2, 2, 2, 3]


@pytest.mark.parametrize(
    "fields",
    [
        {"engines": ()},
        {"engines": ENGINES, "explicit": {"s0": "engine-9"}},
        {"engines": ("engine-0",), "moved": frozenset({"s0"})},
    ],
)
def test_routes_to_nowhere_are_refused(fields):
    with pytest.raises(ValueError):
        SessionAffine(**fields)
