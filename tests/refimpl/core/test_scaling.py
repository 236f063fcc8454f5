from __future__ import annotations

import dataclasses

import pytest

from refimpl.core.scaling import scale


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    ttl_s: float = 10.0
    poll_s: float = 0.02
    count: int = 3
    ratio: float = 0.5
    never_s: float | None = None


def test_only_durations_are_multiplied():
    expected = Settings(ttl_s=1.0, poll_s=0.002)

    assert expected == scale(Settings(), 0.1)


def test_fixed_fields_keep_their_value():
    expected = Settings(ttl_s=20.0)

    assert expected == scale(Settings(), 2.0, fixed=("poll_s",))


@pytest.mark.parametrize("factor", [0.0, -1.0, float("nan")])
def test_a_factor_that_is_not_positive_is_refused(factor):
    with pytest.raises(ValueError):
        scale(Settings(), factor)
