"""Packed request columns to arrays: nothing is copied, and nothing is trusted."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

KEY_BYTES: Final = 32
BATCH_LIMIT: Final = 1 << 18
"""Keys in one call: a bound on how long the pool is held, far above any prefix."""


class BadRequest(Exception):
    """A request that no pool could answer: the caller's mistake, told to it."""


def keys_of(packed: bytes) -> NDArray[np.uint64]:
    """`n * 32` bytes as `uint64 (n, 4)`.

    Raises:
        BadRequest: no whole number of keys, or too many.
    """
    count, rest = divmod(len(packed), KEY_BYTES)
    if rest:
        raise BadRequest(
            f"keys has {len(packed)} bytes, which is no multiple of {KEY_BYTES}"
        )
    if count > BATCH_LIMIT:
        raise BadRequest(f"{count} keys in one call; the limit is {BATCH_LIMIT}")
    return np.frombuffer(packed, dtype="<u8").reshape(count, 4)


def column_of(packed: bytes, name: str, dtype: str, count: int) -> NDArray[Any]:
    """A column with one value a key.

    Raises:
        BadRequest: its length does not fit to the keys.
    """
    width = np.dtype(dtype).itemsize
    if len(packed) != count * width:
        raise BadRequest(
            f"{name} has {len(packed)} bytes for {count} keys; "
            f"it needs {width} bytes a key ({count * width})"
        )
    return np.frombuffer(packed, dtype=dtype)
