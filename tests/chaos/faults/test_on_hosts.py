"""Every fault has a form on hosts, and is still a function when that was imported."""

from __future__ import annotations

import inspect

import pytest

import chaos.faults as build
from chaos.faults import on_hosts

KINDS = sorted(set(build.__all__) - {"links_of", "failpoint"})


@pytest.mark.parametrize("kind", KINDS)
def test_a_module_of_a_fault_never_takes_the_place_of_its_builder(kind) -> None:
    """Importing `chaos.faults.x` sets `x` on the package, whatever stood there."""
    assert inspect.isfunction(getattr(build, kind))


@pytest.mark.parametrize("kind", KINDS)
def test_a_form_on_hosts_takes_what_the_builder_hands_on(kind) -> None:
    wanted = list(inspect.signature(getattr(build, kind)).parameters)
    found = list(inspect.signature(getattr(on_hosts, kind)).parameters)

    assert [name for name in wanted if name != "control"] == found
