"""Golden hit rates: the pool's eviction on a public trace against exact LRU by blocks.

The figures are those of an exact LRU on Mooncake's conversation trace (FAST'25): blocks
in prefix order, a hit only behind hits, every block refreshed or inserted.
"""

from __future__ import annotations

import itertools
import json
import os
import random
from pathlib import Path

import numpy as np
import pytest

from refimpl.core.pool import Pool, PoolSettings, SegmentInfo

BLOCK = 512
GOLDEN = {1_000: 0.045, 10_000: 0.211}


def requests():
    folder = os.environ.get("MOONQUAKE_TRACES")
    path = Path(folder or ".") / "conversation_trace.jsonl"
    if not folder or not path.is_file():
        pytest.skip("MOONQUAKE_TRACES names no folder with conversation_trace.jsonl")
    with path.open() as lines:
        for line in lines:
            yield np.array(json.loads(line)["hash_ids"], dtype=np.uint64)


class BlockCache:
    """A pool of one store whose objects are blocks, kept full to `capacity`."""

    def __init__(self, capacity):
        # Leases shorter than a step of the clock: whatever is not in use may go.
        self.pool = Pool(
            PoolSettings(
                max_objects=2 * capacity,
                default_kv_lease_ttl_s=1e-6,
                eviction_high_watermark_ratio=1.0,
            ),
            random.Random(0),
        )
        size = capacity * BLOCK
        info = SegmentInfo(id=1, name="store", host_id="h", size=size, rails=())
        self.pool.mount(info, 1, 0.0)

    def request(self, ids, now):
        """Looks all blocks up and puts the missing ones; returns the hits."""
        keys = np.zeros((len(ids), 4), dtype=np.uint64)
        keys[:, 0] = ids
        missing = self.pool.lookup(keys, now).status != 0
        hits = int(missing.argmax()) if missing.any() else len(ids)
        absent = keys[missing]
        for step in range(200):
            if not len(absent):
                return hits
            absent = self._put(absent, now + (step + 1) * 0.02)
        raise AssertionError("no room after 200 passes")

    def _put(self, keys, now):
        sizes = np.full(len(keys), BLOCK, dtype=np.uint32)
        started = self.pool.put_start(keys, sizes, now, client=1, host_id="")
        good = started.status == 0
        tokens = started.token[good]
        self.pool.put_end(keys[good], tokens, tokens, now, client=1)
        if not good.all():
            while not (done := self.pool.maintain(now)).again_in_s:
                self.pool.release(done.freed)
            self.pool.release(done.freed)
        return keys[~good]


@pytest.mark.slow
@pytest.mark.parametrize("capacity", GOLDEN)
def test_hit_rate_is_that_of_exact_lru_within_a_point_and_a_half(capacity):
    cache, hits, blocks = BlockCache(capacity), 0, 0
    for ids, second in zip(requests(), itertools.count(1)):
        hits += cache.request(ids, second * 10.0)
        blocks += len(ids)

    assert GOLDEN[capacity] == pytest.approx(hits / blocks, abs=0.015)
    assert cache.pool.conservation() == []
