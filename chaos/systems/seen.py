"""What a read of one key gave, told by its bytes alone. Pure.

The value of a key is a function of its name (`KvProbe`), a variant of it the same bytes
xor one number, so bytes tell by themselves whose they are. A probe that can look at
them offers `SeeingProbe` beside `KvProbe`: then a checker knows which of several values
a read gave, and what a wrong one was instead.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, unique
from typing import TYPE_CHECKING, Any, Final, Protocol, Self, runtime_checkable

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    import numpy as np
    from numpy.typing import NDArray

    Bytes = NDArray[np.uint8]

_BLOCK: Final = 32
"""Bytes that are looked at together when a value is not whole."""


@unique
class Found(Enum):
    """Whose bytes a read gave."""

    NOTHING = "nothing"
    """The read was no good: there is nothing to look at."""
    WHOLE = "whole"
    """A value of this key, all of it; `Seen.variant` says which."""
    ZEROS = "zeros"
    """Nothing but zeros, as memory that nobody has written."""
    OTHER = "other"
    """All of a value of another key, `Seen.name`."""
    TORN = "torn"
    """Bytes of this key beside bytes that are not, or of two of its values."""
    FOREIGN = "foreign"
    """None of the above."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """One read of one key: the system's code, and what the bytes were."""

    code: int
    found: Found = Found.NOTHING
    variant: int = 0
    name: str = ""

    def to_row(self) -> list[Any]:
        """As plain JSON."""
        return [self.code, self.found.value, self.variant, self.name]

    @classmethod
    def from_row(cls, row: Sequence[Any]) -> Self:
        code, found, variant, name = row
        return cls(
            code=int(code), found=Found(found), variant=int(variant), name=str(name)
        )


@runtime_checkable
class SeeingProbe(Protocol):
    """A `KvProbe` that tells what it read, by every way of reading that it has."""

    def read_paths(self) -> list[str]:
        """The ways: "plain" (a call a key), "batched", "ranges", "session"."""
        ...

    def read_by(
        self,
        path: str,
        names: Sequence[str],
        *,
        size_bytes: int = 16 << 10,
        timeout_s: float = 2.0,
        among: Sequence[str] = (),
    ) -> list[Seen]:
        """Reads by one of the paths; `among` are names whose values may turn up."""
        ...


def look(
    code: int,
    got: Bytes,
    own: Bytes,
    others: Iterable[tuple[str, Callable[[], Bytes]]] = (),
) -> Seen:
    """What the bytes of a read are.

    Args:
        code: of the read; below zero nothing is looked at.
        got: the bytes.
        own: variant 0 of the value of the key.
        others: names of other keys, and variant 0 of their values when asked for.
    """
    if code < 0:
        return Seen(code=code)
    variant = _variant(got, own)
    if variant is not None:
        return Seen(code=code, found=Found.WHOLE, variant=variant)
    if not got.any():
        return Seen(code=code, found=Found.ZEROS)
    for name, value in others:
        variant = _variant(got, value())
        if variant is not None:
            return Seen(code=code, found=Found.OTHER, variant=variant, name=name)
    torn = _holds_some(got, own)
    return Seen(code=code, found=Found.TORN if torn else Found.FOREIGN)


def _variant(got: Bytes, value: Bytes) -> int | None:
    """Which variant of a value the bytes are, None when they are none."""
    if len(got) != len(value) or not len(got):
        return None
    first = got[0] ^ value[0]
    return int(first) if bool(((got ^ value) == first).all()) else None


def _holds_some(got: Bytes, own: Bytes) -> bool:
    """Whether some block is of a value of this key."""
    whole = min(len(got), len(own)) // _BLOCK * _BLOCK
    differ = (got[:whole] ^ own[:whole]).reshape(-1, _BLOCK)
    return bool((differ == differ[:, :1]).all(axis=1).any())
