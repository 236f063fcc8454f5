"""What an engine computes, as pure functions: tokens, page bytes, output, time.

There is no GPU here. Tokens are a function of the trace's block ids, the bytes of a KV
page are a function of its key, and the output is a hash over all of them, so that one
wrong byte out of a cache shows as a wrong output. Prefill time is modelled.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Final

import numpy as np
import xxhash

from refimpl.core.hashing import KEY_BYTES, page_keys

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from refimpl.core.hashing import Fingerprint

BLOCK_TOKENS: Final = 512
"""Tokens of one `hash_ids` block of a trace (Mooncake trace schema)."""
VOCABULARY: Final = 1 << 17
_GOLDEN: Final = np.uint64(0x9E3779B97F4A7C15)
_MIX_1: Final = np.uint64(0xBF58476D1CE4E5B9)
_MIX_2: Final = np.uint64(0x94D049BB133111EB)
_ROW_BYTES: Final = KEY_BYTES
"""A page is rows of four 8-byte words, each word bound to one word of the key."""
_DIGEST_BATCH_PAGES: Final = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Prompt:
    """A prompt as the cache sees it: keys of its whole pages, and the rest."""

    keys: bytes
    tail: NDArray[np.int32]
    tokens: int

    @property
    def pages(self) -> int:
        """Number of whole pages."""
        return len(self.keys) // KEY_BYTES


def tokens_of(hash_ids: NDArray[np.int64], input_length: int) -> NDArray[np.int32]:
    """The tokens of a prompt: 512 per block id, the last block cut to the length.

    Raises:
        ValueError: the blocks do not cover the length.
    """
    blocks = -(-input_length // BLOCK_TOKENS)
    if input_length < 1 or len(hash_ids) < blocks:
        raise ValueError(
            f"{len(hash_ids)} blocks of {BLOCK_TOKENS} tokens cannot make a prompt "
            f"of {input_length} tokens"
        )
    ids = np.asarray(hash_ids[:blocks], np.int64).view(np.uint64)
    steps = np.arange(BLOCK_TOKENS, dtype=np.uint64)
    seeds = _mixed(ids * _GOLDEN)[:, None] + steps[None, :] * _GOLDEN
    tokens = (_mixed(seeds) & np.uint64(VOCABULARY - 1)).astype(np.int32)
    return tokens.reshape(-1)[:input_length]


def prompt_of(
    hash_ids: NDArray[np.int64], input_length: int, fingerprint: Fingerprint
) -> Prompt:
    """Cuts a prompt into whole pages, with the keys of the page-hash chain."""
    tokens = tokens_of(hash_ids, input_length)
    size = fingerprint.page_size
    whole = input_length // size * size
    return Prompt(
        keys=page_keys(tokens, size, fingerprint),
        tail=tokens[whole:],
        tokens=input_length,
    )


def page_bytes(
    keys: bytes, page_bytes: int, out: NDArray[np.uint8] | None = None
) -> NDArray[np.uint8]:
    """The KV bytes of pages: (n, page_bytes), a pure function of each key.

    Word `j` of a page is a fixed random word `j` XOR word `j % 4` of the key: another
    page, a shifted page and swapped parts all differ, at the price of one XOR.

    Args:
        keys: n packed 32-byte keys.
        page_bytes: size of one page.
        out: where to write, instead of into new memory.
    """
    count = len(keys) // KEY_BYTES
    rows = -(-page_bytes // _ROW_BYTES)
    words = np.frombuffer(keys, np.uint64).reshape(count, 1, 4)
    if out is not None and page_bytes % _ROW_BYTES == 0 and _is_plain(out):
        shaped = out.view(np.uint64).reshape(count, rows, 4)
        np.bitwise_xor(_table(rows)[None], words, out=shaped)
        return out
    made = np.bitwise_xor(_table(rows)[None], words)
    flat = made.reshape(count, -1).view(np.uint8)[:, :page_bytes]
    if out is None:
        return flat
    out[...] = flat
    return out


def page_digests(keys: bytes, page_size: int) -> list[int]:
    """xxh3_64 of the model's bytes of every page, in slices that stay in the cache."""
    digests: list[int] = []
    step = _DIGEST_BATCH_PAGES * KEY_BYTES
    scratch = np.empty((_DIGEST_BATCH_PAGES, page_size), np.uint8)
    for start in range(0, len(keys), step):
        part = keys[start : start + step]
        rows = page_bytes(part, page_size, scratch[: len(part) // KEY_BYTES])
        digests += [xxhash.xxh3_64_intdigest(row) for row in rows]
    return digests


def output_hash(reused: Sequence[memoryview], prompt: Prompt, page_size: int) -> str:
    """The output of a request, from the real bytes of its reused leading pages.

    Args:
        reused: bytes of the reused prefix, page by page, as the cache holds them.
        prompt: the whole prompt; pages after the reused ones come from the model.
        page_size: bytes of a page.
    """
    digests = [xxhash.xxh3_64_intdigest(page) for page in reused]
    digests += page_digests(prompt.keys[len(reused) * KEY_BYTES :], page_size)
    whole = xxhash.xxh3_128(np.array(digests, np.uint64).tobytes())
    whole.update(np.ascontiguousarray(prompt.tail, np.int32).tobytes())
    return whole.hexdigest()


def expected_output(
    hash_ids: Sequence[int],
    input_length: int,
    fingerprint: Fingerprint,
    page_bytes: int,
) -> str:
    """The output of a run without any cache: the oracle of O3."""
    ids = np.asarray(hash_ids, np.int64)
    return output_hash((), prompt_of(ids, input_length, fingerprint), page_bytes)


def prefill_s(tokens: int, tokens_per_s: float) -> float:
    """Modelled time of prefill; the last token is always computed, as upstream."""
    return max(1, tokens) / tokens_per_s


def _mixed(words: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """The finaliser of splitmix64: every bit depends on every bit."""
    words = (words ^ (words >> np.uint64(30))) * _MIX_1
    words = (words ^ (words >> np.uint64(27))) * _MIX_2
    return words ^ (words >> np.uint64(31))


def _is_plain(out: NDArray[np.uint8]) -> bool:
    """True when the memory can be seen as 8-byte words."""
    return bool(out.flags.c_contiguous) and out.ctypes.data % 8 == 0


@lru_cache(maxsize=8)
def _table(rows: int) -> NDArray[np.uint64]:
    """The fixed random words that every page of this size is made from."""
    index = np.arange(1, rows * 4 + 1, dtype=np.uint64)
    table = _mixed(index * _GOLDEN).reshape(rows, 4)
    table.flags.writeable = False
    return table
