"""Keys and checksums: page-hash chains, keys derived from them, guards of bytes.

A key names the content of a page and of all pages before it, within one namespace: a
model of another revision, dtype, page size, layout or parallel degree shares no key.
"""

from __future__ import annotations

import struct
from dataclasses import astuple, dataclass
from hashlib import blake2b, sha256
from typing import TYPE_CHECKING, Final

import numpy as np
import xxhash

if TYPE_CHECKING:
    from collections.abc import Iterable

    from numpy.typing import NDArray

    Part = bytes | bytearray | memoryview | NDArray[np.uint8]

KEY_BYTES: Final = 32
_PERSON_BYTES: Final = blake2b.PERSON_SIZE


@dataclass(frozen=True, slots=True)
class Fingerprint:
    """What must be equal for two engines to read each other's pages."""

    model: str
    revision: str
    dtype: str
    page_size: int
    """Tokens in a page."""
    layout: str
    """Order of the bytes inside a page, e.g. "page_first"."""
    tp: int
    """Tensor-parallel degree."""

    def digest(self) -> bytes:
        """32 bytes, the start of every chain. Fields cannot run into each other."""
        namespace = sha256()
        for value in astuple(self):
            text = str(value).encode()
            namespace.update(struct.pack("<Q", len(text)) + text)
        return namespace.digest()


def page_keys(
    tokens: NDArray[np.int32], page_size: int, fingerprint: Fingerprint
) -> bytes:
    """Keys of the whole pages of a prompt, packed.

    The key of page i is `sha256(key of page i - 1 || its tokens, little-endian int32)`,
    and the key before page 0 is the fingerprint's digest. Tokens behind the last whole
    page have no key.

    Raises:
        ValueError: when the page size is not positive.
    """
    if page_size < 1:
        raise ValueError(f"a page holds at least one token, not {page_size}")
    pages = len(tokens) // page_size
    if not pages:
        return b""
    packed = np.ascontiguousarray(tokens, dtype="<i4").data.cast("B")
    page_bytes = 4 * page_size
    key = fingerprint.digest()
    keys = []
    for at in range(0, pages * page_bytes, page_bytes):
        link = sha256(key)
        link.update(packed[at : at + page_bytes])
        key = link.digest()
        keys.append(key)
    return b"".join(keys)


def component_keys(page_keys: bytes, component: str) -> bytes:
    """Keys of one component ("rank0_k", "sidecar") of each page, packed.

    Raises:
        ValueError: when the packed keys are not whole keys.
    """
    if len(page_keys) % KEY_BYTES:
        raise ValueError(f"{len(page_keys)} bytes are not keys of {KEY_BYTES} bytes")
    seeded = blake2b(digest_size=KEY_BYTES, person=_person(component))
    keys = []
    for at in range(0, len(page_keys), KEY_BYTES):
        hashed = seeded.copy()
        hashed.update(page_keys[at : at + KEY_BYTES])
        keys.append(hashed.digest())
    return b"".join(keys)


def object_key(name: str | bytes) -> bytes:
    """The 32-byte key of any name that a user chose."""
    raw = name.encode() if isinstance(name, str) else name
    return blake2b(raw, digest_size=KEY_BYTES).digest()


def checksum_of(part: Part, part_index: int = 0) -> int:
    """64-bit checksum of one part of an object.

    The checksum of an object is the XOR of those of its parts, so ranks may end in any
    order; the index is the seed, so that swapped parts do not cancel out.
    """
    # NumPy's stubs declare arrays as buffers from Python 3.12 on only.
    return xxhash.xxh3_64_intdigest(part, seed=part_index)  # type: ignore[arg-type]


def checksum_of_pieces(pieces: Iterable[Part]) -> int:
    """Checksum of the one part that these pieces make, without joining them."""
    whole = xxhash.xxh3_64(seed=0)
    for piece in pieces:
        whole.update(piece)  # type: ignore[arg-type]
    return whole.intdigest()


def _person(component: str) -> bytes:
    """The component as blake2b's person; a long one is hashed to fit, not cut."""
    raw = component.encode()
    if len(raw) <= _PERSON_BYTES:
        return raw
    return blake2b(raw, digest_size=_PERSON_BYTES).digest()
