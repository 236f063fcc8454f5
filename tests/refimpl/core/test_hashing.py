from __future__ import annotations

import dataclasses
import hashlib

import numpy as np
import pytest
import xxhash

from refimpl.core.hashing import (
    KEY_BYTES,
    Fingerprint,
    checksum_of,
    checksum_of_pieces,
    component_keys,
    object_key,
    page_keys,
)

PRINT = Fingerprint(
    model="m", revision="r1", dtype="bf16", page_size=4, layout="page_first", tp=2
)
TOKENS = np.arange(14, dtype=np.int32)


def split(keys):
    return [keys[at : at + KEY_BYTES] for at in range(0, len(keys), KEY_BYTES)]


def test_a_page_key_is_the_hash_of_its_parent_and_its_tokens():
    parent, expected = PRINT.digest(), []
    for page in range(3):
        tokens = TOKENS[page * 4 : page * 4 + 4].astype("<i4").tobytes()
        parent = hashlib.sha256(parent + tokens).digest()
        expected.append(parent)

    assert expected == split(page_keys(TOKENS, 4, PRINT))


def test_tokens_behind_the_last_whole_page_have_no_key():
    assert page_keys(TOKENS, 4, PRINT) == page_keys(TOKENS[:12], 4, PRINT)
    assert page_keys(TOKENS[:3], 4, PRINT) == b""


def test_equal_prefixes_share_keys_until_the_first_difference():
    other = TOKENS.copy()
    other[5] = 99

    ours, theirs = (split(page_keys(t, 4, PRINT)) for t in (TOKENS, other))

    assert [a == b for a, b in zip(ours, theirs, strict=True)] == [True, False, False]


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("model", "n"),
        ("revision", "r2"),
        ("dtype", "fp8"),
        ("page_size", 8),
        ("layout", "layer_first"),
        ("tp", 4),
    ],
)
def test_every_field_of_the_fingerprint_is_a_namespace(field, value):
    other = dataclasses.replace(PRINT, **{field: value})

    assert page_keys(TOKENS, 4, other) != page_keys(TOKENS, 4, PRINT)


def test_fields_of_a_fingerprint_cannot_run_into_each_other():
    one = dataclasses.replace(PRINT, model="ab", revision="c")
    two = dataclasses.replace(PRINT, model="a", revision="bc")

    assert one.digest() != two.digest()


def test_component_keys_are_the_documented_hash_of_the_page_key():
    pages = page_keys(TOKENS, 4, PRINT)
    expected = [
        hashlib.blake2b(page, digest_size=32, person=b"rank0_k").digest()
        for page in split(pages)
    ]

    assert expected == split(component_keys(pages, "rank0_k"))


def test_long_components_that_share_a_beginning_stay_apart():
    pages = page_keys(TOKENS, 4, PRINT)
    long = "component-with-a-long-name-"

    assert component_keys(pages, long + "1") != component_keys(pages, long + "2")


def test_packed_keys_must_be_whole():
    with pytest.raises(ValueError, match="33 bytes"):
        component_keys(bytes(33), "k")


def test_a_name_and_its_bytes_are_one_object_key():
    assert object_key("page-1") == object_key(b"page-1")
    assert len(object_key("page-1")) == KEY_BYTES


def test_the_part_index_seeds_the_checksum_so_swapped_parts_show():
    halves = (b"a" * 64, b"b" * 64)
    right = checksum_of(halves[0], 0) ^ checksum_of(halves[1], 1)
    swapped = checksum_of(halves[1], 0) ^ checksum_of(halves[0], 1)

    assert checksum_of(b"abc", 3) == xxhash.xxh3_64_intdigest(b"abc", seed=3)
    assert right != swapped


def test_pieces_have_the_checksum_of_the_whole():
    data = bytes(range(256)) * 9

    assert checksum_of_pieces([data[:7], b"", data[7:]]) == checksum_of(data)
    assert checksum_of_pieces([data[7:], data[:7]]) != checksum_of(data)
