"""The exit matrix itself: what it is made of; a draw of it misses no ending."""

from __future__ import annotations

import pytest

from chaos.exits.cells import (
    AT_ONCE,
    CUTS,
    ENDINGS,
    KINDS,
    NEEDS_OUR_ROLE,
    OF_CONTROLLER,
    Order,
    cell,
    draw,
    product,
)

SEEDS = range(20)


def always(_) -> bool:
    return True


def test_the_product_has_every_ending_with_every_kind() -> None:
    found = {(c.ending, c.kind) for c in product(1) if c.target == "ssh"}

    assert found == {(ending, kind) for ending in ENDINGS for kind in KINDS}


def test_in_namespaces_only_the_controller_can_end_in_many_ways() -> None:
    endings = {c.ending for c in product(1) if c.target == "netns"}

    assert endings == set(OF_CONTROLLER)


def test_roles_of_somebody_else_are_neither_started_nor_told_anything() -> None:
    kinds = {c.kind for c in product(1) if c.target == "observed"}

    assert kinds == set(KINDS) - NEEDS_OUR_ROLE


@pytest.mark.parametrize("seed", SEEDS)
def test_a_draw_has_every_ending_and_no_cell_twice(seed) -> None:
    drawn = list(draw(product(seed), 12, seed, always))

    assert {c.ending for c in drawn} == set(ENDINGS)
    assert len(set(drawn)) == len(drawn) == len(ENDINGS)


@pytest.mark.parametrize("seed", SEEDS)
def test_a_draw_takes_no_kind_twice_while_others_are_left(seed) -> None:
    kinds = [c.kind for c in draw(product(seed), 20, seed, always)]

    assert len(set(kinds)) == len(kinds) == 20


def test_a_draw_is_the_same_for_the_same_seed() -> None:
    first, again, other = (
        list(draw(product(seed), 12, seed, always)) for seed in (7, 7, 8)
    )

    assert first == again
    assert first != other


def test_a_kind_that_turns_out_not_to_be_here_is_replaced() -> None:
    missing: set[str] = set()
    played = []
    for each in draw(product(3), 12, 3, lambda c: c.kind not in missing):
        if each.kind in ("kill", "latency", "tap"):
            missing.add(each.kind)
        else:
            played.append(each)

    assert {c.ending for c in played} == set(ENDINGS)


def test_when_no_kind_is_here_a_draw_ends() -> None:
    assert list(draw(product(3), 12, 3, lambda _: False)) == []


def test_a_cell_is_the_same_whatever_else_is_played() -> None:
    alone = product(5, endings=["cut-active"], kinds=["reset"], targets=["ssh"])

    assert alone == [cell("ssh", "cut-active", "reset", 5)]
    assert alone[0] in product(5)
    assert alone[0].again == (
        "scripts/soak matrix --seed 5 --target ssh --only cut-active --kind reset"
    )


def test_cuts_come_in_their_phase_and_in_every_way() -> None:
    cuts = [c for seed in SEEDS for c in product(seed) if c.ending in CUTS]

    assert all(c.ending == f"cut-{c.phase}" for c in cuts)
    assert {c.way for c in cuts} == {"silent", "sessions", "relays"}


def test_signals_come_while_a_fault_is_armed_active_and_disarmed() -> None:
    cells = [c for seed in SEEDS for c in product(seed) if c.ending == "sigkill"]

    assert {c.phase for c in cells} == {"arming", "active", "disarming"}
    assert {c.phase for c in cells if c.kind in AT_ONCE} == {"active"}


def test_an_order_is_read_back_as_it_was() -> None:
    order = Order(kind="tap", ending="pass", marks="/x", holds=("before",), slow="")

    assert Order.from_json(order.to_json()) == order
