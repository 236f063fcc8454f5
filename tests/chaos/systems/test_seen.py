from __future__ import annotations

import numpy as np
import pytest

from chaos.systems.seen import Found, SeeingProbe, Seen, look

SIZE = 256
DICE = np.random.default_rng(7)
OWN, OTHER = (DICE.integers(0, 256, SIZE, np.uint8) for _ in range(2))
OTHERS = [("other", lambda: OTHER)]


def test_a_value_and_its_variants_are_whole():
    assert look(0, OWN.copy(), OWN, OTHERS) == Seen(code=0, found=Found.WHOLE)
    seen = look(0, OWN ^ np.uint8(9), OWN, OTHERS)
    assert seen == Seen(code=0, found=Found.WHOLE, variant=9)


def test_zeros_are_told_apart_from_foreign_bytes():
    assert look(0, np.zeros(SIZE, np.uint8), OWN).found is Found.ZEROS
    assert look(0, OTHER, OWN).found is Found.FOREIGN


def test_the_value_of_another_key_is_named():
    seen = look(0, OTHER ^ np.uint8(3), OWN, OTHERS)
    assert seen == Seen(code=0, found=Found.OTHER, variant=3, name="other")


@pytest.mark.parametrize("cut", [32, 64, 224])
def test_a_value_that_ends_in_something_else_is_torn(cut):
    got = np.concatenate([OWN[:cut], OTHER[cut:]])
    assert look(0, got, OWN, OTHERS).found is Found.TORN
    two = np.concatenate([OWN[:cut], OWN[cut:] ^ np.uint8(1)])
    assert look(0, two, OWN, OTHERS).found is Found.TORN


def test_one_flipped_bit_is_torn():
    got = OWN.copy()
    got[100] ^= 4
    assert look(0, got, OWN, OTHERS).found is Found.TORN


def test_what_was_not_read_is_not_looked_at():
    assert look(-704, OWN, OWN) == Seen(code=-704)


def test_a_row_survives_json():
    seen = Seen(code=0, found=Found.OTHER, variant=3, name="other")
    assert Seen.from_row(seen.to_row()) == seen


def test_a_probe_that_cannot_look_is_no_seeing_one():
    assert not isinstance(object(), SeeingProbe)
