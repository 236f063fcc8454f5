"""The bytes that every name has: a wrong byte needs no history to be seen.

A value is a stream of a counter-based generator keyed by the name's digest, so that no
two names, and no two places of one value, look alike. A variant (0 to 255) is another
value of the same name: every byte of it xor the variant.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray


def value_of(name: str, size_bytes: int, variant: int = 0) -> NDArray[np.uint8]:
    """The value of a name, `size_bytes` long."""
    digest = hashlib.blake2b(name.encode(), digest_size=16).digest()
    stream = np.random.Philox(key=int.from_bytes(digest, "little"))
    words = stream.random_raw(-(-size_bytes // 8)).astype("<u8", copy=False)
    value: NDArray[np.uint8] = words.view(np.uint8)[:size_bytes]
    return value ^ np.uint8(variant) if variant else value
