from __future__ import annotations

import pytest

from chaos.conformance.measured import Measured
from chaos.conformance.profile import Profile
from chaos.conformance.properties import Arm

ROW = {
    "fault": "store-paused",
    "law": "stall-bounded",
    "arm": "bare",
    "settings": "tuned",
    "expect": "fails",
    "seen": {"held": 0, "failed": 20},
    "reference": "the status timer of 30 s",
}


@pytest.fixture
def row():
    """One row of a profile, with changes; `None` leaves a field out."""

    def build(**changes):
        made = {**ROW, **changes}
        return {name: value for name, value in made.items() if value is not None}

    return build


@pytest.fixture
def profile(row):
    """A profile of these rows."""

    def build(*rows, system="mooncake", version="1.2.3"):
        return Profile.model_validate(
            {"system": system, "version": version, "expected": list(rows) or [row()]}
        )

    return build


@pytest.fixture
def measured():
    """A measured property, with changes."""

    def build(**changes):
        told = {
            "system": "mooncake",
            "version": "1.2.3",
            "settings": "tuned",
            "arm": Arm.BARE,
            "fault": "store-paused",
            "law": "stall-bounded",
            "held": False,
            "observed": "30.02 s",
            "limit": "0.24 s",
            "samples": 3,
            "reproduce": "pytest x --seed 1",
        }
        return Measured(**{**told, **changes})

    return build
