"""What HiCache asks of a backend of its third tier.

A backend may fail in any way (raise, hang, answer short or wrong): HiCache counts it
and goes on. It should keep its deadlines and answer a cancelled get at once.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import numpy as np
    from numpy.typing import NDArray

    from refimpl.transfer.cancel import Cancel


@dataclass(frozen=True, slots=True, kw_only=True)
class StorageResult:
    """Codes per key in request order, and what each store's part in it was.

    `endpoints` holds a code per store asked, 0 good; `asked` the stores that bytes
    were asked of; `heard_s` when the last bytes of each came, from the start of the
    call, where that is known: of a slow read it tells who was slow.
    """

    codes: NDArray[np.int16]
    endpoints: Mapping[str, int] = field(default_factory=dict)
    asked: tuple[str, ...] = ()
    heard_s: Mapping[str, float] = field(default_factory=dict)


class Storage(Protocol):
    """A backend. Keys are packed, 32 bytes each; buffers one per key, in order."""

    def exists(self, keys: bytes, *, timeout_s: float) -> NDArray[np.int16]:
        """A code per key: 0 there, OBJECT_NOT_FOUND not there."""
        ...

    def get(
        self,
        keys: bytes,
        buffers: Sequence[memoryview],
        *,
        timeout_s: float,
        avoid: frozenset[str] = frozenset(),
        cancel: Cancel | None = None,
    ) -> StorageResult:
        """Reads whole objects; when it returns nothing writes to the buffers."""
        ...

    def put(
        self,
        keys: bytes,
        buffers: Sequence[memoryview],
        *,
        timeout_s: float,
        part: int = 0,
        parts: int = 1,
        object_bytes: int | None = None,
        avoid: frozenset[str] = frozenset(),
    ) -> StorageResult:
        """Writes part `part` of `parts` of every object."""
        ...

    def canary(self, *, timeout_s: float, avoid: frozenset[str]) -> StorageResult:
        """A real put and get of an object of its own: one code, the worse of both."""
        ...

    def probe(self, endpoint: str, *, timeout_s: float) -> int:
        """A real put and get on one store; SEGMENT_NOT_FOUND: it left the cluster."""
        ...

    def close(self) -> None: ...
