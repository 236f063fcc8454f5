"""The error tree: what each one says, and what a command ends with."""

from __future__ import annotations

import inspect

import pytest

from chaos import errors


def test_every_error_is_in_the_tree_that_is_drawn():
    drawn = errors.__doc__ or ""
    classes = [
        value
        for _, value in inspect.getmembers(errors, inspect.isclass)
        if issubclass(value, Exception)
    ]

    assert len(classes) >= 8
    assert all(f" {each.__name__}" in drawn for each in classes)
    assert all(issubclass(each, errors.ChaosError) for each in classes)


@pytest.mark.parametrize(
    ("error", "code", "message"),
    [
        (errors.UsageError("no trace", "give --trace"), 2, "no trace; give --trace"),
        (
            errors.FaultNotInjected(fault="kill", target="store-1", reason="no pid"),
            3,
            "kill was not injected on store-1: no pid",
        ),
        (
            errors.ProcessFailed(process="proxy", reason="ended", detail="port taken"),
            4,
            "proxy ended: port taken",
        ),
        (
            errors.ResidualFault(fault="latency", target="p", reason="it hangs"),
            5,
            "latency is still on p: it hangs",
        ),
    ],
)
def test_an_error_has_its_code_and_builds_its_message(error, code, message):
    assert (error.exit_code, str(error)) == (code, message)
