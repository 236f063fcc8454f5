"""Callers' keys and buffers in the one form that the rest works with."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from refimpl.core.hashing import KEY_BYTES

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import TypeAlias

    from numpy.typing import NDArray

    Keys: TypeAlias = bytes | bytearray | memoryview | NDArray[np.uint64]
    Buffers: TypeAlias = Sequence[Any] | NDArray[Any]


def packed_keys(keys: Keys) -> bytes:
    """`n * 32` bytes out of packed keys or an array `uint64 (n, 4)`.

    Raises:
        ValueError: no whole number of keys.
    """
    packed = keys.tobytes() if isinstance(keys, np.ndarray) else bytes(keys)
    if len(packed) % KEY_BYTES:
        raise ValueError(f"{len(packed)} bytes are not keys of {KEY_BYTES} bytes")
    return packed


def flat_views(
    buffers: Buffers, count: int, *, writable: bool = False
) -> list[memoryview]:
    """One flat byte view per row; no byte is copied.

    Raises:
        ValueError: not one buffer per key.
        TypeError: a buffer is not contiguous bytes, or read-only where it must not be.
    """
    views = [memoryview(buffer) for buffer in buffers]
    if len(views) != count:
        raise ValueError(f"{len(views)} buffers for {count} keys")
    if writable and any(view.readonly for view in views):
        raise TypeError("a buffer to read into is read-only")
    return [v if v.format == "B" and v.ndim == 1 else v.cast("B") for v in views]
