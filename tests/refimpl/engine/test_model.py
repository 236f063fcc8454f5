"""The model: pure functions that make wrong bytes visible and cost next to nothing."""

from __future__ import annotations

import time
from dataclasses import replace

import numpy as np
import pytest

from refimpl.core.hashing import Fingerprint
from refimpl.engine.model import (
    BLOCK_TOKENS,
    VOCABULARY,
    expected_output,
    output_hash,
    page_bytes,
    page_digests,
    prefill_s,
    prompt_of,
    tokens_of,
)

PAGE = 4096
PRINT = Fingerprint(
    model="m", revision="r", dtype="bf16", page_size=64, layout="page_first", tp=1
)


def _ids(*blocks: int) -> np.ndarray:
    return np.array(blocks, np.int64)


def _prompt(*blocks: int, length: int | None = None):
    return prompt_of(_ids(*blocks), length or len(blocks) * BLOCK_TOKENS, PRINT)


def _real_pages(prompt) -> list[memoryview]:
    return [memoryview(page) for page in page_bytes(prompt.keys, PAGE)]


def test_tokens_depend_on_the_block_alone_wherever_it_stands():
    first = tokens_of(_ids(7, 8, 9), 3 * BLOCK_TOKENS)
    second = tokens_of(_ids(9, 7), 2 * BLOCK_TOKENS)

    np.testing.assert_array_equal(first[:BLOCK_TOKENS], second[BLOCK_TOKENS:])
    np.testing.assert_array_equal(first[-BLOCK_TOKENS:], second[:BLOCK_TOKENS])


def test_tokens_are_of_the_vocabulary_and_varied():
    tokens = tokens_of(_ids(0, 1, -5), 3 * BLOCK_TOKENS)

    assert tokens.dtype == np.int32
    assert tokens.min() >= 0
    assert tokens.max() < VOCABULARY
    assert len(np.unique(tokens)) > 1400


def test_the_last_block_is_cut_to_the_length():
    whole, cut = tokens_of(_ids(1, 2), 1024), tokens_of(_ids(1, 2), 700)

    np.testing.assert_array_equal(whole[:700], cut)


@pytest.mark.parametrize(("blocks", "length"), [((1,), 513), ((), 1), ((1,), 0)])
def test_blocks_that_do_not_cover_the_length_are_refused(blocks, length):
    with pytest.raises(ValueError, match="cannot make a prompt"):
        tokens_of(_ids(*blocks), length)


def test_a_prompt_has_whole_pages_and_a_tail():
    prompt = _prompt(1, 2, length=1000)

    assert (prompt.pages, len(prompt.tail), prompt.tokens) == (15, 40, 1000)


def test_equal_prefixes_have_equal_keys_and_no_others():
    a, b = _prompt(1, 2, 3), _prompt(1, 2, 4)
    shared = 2 * BLOCK_TOKENS // 64 * 32

    assert a.keys[:shared] == b.keys[:shared]
    assert a.keys[shared : shared + 32] != b.keys[shared : shared + 32]


def test_page_bytes_depend_on_the_key_alone():
    keys = _prompt(1, 2).keys
    together, one = page_bytes(keys, PAGE), page_bytes(keys[96:128], PAGE)

    np.testing.assert_array_equal(together[3], one[0])


@pytest.mark.parametrize("size", [64, 100, 4096, 16384])
def test_page_bytes_into_given_memory_are_the_same(size):
    keys = _prompt(1).keys
    aligned = np.empty((8, size), np.uint8)
    odd = np.empty(8 * size + 1, np.uint8)[1:].reshape(8, size)

    for out in (aligned, odd, np.empty((8, 2 * size), np.uint8)[:, :size]):
        page_bytes(keys, size, out)
        np.testing.assert_array_equal(page_bytes(keys, size), out)


def test_every_bit_of_a_key_shows_in_every_part_of_the_page():
    key = bytearray(_prompt(1).keys[:32])
    page = page_bytes(bytes(key), PAGE)[0]
    for byte in range(32):
        key[byte] ^= 1
        other = page_bytes(bytes(key), PAGE)[0]
        key[byte] ^= 1

        assert np.count_nonzero(page[:64] != other[:64]) == 2
        assert np.count_nonzero(page[-64:] != other[-64:]) == 2


def test_output_over_real_reused_bytes_equals_the_oracle():
    prompt = _prompt(1, 2, length=1000)
    pages = _real_pages(prompt)
    oracle = expected_output([1, 2], 1000, PRINT, PAGE)

    for reused in (0, 1, 7, len(pages)):
        assert output_hash(pages[:reused], prompt, PAGE) == oracle


@pytest.mark.parametrize(
    "wrong",
    ["bit", "swapped", "shifted", "short", "other key", "zero", "torn"],
)
def test_wrong_bytes_in_a_reused_page_show_in_the_output(wrong):
    prompt = _prompt(1, 2)
    pages = [page.copy() for page in page_bytes(prompt.keys, PAGE)]
    page = pages[2]
    if wrong == "bit":
        page[100] ^= 1
    elif wrong == "swapped":
        pages[2], pages[3] = pages[3], pages[2]
    elif wrong == "shifted":
        pages[2] = np.roll(page, 32)
    elif wrong == "short":
        pages[2] = page[:-1]
    elif wrong == "other key":
        pages[2] = page_bytes(_prompt(5).keys[:32], PAGE)[0]
    elif wrong == "zero":
        page[:] = 0
    else:
        page[PAGE // 2 :] = pages[5][PAGE // 2 :]

    got = output_hash([memoryview(p) for p in pages], prompt, PAGE)

    assert got != expected_output([1, 2], 2 * BLOCK_TOKENS, PRINT, PAGE)


def test_the_output_depends_on_the_tail():
    assert expected_output([1, 2], 1000, PRINT, PAGE) != expected_output(
        [1, 2], 1001, PRINT, PAGE
    )


@pytest.mark.parametrize("field", ["model", "revision", "dtype", "layout"])
def test_another_fingerprint_shares_no_key(field):
    other = replace(PRINT, **{field: "other"})
    mine, theirs = _prompt(1).keys, prompt_of(_ids(1), 512, other).keys
    parts = {mine[i : i + 32] for i in range(0, len(mine), 32)}

    assert not parts & {theirs[i : i + 32] for i in range(0, len(theirs), 32)}


def test_digests_in_slices_are_the_digests():
    keys = _prompt(*range(20)).keys
    whole = page_digests(keys, 256)

    assert whole[100] == page_digests(keys[3200:3232], 256)[0]
    assert len(whole) == 160


def test_prefill_always_computes_one_token():
    assert prefill_s(0, 20_000) == 1 / 20_000
    assert prefill_s(10_000, 20_000) == 0.5


def _best_s(call, times: int = 5) -> float:
    def once() -> float:
        started = time.process_time()
        call()
        return time.process_time() - started

    return min(once() for _ in range(times))


@pytest.mark.slow
def test_an_8k_prompt_is_cut_and_hashed_under_a_millisecond():
    ids = np.arange(16, dtype=np.int64)

    assert _best_s(lambda: prompt_of(ids, 8192, PRINT), 20) < 0.001


@pytest.mark.slow
def test_page_bytes_cost_less_than_a_microsecond_a_kib():
    keys = _prompt(*range(16)).keys
    out = np.empty((128, 16384), np.uint8)

    assert _best_s(lambda: page_bytes(keys, 16384, out)) < 1e-6 * 128 * 16
