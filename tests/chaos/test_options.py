"""Options of a system that is not ours: command line, environment, default."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from chaos.options import read_options


def options(environ=(), **given):
    return read_options(SimpleNamespace(getoption=given.get), dict(environ))


@pytest.mark.parametrize(
    ("given", "environ", "profile"),
    [
        ({}, {}, "default"),
        ({}, {"MOONQUAKE_MOONCAKE_PROFILE": "tuned"}, "tuned"),
        (
            {"mooncake_profile": "default"},
            {"MOONQUAKE_MOONCAKE_PROFILE": "tuned"},
            "default",
        ),
    ],
)
def test_the_profile_of_mooncake_is_chosen_like_any_option(
    given, environ, profile
) -> None:
    assert options(environ, **given).mooncake_profile == profile


def test_a_profile_that_was_given_makes_the_run_one_of_ours() -> None:
    assert options(mooncake_profile="tuned").given == {"mooncake_profile"}
    assert options().given == frozenset()
