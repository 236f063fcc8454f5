"""The properties that systems are held against, fault by fault."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, unique
from typing import Final

BACK_WITHIN_S: Final = 10.0
"""From the healing of a fault until everything works again: as long as Mooncake's own
client time to live, after which its master has forgotten the dead."""


@unique
class Arm(Enum):
    """How the pool is used."""

    BARE = "bare"
    """By its own client, in a process of its own."""
    HICACHE = "hicache"
    """By an engine: deadline, partial reuse, quarantine, breaker, negative cache."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Property:
    """A claim, and what it means for an operator when it does not hold."""

    name: str
    claim: str
    otherwise: str
    arms: tuple[Arm, ...] = (Arm.BARE, Arm.HICACHE)
    of_stores_only: bool = False
    """A fault of the master leaves no healthy key."""


PROPERTIES: Final = (
    Property(
        name="stall-bounded",
        claim="no read waits longer than T + one poll",
        otherwise="requests stand still for as long as the stall, unless they are cut",
    ),
    Property(
        name="healthy-keys-used",
        claim="keys on healthy stores are served, in time, beside keys that are not",
        otherwise="one sick store costs hits on all others",
        of_stores_only=True,
    ),
    Property(
        name="no-failure",
        claim="no request fails because of the cache",
        otherwise="the cache takes inference down",
        arms=(Arm.HICACHE,),
    ),
    Property(
        name="back-after-heal",
        claim=f"everything works again within {BACK_WITHIN_S:g} s of the healing",
        otherwise="the outage outlives its cause",
    ),
)
NAMES: Final = tuple(each.name for each in PROPERTIES)


def property_of(name: str) -> Property:
    """The property of that name.

    Raises:
        KeyError: There is none.
    """
    for each in PROPERTIES:
        if each.name == name:
            return each
    raise KeyError(name)
