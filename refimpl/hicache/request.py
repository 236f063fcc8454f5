"""One request's way through the tiers: the prefetch handle and what it yields."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum, unique
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from refimpl.core.prefetch import Policy
    from refimpl.hicache.tier import Tier
    from refimpl.transfer.cancel import Cancel

KEY_BYTES = 32


@unique
class Outcome(Enum):
    """How a prefetch ended (`PrefillResponse.prefetch_outcome`)."""

    NONE = "none"
    """Everything was in L1 and L2."""
    COMPLETE = "complete"
    """All that the pool had of the prefix arrived."""
    TIMEOUT = "timeout"
    """The deadline ended it; what had arrived as a prefix is used."""
    MISS = "miss"
    BELOW_THRESHOLD = "below_threshold"
    RATE_LIMITED = "rate_limited"
    BREAKER_OPEN = "breaker_open"
    UNFULFILLED = "unfulfilled"
    """The pool had more than the host pool had room for."""
    BEST_EFFORT = "best_effort"
    """Taken before its end: by policy, or because another request's read of the same
    pages was too slow to wait for."""
    ABORTED = "aborted"
    ERROR = "error"


@unique
class Phase(Enum):
    """Where the prefetch stands."""

    QUEUED = "queued"
    JOINED = "joined"
    """Waits for another request that reads the same pages."""
    QUERYING = "querying"
    LOADING = "loading"
    ENDED = "ended"


@dataclass(frozen=True, slots=True, kw_only=True)
class Reuse:
    """What a request need not compute: a contiguous prefix of whole pages.

    `pages` are the bytes, protected until the request's `commit` or `abort`. `wait_s`
    runs from the start of the prefetch to its end, `deadline_s` is its T.
    """

    l1_pages: int
    l2_pages: int
    l3_pages: int
    outcome: str
    wait_s: float
    deadline_s: float
    stores: tuple[str, ...]
    touched_fault: bool
    pages: Sequence[memoryview] = field(repr=False)


class Prefetch:
    """The handle of one request; HiCache's lock guards it.

    `held` are the pinned pages of the prefix, root first. `flight` are pages that the
    I/O thread owns. `cancel` exists while a worker may be in a call for it.
    """

    __slots__ = (
        "cancel",
        "counts",
        "deadline_s",
        "ended_at",
        "flight",
        "flight_taken",
        "followers",
        "held",
        "hit_pages",
        "keys",
        "leader",
        "led_at",
        "loading_key",
        "occupied_tokens",
        "outcome",
        "phase",
        "policy",
        "query_s",
        "released",
        "request_id",
        "started_at",
        "stores",
        "terminated",
        "touched_fault",
    )

    def __init__(
        self, request_id: str, keys: list[bytes], policy: Policy, now: float
    ) -> None:
        self.request_id = request_id
        self.keys = keys
        self.policy = policy
        self.started_at = now
        self.ended_at = now
        self.led_at = now
        self.deadline_s = 0.0
        self.phase = Phase.QUEUED
        self.outcome = Outcome.NONE
        self.cancel: Cancel | None = None
        self.terminated = False
        self.released = False
        self.held: list[tuple[Tier, int]] = []
        self.counts = {"l1": 0, "l2": 0, "l3": 0}
        self.occupied_tokens = 0
        self.hit_pages = 0
        self.query_s = 0.0
        self.flight: NDArray[np.intp] = np.zeros(0, np.intp)
        self.flight_taken = False
        self.stores: dict[str, None] = {}
        self.touched_fault = False
        self.leader: Prefetch | None = None
        self.followers: list[Prefetch] = []
        self.loading_key: bytes | None = None

    @property
    def ended(self) -> bool:
        """Nothing will be added to `held` any more."""
        return self.phase is Phase.ENDED

    @property
    def missing(self) -> list[bytes]:
        """Keys of the pages that are not held."""
        return self.keys[len(self.held) :]

    def called_off(self) -> bool:
        """Ended from outside: by its deadline, the scheduler or an abort."""
        return self.terminated

    def packed(self, start: int, stop: int) -> bytes:
        """Packed keys of pages `start` to `stop`."""
        return b"".join(self.keys[start:stop])


def split_keys(page_keys: bytes) -> list[bytes]:
    """Packed keys, one by one.

    Raises:
        ValueError: no whole number of keys.
    """
    if len(page_keys) % KEY_BYTES:
        raise ValueError(f"{len(page_keys)} bytes are no whole number of keys")
    return [page_keys[i : i + KEY_BYTES] for i in range(0, len(page_keys), KEY_BYTES)]
