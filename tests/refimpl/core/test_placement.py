from __future__ import annotations

import numpy as np
import pytest

from refimpl.core.placement import Batch, Placement, rendezvous
from refimpl.core.segments import SegmentInfo, SegmentTable

PAGE = 4096
HOSTS = [f"host-{n}" for n in range(8)]


class Fleet:
    """Segments and a placement over them."""

    def __init__(self, strategy, hosts, pages=1000, seed=0):
        self.table = SegmentTable(64)
        self.placement = Placement(
            strategy, self.table, 1.0, np.random.default_rng(seed)
        )
        self._lots = np.random.default_rng(seed + 1)
        for number, host in enumerate(hosts):
            self.add(number + 1, host, pages)

    def add(self, number, host, pages=1000, fresh_until=0.0):
        info = SegmentInfo(
            id=number, name=f"store-{number}", host_id=host, size=pages * PAGE, rails=()
        )
        return self.table.mount(info, client=number, fresh_until=fresh_until)

    def put(
        self,
        count,
        writer="",
        *,
        replicas=1,
        exclude=(),
        now=10.0,
        sizes=PAGE,
        prefer=(),
    ):
        batch = Batch(
            keys=self._lots.integers(0, 2**64, (count, 4), dtype=np.uint64),
            sizes=np.broadcast_to(np.uint32(sizes), (count,)).copy(),
            host_id=writer,
            replicas=replicas,
            exclude=frozenset(exclude),
            prefer=prefer,
        )
        return self.placement.place(batch, now).row

    def hosts_of(self, rows):
        by_row = {s.row: s.info.host_id for s in self.table.live()}
        return np.array([by_row.get(int(r), "") for r in rows.ravel()]).reshape(
            rows.shape
        )

    def fill(self, number, pages):
        self.table.get(number).allocator.allocate_many(PAGE, pages)


def shares(hosts):
    names, counts = np.unique(hosts, return_counts=True)
    return dict(zip(names.tolist(), (counts / hosts.size).tolist(), strict=True))


def test_a_writer_always_sees_the_same_order():
    assert rendezvous("w", HOSTS) == rendezvous("w", reversed(HOSTS))


def test_removing_a_host_removes_only_it_from_each_order():
    for writer in HOSTS:
        whole = rendezvous(writer, HOSTS)
        less = rendezvous(writer, [h for h in HOSTS if h != "host-3"])

        assert less == [h for h in whole if h != "host-3"]


def test_second_choices_over_writers_are_spread_within_twice_the_fair_share():
    writers = [f"writer-{n}" for n in range(400)]
    for place in (0, 1):
        chosen = np.array([rendezvous(w, HOSTS)[place] for w in writers])

        assert max(shares(chosen).values()) <= 2 / len(HOSTS)


def test_local_first_keeps_a_batch_on_the_writers_own_host():
    fleet = Fleet("local_first", HOSTS)

    hosts = fleet.hosts_of(fleet.put(500, "host-5"))

    assert set(hosts.ravel()) == {"host-5"}
    assert (fleet.placement.local, fleet.placement.unmatched) == (500, 0)


def test_a_batch_that_does_not_fit_at_home_goes_to_one_remote_host_as_a_whole():
    fleet = Fleet("local_first", HOSTS)
    fleet.fill(6, 900)
    second = rendezvous("host-5", [h for h in HOSTS if h != "host-5"])[0]

    assert set(fleet.hosts_of(fleet.put(500, "host-5")).ravel()) == {second}


def test_a_batch_larger_than_every_segment_fills_them_in_order():
    fleet = Fleet("local_first", HOSTS[:4], pages=100)

    hosts = fleet.hosts_of(fleet.put(250, "host-1")).ravel()
    order = ["host-1", *rendezvous("host-1", [HOSTS[0], *HOSTS[2:4]])]

    assert list(dict.fromkeys(hosts.tolist())) == order[:3]


def test_two_stores_of_one_host_take_turns_by_key():
    fleet = Fleet("local_first", ["host-0", "host-0", "host-1"])

    rows = {int(fleet.put(4, "host-0")[0, 0]) for _ in range(40)}
    names = {s.info.name for s in fleet.table.live() if s.row in rows}

    assert names == {"store-1", "store-2"}


def test_a_writer_whose_store_is_gone_keeps_its_own_remote_order():
    fleet = Fleet("local_first", HOSTS)
    fleet.table.remove(fleet.table.get(6))
    first = rendezvous("host-5", [h for h in HOSTS if h != "host-5"])[0]

    assert set(fleet.hosts_of(fleet.put(64, "host-5")).ravel()) == {first}
    assert fleet.placement.unmatched == 0


@pytest.mark.parametrize("writers", [("",), ("pod-1", "pod-2", "pod-3")])
def test_unmatched_writers_are_counted_and_spread_within_twice_the_fair_share(writers):
    fleet = Fleet("local_first", HOSTS)

    rows = [fleet.put(20, writers[n % len(writers)]) for n in range(50)]

    assert fleet.placement.unmatched == 1000
    assert max(shares(fleet.hosts_of(np.vstack(rows))).values()) <= 2 / len(HOSTS)


@pytest.mark.parametrize("strategy", ["random", "free_ratio_first", "local_first"])
def test_replicas_lie_on_distinct_hosts(strategy):
    fleet = Fleet(strategy, [host for host in HOSTS[:3] for _ in range(2)])

    hosts = fleet.hosts_of(fleet.put(900, "host-1", replicas=2))

    assert (hosts[:, 0] != hosts[:, 1]).all()
    assert (hosts != "").all()


@pytest.mark.parametrize("strategy", ["random", "free_ratio_first", "local_first"])
def test_replicas_on_the_last_host_lie_on_distinct_segments(strategy):
    fleet = Fleet(strategy, ["host-0", "host-0"])

    rows = fleet.put(100, "host-0", replicas=2)

    assert (rows[:, 0] != rows[:, 1]).all()
    assert rows.all()


def test_one_segment_holds_one_replica_only():
    rows = Fleet("random", ["host-0"]).put(10, replicas=2)

    assert rows[:, 0].all()
    assert not rows[:, 1].any()


@pytest.mark.parametrize("strategy", ["random", "free_ratio_first", "local_first"])
def test_excluded_segments_get_nothing(strategy):
    fleet = Fleet(strategy, HOSTS[:3])

    hosts = fleet.hosts_of(fleet.put(600, "host-1", exclude=[2, 3]))

    assert set(hosts.ravel()) == {"host-0"}


def test_draining_segments_get_nothing():
    fleet = Fleet("random", HOSTS[:2])
    fleet.table.drain(fleet.table.get(1), deadline=99.0)

    assert set(fleet.hosts_of(fleet.put(600)).ravel()) == {"host-1"}


def test_random_gives_every_segment_about_its_fair_share():
    fleet = Fleet("random", HOSTS)

    part = shares(fleet.hosts_of(fleet.put(4000)))

    assert min(part.values()) > 0.5 / len(HOSTS)
    assert max(part.values()) < 1.5 / len(HOSTS)


def test_random_fills_the_last_free_page_before_it_refuses():
    fleet = Fleet("random", HOSTS, pages=100)

    rows = fleet.put(900)

    assert int((rows == 0).sum()) == 100
    assert all(s.allocator.free_bytes == 0 for s in fleet.table.live())


def test_free_ratio_first_prefers_the_emptiest():
    fleet = Fleet("free_ratio_first", HOSTS[:4])
    for number in (1, 2, 3):
        fleet.fill(number, 600)

    part = shares(fleet.hosts_of(fleet.put(200)))

    assert part["host-3"] > 0.7


@pytest.mark.parametrize("strategy", ["random", "free_ratio_first", "local_first"])
def test_a_segment_in_slow_start_takes_at_most_twice_its_fair_share(strategy):
    fleet = Fleet(strategy, HOSTS[:3], pages=4000)
    for number in (1, 2, 3):
        fleet.fill(number, 2500)
    fresh = fleet.add(4, "host-3", pages=4000, fresh_until=40.0)

    for second in range(10, 13):
        rows = [fleet.put(10, f"writer-{n}", now=second + n / 50) for n in range(50)]

        taken = (np.vstack(rows) == fresh.row).mean()
        assert taken <= 2 / 4


def test_slow_start_ends():
    fleet = Fleet("free_ratio_first", HOSTS[:3], pages=4000)
    for number in (1, 2, 3):
        fleet.fill(number, 3000)
    fresh = fleet.add(4, "host-3", pages=4000, fresh_until=40.0)

    assert (fleet.put(100, now=41.0) == fresh.row).mean() > 0.7


@pytest.mark.parametrize("strategy", ["random", "free_ratio_first", "local_first"])
@pytest.mark.parametrize("replicas", [1, 2])
def test_a_fleet_of_fresh_segments_takes_a_single_object(strategy, replicas):
    # All stores restarted within slow start: twice a third of one page is no page.
    fleet = Fleet(strategy, [])
    for number, host in enumerate(HOSTS[:3], start=1):
        fleet.add(number, host, fresh_until=40.0)

    for n in range(20):
        rows = fleet.put(1, f"writer-{n}", replicas=replicas, now=10.0 + 2 * n)
        assert (rows != 0).all()


@pytest.mark.parametrize("strategy", ["random", "free_ratio_first", "local_first"])
def test_slow_start_refuses_nothing_that_has_no_other_place(strategy):
    fleet = Fleet(strategy, HOSTS[:3], pages=100)
    for number in (1, 2, 3):
        fleet.fill(number, 100)
    fresh = fleet.add(4, "host-3", pages=100, fresh_until=40.0)

    assert (fleet.put(50, "host-1", now=10.0) == fresh.row).all()
    assert (fleet.put(10, exclude=(1, 2, 3), now=12.0) == fresh.row).all()


def test_a_fresh_local_segment_serves_its_own_writer_at_once():
    fleet = Fleet("local_first", HOSTS[:3])
    fresh = fleet.add(4, "host-3", fresh_until=40.0)

    assert (fleet.put(100, "host-3") == fresh.row).all()


def test_mixed_sizes_of_one_batch_stay_together():
    fleet = Fleet("local_first", HOSTS)

    rows = fleet.put(60, "host-2", sizes=np.tile([PAGE, 100, 9000], 20))

    assert set(fleet.hosts_of(rows).ravel()) == {"host-2"}


def test_nothing_is_placed_where_nothing_is_mounted():
    fleet = Fleet("local_first", [])

    assert not fleet.put(5, "host-1", replicas=2).any()


def test_who_joins_within_a_window_has_no_share_of_what_was_placed_before():
    fleet = Fleet("free_ratio_first", HOSTS[:7])
    for number in range(1, 8):
        fleet.fill(number, 800)
    fleet.put(640, now=10.0)
    fleet.add(8, HOSTS[7], fresh_until=20.0)
    rows = fleet.put(64, now=10.1)

    assert np.count_nonzero(fleet.hosts_of(rows) == HOSTS[7]) == 64 * 2 // 8


# --- preferred segments ---------------------------------------------------------------


@pytest.mark.parametrize("strategy", ["random", "free_ratio_first", "local_first"])
def test_a_preferred_segment_takes_all_it_has_room_for(strategy):
    fleet = Fleet(strategy, HOSTS[:4], pages=8)
    row = fleet.table.get(3).row
    rows = fleet.put(12, "host-0", prefer=(3,))

    assert (rows == row).sum() == 8
    assert (rows != 0).all()


def test_preferred_segments_are_tried_in_their_order():
    fleet = Fleet("random", HOSTS[:4], pages=8)
    rows = fleet.put(12, prefer=(4, 2))

    assert (rows == fleet.table.get(4).row).sum() == 8
    assert (rows == fleet.table.get(2).row).sum() == 4


def test_the_second_replica_goes_to_the_other_preferred_segment():
    fleet = Fleet("random", ["one", "one", "two"])
    rows = fleet.put(5, replicas=2, prefer=(1, 2))

    assert (rows[:, 0] == fleet.table.get(1).row).all()
    assert (rows[:, 1] == fleet.table.get(2).row).all()


def test_what_is_asked_for_by_name_is_not_held_to_slow_start():
    fleet = Fleet("random", HOSTS[:4])
    fleet.add(9, "host-9", fresh_until=100.0)
    rows = fleet.put(100, prefer=(9,))

    assert (rows == fleet.table.get(9).row).all()


def test_an_excluded_or_unknown_segment_is_not_preferred():
    fleet = Fleet("random", HOSTS[:2])
    rows = fleet.put(5, prefer=(1, 77), exclude=(1,))

    assert (rows == fleet.table.get(2).row).all()
