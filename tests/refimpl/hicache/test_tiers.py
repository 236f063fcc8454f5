from __future__ import annotations

import threading
import tracemalloc
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

from refimpl.hicache.settings import HiCacheSettings
from refimpl.hicache.tiers import Tiers

if TYPE_CHECKING:
    import numpy as np

PAGE = 4096
SETTINGS = HiCacheSettings(page_bytes=PAGE, l1_pages=64, l2_pages=64)


def _key(number: int) -> bytes:
    return number.to_bytes(32, "big")


def test_inserts_at_one_time_do_not_share_memory():
    tiers = Tiers(SETTINGS)
    together = threading.Barrier(16)

    def insert(number: int) -> None:
        def fill(keys: bytes, out: np.ndarray) -> None:
            out[:] = number
            together.wait(5.0)

        tiers.insert([_key(number)], fill)

    with ThreadPoolExecutor(16) as pool:
        list(pool.map(insert, range(16)))

    pages = [tiers.l2.get(_key(number)) for number in range(16)]
    assert all(page is not None for page in pages)
    values = [set(tiers.l2.pool.rows[page].tolist()) for page in pages]
    assert values == [{number} for number in range(16)]


def test_memory_kept_for_inserts_does_not_grow_with_the_callers():
    tiers = Tiers(SETTINGS)
    together = threading.Barrier(32)

    def insert(number: int) -> None:
        tiers.insert([_key(number)], lambda _, out: together.wait(5.0))
        together.wait(5.0)

    tracemalloc.start()
    try:
        with ThreadPoolExecutor(32) as pool:
            done = [pool.submit(insert, number) for number in range(32)]
            for each in done:
                each.result()
            kept, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert kept < 6 * 128 * PAGE
