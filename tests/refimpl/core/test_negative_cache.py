from __future__ import annotations

import pytest

from refimpl.core.negative_cache import NegativeCache


def keys(*numbers: int) -> bytes:
    return b"".join(n.to_bytes(32, "little") for n in numbers)


def test_remembers_failed_keys_until_they_expire():
    cache = NegativeCache(10.0, 100)
    cache.add(keys(1, 2), 0.0)

    assert cache.contains(keys(1, 3, 2), 9.9).tolist() == [True, False, True]
    assert cache.contains(keys(1, 3, 2), 10.0).tolist() == [False, False, False]


def test_a_good_put_or_get_clears_a_key():
    cache = NegativeCache(10.0, 100)
    cache.add(keys(1, 2), 0.0)
    cache.discard(keys(2, 5))

    assert cache.contains(keys(1, 2), 1.0).tolist() == [True, False]


def test_is_bounded_and_drops_the_oldest_first():
    cache = NegativeCache(10.0, 3)
    for n in range(10):
        cache.add(keys(n), float(n) / 10)

    assert len(cache) == 3
    assert cache.contains(keys(6, 7, 8, 9), 1.0).tolist() == [False, True, True, True]


def test_adding_again_renews():
    cache = NegativeCache(10.0, 3)
    cache.add(keys(1), 0.0)
    cache.add(keys(1), 5.0)

    assert cache.contains(keys(1), 12.0).all()


def test_expired_entries_are_dropped():
    cache = NegativeCache(10.0, 100)
    cache.add(keys(*range(50)), 0.0)
    cache.expire(10.0)

    assert len(cache) == 0


def test_refuses_bytes_that_are_no_keys():
    with pytest.raises(ValueError, match="32-byte"):
        NegativeCache(1.0, 1).add(b"short", 0.0)
