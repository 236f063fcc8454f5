from __future__ import annotations

import time

import pytest

from refimpl.core.codes import Code
from refimpl.store.registration import Registration, new_segment_id
from refimpl.store.settings import StoreSettings


@pytest.fixture
def register(master):
    made = []

    def make(address=None, **settings):
        renewed = []
        found = Registration(
            StoreSettings(
                master=address or master.address,
                **{"ping_interval_s": 0.05, "rpc_timeout_s": 0.5, **settings},
            ),
            {"a": "127.0.0.1:9"},
            renewed.append,
            segment=5,
            client=6,
        )
        found.renewed = renewed
        made.append(found)
        return found

    yield make
    for registration in made:
        registration.leave()


def until(condition, seconds=20.0):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.005)


def test_it_mounts_what_it_was_told(register, master):
    registration = register(name="s", size=8192, host_id="")
    registration.start()

    assert registration.first_mount.wait(20)
    (request,) = master.book.mounts
    assert (request.segment.id, request.client) == (5, 6)
    assert (request.segment.name, request.segment.host_id) == ("s", "s")
    assert [(r.name, r.address) for r in request.segment.rails] == [
        ("a", "127.0.0.1:9")
    ]


def test_it_tries_on_until_the_master_takes_it(register, master):
    master.book.codes = [Code.SEGMENT_ALREADY_EXISTS] * 3
    registration = register()
    registration.start()

    assert registration.first_mount.wait(20)
    assert len(master.book.mounts) == 4
    # Never mounted, so the id is still good.
    assert {request.segment.id for request in master.book.mounts} == {5}


def test_after_the_master_forgot_it_mounts_under_a_new_id(register, master):
    registration = register()
    registration.start()
    registration.first_mount.wait(20)
    time.sleep(0.06)

    registration.remount()

    until(lambda: registration.mounts == 2)
    first, second = (request.segment.id for request in master.book.mounts)
    assert first != second
    assert registration.renewed == [second]
    assert registration.segment == second


def test_a_beat_that_crossed_the_mount_does_not_lose_the_objects(register, master):
    registration = register(ping_interval_s=5.0)
    registration.start()
    registration.first_mount.wait(20)

    registration.remount()

    time.sleep(0.05)
    assert registration.mounts == 1
    assert registration.is_mounted


def test_draining_tells_the_grace_and_ends_remounting(register, master):
    registration = register(ping_interval_s=0.01)
    registration.start()
    registration.first_mount.wait(20)

    assert registration.drain(4.0) == Code.OK
    time.sleep(0.02)
    registration.remount()
    assert registration.leave() == Code.OK

    graces = [(r.id, r.client, r.grace_s) for r in master.book.unmounts]
    assert graces == [(5, 6, 4.0), (5, 6, 0.0)]
    assert registration.mounts == 1


def test_a_mount_without_an_answer_is_undone_all_the_same(register, master):
    master.book.delay_s = 1.0
    registration = register(rpc_timeout_s=0.1)
    registration.start()
    until(lambda: master.book.mounts)
    assert not registration.first_mount.wait(0.2)
    registration.leave()

    until(lambda: master.book.unmounts)
    assert [r.id for r in master.book.unmounts] == [5]


def test_without_a_master_it_neither_mounts_nor_hangs(register):
    registration = register(address="127.0.0.1:1")
    registration.start()

    began = time.monotonic()
    assert not registration.first_mount.wait(0.2)
    registration.leave()

    assert time.monotonic() - began < 2


def test_ids_are_new_and_never_none():
    ids = {new_segment_id() for _ in range(100)}

    assert len(ids) == 100
    assert all(0 < number < 2**63 for number in ids)
