"""Mixed outcomes for a while: no page lost, none freed twice, no wrong byte."""

from __future__ import annotations

import random
import threading
import time

import pytest

from refimpl.core.codes import Code

pytestmark = pytest.mark.slow

SECONDS = 6.0
MISHAPS = (Code.OBJECT_NOT_FOUND, Code.TRANSFER_FAIL, Code.RPC_TIMEOUT, "raise", "slow")


def test_twenty_percent_mishaps_leave_the_ledger_clean(rig, kit):
    rng = random.Random(17)
    lock = threading.Lock()

    def fault(kind, key, store, cancel, timeout_s):
        with lock:
            mishap = rng.choice(MISHAPS) if rng.random() < 0.01 else None
        if mishap == "raise":
            raise OSError("on purpose")
        if mishap == "slow":
            time.sleep(min(timeout_s, 0.03))
            return None
        return mishap

    r = rig(
        fault=fault,
        l1_pages=128,
        l2_pages=400,
        breaker=kit.base.breaker.scaled(0.02),
        quarantine=kit.base.quarantine.scaled(0.02),
        negative_ttl_s=0.05,
        prefetch={"base_s": 0.04, "per_ki_token_s": 0.005},
    )
    prompts = [kit.chain(rng.randrange(4, 60), f"p{i % 9}") for i in range(40)]
    end = time.monotonic() + SECONDS
    failures: list[BaseException] = []

    def client(seed: int) -> None:
        mine = random.Random(seed)
        try:
            while time.monotonic() < end:
                one_request(mine)
        except BaseException as error:  # to the main thread, which judges
            failures.append(error)

    def one_request(mine: random.Random) -> None:
        keys = mine.choice(prompts)
        op = r.cache.begin("r", keys, mine.choice(("timeout", "best_effort", "")))
        if mine.random() < 0.2:
            time.sleep(mine.random() * 0.01)
            r.cache.abort(op)
            return
        r.check(keys, r.wait(op))
        r.cache.commit(op, kit.fill)
        if mine.random() < 0.02:
            r.cache.flush(mine.choice((["l1"], ["l2"], ["l1", "l2"])))

    threads = [threading.Thread(target=client, args=(i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    r.storage.fault = None

    assert not failures, failures[0]
    r.clean()
    r.cache.flush()
    pages = r.cache.state()["pages"]
    assert (pages["l1"]["free"], pages["l2"]["free"]) == (128, 400)
    outcomes = r.cache.state()["counters"]["prefetch_outcomes"]
    assert {"complete", "aborted"} <= set(outcomes)
