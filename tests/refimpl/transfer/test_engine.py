from __future__ import annotations

import dataclasses
import socket
import threading
import time

import numpy as np
import pytest

from refimpl.core.codes import Code
from refimpl.transfer.cancel import Cancel

OK = Code.OK


def with_rails(shop, **rails):
    return dataclasses.replace(shop.info, rails=tuple(rails.items()))


class Watch:
    """Records, and offers what it was given."""

    def __init__(self, *offers):
        self.landings = []
        self.arrivals = []
        self.failures = []
        self.refuse = {}
        self.idles = 0
        self.offers = list(offers)

    def landed(self, op, rows):
        self.landings.append((op.segment.name, list(rows)))

    def arrived(self, op, rows):
        self.arrivals += rows
        return {r: self.refuse[r] for r in rows if r in self.refuse}

    def idle(self):
        self.idles += 1
        return self.idles < 3

    def failed(self, op, codes):
        self.failures.append((op.segment.name, dict(codes)))
        return [self.offers.pop(0)] if self.offers else ()


@pytest.mark.parametrize("rails", [1, 2])
def test_reads_what_the_segment_holds(shop, engine, soon, rails):
    store = shop(rails=rails)
    op = store.op([0, 4096, 900_000, 64], 4096)

    codes = engine().read([op], soon(2))

    assert codes == [OK] * 4
    assert store.good(op)


@pytest.mark.parametrize("rails", [1, 2])
def test_writes_where_it_should_and_nowhere_else(shop, engine, soon, rails):
    store = shop(rails=rails)
    before = bytes(store.bytes)
    op = store.op([100, 70_000], 5000)
    for i, view in enumerate(op.buffers):
        view[:] = bytes([i + 1]) * 5000

    codes = engine(least_frame_bytes=1000).write([op], soon(2))

    expected = bytearray(before)
    expected[100:5100] = b"\1" * 5000
    expected[70_000:75_000] = b"\2" * 5000
    assert codes == [OK, OK]
    assert store.bytes == expected


def test_reads_many_stores_in_one_call(shop, engine, soon):
    stores = [shop(segment=n) for n in (3, 4, 5)]
    ops = []
    for i, store in enumerate(stores):
        op = store.op([i * 1000], 500)
        ops.append(dataclasses.replace(op, rows=np.array([2 - i])))

    codes = engine().read(ops, soon(2))

    assert codes == [OK] * 3
    assert all(store.good(op) for store, op in zip(stores, ops, strict=True))


def test_two_rails_carry_half_each(shop, engine, soon):
    store = shop(rails=2)
    op = store.op([i * 4096 for i in range(64)], 4096)

    engine().read([op], soon(2))

    assert store.server.wait_idle(1)
    rails = store.server.snapshot()["rails"]
    assert rails["r0"]["bytes_out"] == rails["r1"]["bytes_out"]
    assert rails["r0"]["bytes_out"] >= 32 * 4096


def test_a_row_longer_than_a_frame_travels_in_pieces(shop, engine, soon):
    store = shop(rails=2)
    op = store.op([0, 500_000], 300_000)
    watch = Watch()

    codes = engine(frame_bytes=65_536).read([op], soon(2), watch=watch)

    assert codes == [OK, OK]
    assert store.good(op)
    assert sorted(watch.arrivals) == [0, 1]
    assert sorted(r for _name, rows in watch.landings for r in rows) == [0, 1]


def test_another_segment_id_is_refused_and_the_connection_stays(shop, engine, soon):
    store = shop()
    transfer = engine()
    stranger = dataclasses.replace(store.info, id=8)

    codes = transfer.read([store.op([0], 10, segment=stranger)], soon(2))
    again = transfer.read([store.op([0], 10, segment=stranger)], soon(2))

    assert codes == again == [Code.SEGMENT_NOT_FOUND]
    assert store.server.snapshot()["rails"]["r0"]["connections"] == 1


def test_a_write_to_another_segment_id_changes_nothing(shop, engine, soon):
    store = shop()
    before = bytes(store.bytes)
    stranger = dataclasses.replace(store.info, id=8)
    transfer = engine()

    codes = transfer.write([store.op([0], 9000, segment=stranger)], soon(2))
    good = transfer.read([store.op([0], 10, segment=stranger)], soon(2))

    assert codes == good == [Code.SEGMENT_NOT_FOUND]
    assert store.bytes == before


@pytest.mark.parametrize("direction", ["read", "write"])
def test_rows_outside_the_segment_fail_alone(shop, engine, soon, direction):
    store = shop()
    transfer = engine()
    op = store.op([0, (1 << 20) - 5, 2**63, 64], 10)
    if direction == "write":
        for offset, view in zip((0, 64), (op.buffers[0], op.buffers[3]), strict=True):
            view[:] = store.bytes[offset : offset + 10]

    codes = getattr(transfer, direction)([op], soon(2))
    bad = Code.INVALID_PARAMS

    assert codes == [OK, bad, bad, OK]
    assert bytes(op.buffers[3]) == store.bytes[64:74]
    assert store.server.snapshot()["connections"] == 1


def test_a_code_of_the_store_is_the_code_of_its_rows(shop, engine, soon):
    store = shop()
    store.failpoints.set("store.read", "return(-800)")

    assert engine().read([store.op([0, 10], 10)], soon(2)) == [-800, -800]


def test_a_rail_that_refuses_gives_its_rows_to_another(shop, engine, soon, refused):
    store = shop()
    info = with_rails(store, bad=refused, good=store.info.rails[0][1])
    transfer = engine(least_frame_bytes=1)
    op = store.op([0, 100, 200, 300], 100, segment=info)

    codes = transfer.read([op], soon(2))

    assert codes == [OK] * 4
    assert store.good(op)
    assert transfer.rails.choose(info, time.monotonic())[0] == [
        ("good", store.info.rails[0][1])
    ]


def test_a_store_that_refuses_on_all_rails_fails_at_once(shop, engine, soon, refused):
    store = shop()
    info = with_rails(store, a=refused, b=refused)
    began = time.monotonic()

    codes = engine().read([store.op([0], 10, segment=info)], soon(5))

    assert codes == [Code.TRANSFER_FAIL]
    assert time.monotonic() - began < 1


def test_a_silent_rail_gives_its_rows_to_a_live_one(shop, engine, soon, silent):
    store = shop()
    info = with_rails(store, bad=silent, good=store.info.rails[0][1])
    transfer = engine(least_frame_bytes=1)
    began = time.monotonic()

    for turn in range(6):
        op = store.op([turn, 1000, 2000, 3000], 100, segment=info)
        assert transfer.read([op], soon(2)) == [OK] * 4
        assert store.good(op)

    # One stall at most: then the rail is paused and nobody asks it.
    assert time.monotonic() - began < 2 * 0.08 + 0.5
    assert transfer.rails.choose(info, time.monotonic())[0][0][0] != "bad"


def test_a_rail_that_was_silent_for_a_single_request_is_paused_too(
    shop, engine, soon, silent
):
    store = shop()
    info = with_rails(store, bad=silent, good=store.info.rails[0][1])
    transfer = engine()
    slow = 0
    for _ in range(6):
        began = time.monotonic()
        assert transfer.read([store.op([0], 100, segment=info)], soon(2)) == [OK]
        slow += time.monotonic() - began > 0.08

    assert slow == 1


def test_a_store_silent_on_all_rails_is_waited_for_to_the_deadline(
    shop, engine, soon, silent
):
    store = shop()
    info = with_rails(store, a=silent, b=silent)
    transfer = engine()
    began = time.monotonic()

    codes = transfer.read([store.op([0], 10, segment=info)], soon(0.4))

    assert codes == [Code.RPC_TIMEOUT]
    assert 0.35 < time.monotonic() - began < 0.7
    assert transfer.state()["idle_connections"] == 0


def test_a_slow_store_is_not_taken_for_a_broken_rail(shop, engine, soon):
    store = shop(rails=2)
    store.failpoints.set("store.read", "sleep(250)")
    transfer = engine(least_frame_bytes=1)
    op = store.op([0, 100], 100)

    codes = transfer.read([op], soon(2))

    assert codes == [OK, OK]
    assert len(transfer.rails.choose(store.info, time.monotonic())[0]) == 2


def test_nothing_writes_to_the_buffers_after_the_deadline(shop, engine, soon):
    store = shop()
    store.failpoints.set("store.read", "pause")
    op = store.op([0], 4096)

    codes = engine().read([op], soon(0.1))
    store.failpoints.clear()
    store.server.wait_idle(2)

    assert codes == [Code.RPC_TIMEOUT]
    assert bytes(op.buffers[0]) == bytes(4096)


def everything_of(connection):
    while connection.recv(1 << 20):
        pass


def test_a_write_that_was_given_up_is_never_sent_later(shop, engine, soon):
    """The path is whole again and the memory another object's: what was not sent by
    then must not come (a canary after an outage read back the one before it)."""
    size = 32 << 20
    with socket.create_server(("127.0.0.1", 0)) as listener:
        store = shop()
        info = with_rails(store, a="{}:{}".format(*listener.getsockname()))
        info = dataclasses.replace(info, size=size)
        codes = engine().write([store.op([0], size, segment=info)], soon(0.3))
        connection, _ = listener.accept()
        connection.settimeout(5)
        with connection, pytest.raises(ConnectionResetError):
            everything_of(connection)

    assert codes == [Code.RPC_TIMEOUT]


def test_finished_rows_are_good_when_others_miss_the_deadline(shop, engine, soon):
    quick, slow = shop(segment=1), shop(segment=2)
    slow.failpoints.set("store.read", "pause")
    first = quick.op([0], 100)
    second = dataclasses.replace(slow.op([0], 100), rows=np.array([1]))

    codes = engine().read([first, second], soon(0.15))

    assert codes == [OK, Code.RPC_TIMEOUT]
    assert quick.good(first)


def test_cancelling_ends_the_call_at_once(shop, engine, soon, silent):
    store = shop()
    info = with_rails(store, a=silent)
    began = time.monotonic()

    with Cancel() as cancel:
        timer = threading.Timer(0.1, cancel.set)
        timer.start()
        codes = engine().read([store.op([0], 10, segment=info)], soon(10), cancel)
        timer.join()

    assert codes == [Code.RPC_TIMEOUT]
    assert time.monotonic() - began < 1


def test_a_call_that_is_cancelled_beforehand_returns_at_once(shop, engine, soon):
    store = shop()
    store.failpoints.set("store.read", "pause")

    with Cancel() as cancel:
        cancel.set()
        codes = engine().read([store.op([0], 10)], soon(10), cancel)

    assert codes == [Code.RPC_TIMEOUT]


def test_connections_are_used_again(shop, engine, soon):
    store = shop(rails=2)
    transfer = engine(least_frame_bytes=1)

    for _ in range(5):
        assert transfer.read([store.op([0, 9], 9)], soon(2)) == [OK, OK]

    rails = store.server.snapshot()["rails"]
    assert [rails[name]["connections"] for name in ("r0", "r1")] == [1, 1]


def test_an_idle_connection_that_broke_in_use_is_replaced_without_blame(
    shop, engine, soon
):
    store = shop()
    transfer = engine()
    with socket.create_server(("127.0.0.1", 0)) as listener:
        # An idle connection whose peer resets only when it is asked something.
        address = "{}:{}".format(*listener.getsockname())
        stale = socket.create_connection(listener.getsockname())
        theirs, _ = listener.accept()
        stale.setblocking(False)
        transfer._pool.give(7, store.info.rails[0][1], stale)

        def hang_up():
            theirs.recv(1)
            theirs.close()

        thread = threading.Thread(target=hang_up)
        thread.start()
        op = store.op([0], 100)
        codes = transfer.read([op], soon(2))
        thread.join()

    assert address
    assert codes == [OK]
    assert store.good(op)
    assert transfer.rails.usable(store.info, time.monotonic())


def test_after_one_dead_connection_the_idle_ones_beside_it_are_not_tried(
    shop, engine, soon, silent
):
    store = shop()
    transfer = engine()
    host, port = silent.split(":")
    address = store.info.rails[0][1]
    for _ in range(3):
        dead = socket.create_connection((host, int(port)))
        dead.setblocking(False)
        transfer._pool.give(7, address, dead)

    first = transfer.read([store.op([0], 10)], soon(0.2))
    second = transfer.read([store.op([0], 10)], soon(2))

    assert first == [Code.RPC_TIMEOUT]
    assert second == [OK]


def test_noise_instead_of_a_reply_fails_the_rows(shop, engine, soon):
    store = shop()
    with socket.create_server(("127.0.0.1", 0)) as listener:
        info = with_rails(store, a="{}:{}".format(*listener.getsockname()))

        def talk():
            sock, _ = listener.accept()
            sock.sendall(b"HTTP/1.1 200 OK\r\n" * 10)
            sock.recv(4096)
            sock.close()

        thread = threading.Thread(target=talk)
        thread.start()
        codes = engine().read([store.op([0], 10, segment=info)], soon(2))
        thread.join()

    assert codes == [Code.TRANSFER_FAIL]


def test_a_silent_store_is_left_for_the_alternative(shop, engine, soon, silent):
    dead, alive = shop(segment=1), shop(segment=2)
    info = with_rails(dead, a=silent)
    op = dead.op([0, 100], 100, segment=info, silence_s=0.2)
    other = dataclasses.replace(alive.op([0, 100], 100), buffers=op.buffers)
    watch = Watch(other)
    transfer = engine()
    began = time.monotonic()

    codes = transfer.read([op], soon(3), watch=watch)

    assert codes == [OK, OK]
    assert alive.good(other)
    assert 0.15 < time.monotonic() - began < 0.6
    assert watch.failures == [("store-1", dict.fromkeys((0, 1), Code.RPC_TIMEOUT))]
    assert not transfer.rails.usable(info, time.monotonic())


def test_rows_that_the_watch_refuses_are_read_elsewhere(shop, engine, soon):
    bad, good = shop(segment=1), shop(segment=2)
    op = bad.op([0, 100], 100)
    other = dataclasses.replace(
        good.op([100], 100), rows=np.array([1]), buffers=[op.buffers[1]]
    )
    watch = Watch(other)
    watch.refuse = {1: int(Code.CHECKSUM_MISMATCH)}

    def read():
        return engine().read([op], soon(2), watch=watch)

    original = watch.failed

    def failed(op, codes):
        watch.refuse = {}
        return original(op, codes)

    watch.failed = failed

    assert read() == [OK, OK]
    assert bytes(op.buffers[1]) == good.bytes[100:200]


def test_rows_without_an_alternative_keep_the_code_of_the_watch(shop, engine, soon):
    store = shop()
    watch = Watch()
    watch.refuse = {0: int(Code.CHECKSUM_MISMATCH)}

    codes = engine().read([store.op([0, 10], 10)], soon(2), watch=watch)

    assert codes == [Code.CHECKSUM_MISMATCH, OK]


def test_the_watch_is_called_for_other_work_while_bytes_are_under_way(
    shop, engine, soon
):
    store = shop()
    store.failpoints.set("store.read", "sleep(50)")
    watch = Watch()

    assert engine().read([store.op([0], 10)], soon(2), watch=watch) == [OK]
    assert watch.idles == 3


def test_a_restarted_store_is_not_held_back_by_the_pause_of_the_old(
    shop, engine, soon, refused
):
    store = shop()
    transfer = engine()
    old = dataclasses.replace(
        store.info, id=99, rails=(("r0", refused), ("r1", refused))
    )
    transfer.read([store.op([0], 10, segment=old)], soon(1))

    assert transfer.read([store.op([0], 10)], soon(1)) == [OK]
    assert transfer.rails.usable(store.info, time.monotonic())


def test_no_rows_is_no_work(shop, engine, soon):
    assert engine().read([], soon(1)) == []
    assert engine().read([shop().op([], 10)], soon(1)) == []


def test_many_threads_share_an_engine(shop, engine, soon):
    store = shop(rails=2)
    transfer = engine()
    bad = []

    def work(seed):
        rng = np.random.default_rng(seed)
        for _ in range(20):
            op = store.op(rng.integers(0, 900_000, 8).tolist(), 4096)
            if transfer.read([op], soon(5)) != [OK] * 8 or not store.good(op):
                bad.append(seed)

    threads = [threading.Thread(target=work, args=(n,)) for n in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert bad == []
