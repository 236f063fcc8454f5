"""Keys that were located and could not be read: not to be asked again for a while.

Without it every request of a lost prefix repeats exists, get, timeout (sglang#31315).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

_KEY_BYTES = 32


class NegativeCache:
    """A bounded set of keys, each with an expiry; the oldest go first.

    Args:
        ttl_s: life of an entry. At most 30 s: the owner may be back.
        capacity: entries held.
    """

    def __init__(self, ttl_s: float, capacity: int) -> None:
        self._ttl_s = ttl_s
        self._capacity = capacity
        self._expiry: dict[bytes, float] = {}

    def __len__(self) -> int:
        return len(self._expiry)

    def add(self, keys: bytes, now: float) -> None:
        """Remembers packed keys as failed at `now`."""
        for key in _split(keys):
            self._expiry.pop(key, None)
            self._expiry[key] = now + self._ttl_s
        self._trim(now)

    def contains(self, keys: bytes, now: float) -> NDArray[np.bool_]:
        """One flag a key: failed, and not expired."""
        if not self._expiry:
            return np.zeros(len(keys) // _KEY_BYTES, np.bool_)
        get = self._expiry.get
        never = float("-inf")
        return np.fromiter((get(k, never) > now for k in _split(keys)), np.bool_)

    def discard(self, keys: bytes) -> None:
        """Forgets keys that were put or read well since."""
        if self._expiry:
            for key in _split(keys):
                self._expiry.pop(key, None)

    def clear(self) -> None:
        """Forgets everything: the reason of the failures is gone."""
        self._expiry.clear()

    def expire(self, now: float) -> None:
        """Drops what expired; entries are in the order of their expiry."""
        self._trim(now)

    def _trim(self, now: float) -> None:
        while self._expiry:
            oldest = next(iter(self._expiry))
            if self._expiry[oldest] > now and len(self._expiry) <= self._capacity:
                return
            del self._expiry[oldest]


def _split(keys: bytes) -> list[bytes]:
    if len(keys) % _KEY_BYTES:
        raise ValueError(f"{len(keys)} bytes are no whole number of 32-byte keys")
    return [keys[i : i + _KEY_BYTES] for i in range(0, len(keys), _KEY_BYTES)]
