"""Request columns: what fits is viewed, what does not is the caller's mistake."""

from __future__ import annotations

import numpy as np
import pytest

from refimpl.master.columns import BATCH_LIMIT, BadRequest, column_of, keys_of


def test_keys_are_viewed_not_copied() -> None:
    packed = np.arange(12, dtype="<u8").tobytes()
    keys = keys_of(packed)

    assert keys.shape == (3, 4)
    assert not keys.flags.owndata
    assert keys[2, 3] == 11


@pytest.mark.parametrize("size", [1, 31, 33])
def test_a_piece_of_a_key_is_refused(size: int) -> None:
    with pytest.raises(BadRequest, match=f"keys has {size} bytes"):
        keys_of(b"k" * size)


def test_batch_has_a_limit_that_is_itself_allowed() -> None:
    assert len(keys_of(bytes(32 * BATCH_LIMIT))) == BATCH_LIMIT

    with pytest.raises(BadRequest, match="the limit is"):
        keys_of(bytes(32 * (BATCH_LIMIT + 1)))


def test_no_keys_are_no_mistake() -> None:
    assert keys_of(b"").shape == (0, 4)


@pytest.mark.parametrize("size", [0, 4, 7, 12])
def test_column_of_another_length_is_refused_by_name(size: int) -> None:
    with pytest.raises(BadRequest, match="sizes has"):
        column_of(bytes(size), "sizes", "<u4", 2)


def test_column_that_fits_is_viewed() -> None:
    assert column_of(b"\1\0\0\0\2\0\0\0", "sizes", "<u4", 2).tolist() == [1, 2]
