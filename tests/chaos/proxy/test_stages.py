"""Each toxic's behaviour as a pure function of what goes in and of the time."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chaos.proxy.stages import LATENCY_HELD_BYTES, Demand, stage_for
from chaos.proxy.toxics import parse_toxic


class Sink:
    """Takes everything, or nothing while `full`."""

    def __init__(self) -> None:
        self.data = bytearray()
        self.stamps: list[float] = []
        self.sizes: list[int] = []
        self.ended = False
        self.full = False

    def accepts(self) -> bool:
        return not self.full

    def put(self, data, stamp: float) -> None:
        self.data += data
        self.stamps.append(stamp)
        self.sizes.append(len(data))

    def end(self, now: float) -> None:
        self.ended = True


def stage(kind: str, seed: str = "s", **attributes):
    return stage_for(parse_toxic({"type": kind, "attributes": attributes}), seed, 0.0)


HOLDING = ["latency", "bandwidth", "slow_close", "slicer", "stall_after", "corrupt"]


@given(
    kind=st.sampled_from(HOLDING),
    value=st.integers(-5, 2000),
    pieces=st.lists(st.binary(min_size=1, max_size=300), max_size=20),
)
def test_no_holding_toxic_ever_loses_or_reorders_a_byte(kind, value, pieces):
    names = parse_toxic({"type": kind}).attributes
    one = stage(kind, **{name: value for name in names if name != "count"})
    sink = Sink()
    for place, piece in enumerate(pieces):
        one.put(piece, place * 0.01)
        one.step(place * 0.01, sink)

    left = b"".join(bytes(data) for data, _ in one.inbox)

    together = bytes(sink.data) + left
    expected = b"".join(pieces)
    assert len(together) == len(expected)
    assert one.held == len(left)
    assert one.lost == 0
    if kind != "corrupt":
        assert together == expected


@given(kind=st.sampled_from(HOLDING), seconds=st.floats(0, 1e6))
def test_a_stage_that_says_when_moves_then(kind, seconds):
    one = stage(kind, latency=50, rate=10, delay=40, average_size=3)
    sink = Sink()
    one.put(b"0123456789", 0.0)
    one.end(0.0)
    while one.step(seconds, sink):
        pass

    due = one.due()

    if due is not None:
        assert due > seconds
        assert one.step(due, sink)


def test_latency_measures_from_arrival_not_from_the_head_of_the_queue():
    one, sink = stage("latency", latency=100), Sink()
    for arrived in (0.0, 0.01, 0.02):
        one.put(b"x", arrived)

    one.step(0.11, sink)

    assert len(sink.data) == 2
    assert one.due() == pytest.approx(0.12)


def test_latency_holds_a_bounded_amount():
    one = stage("latency", latency=1000)
    chunk = bytes(1 << 20)
    taken = 0
    while one.accepts():
        one.put(chunk, 0.0)
        taken += len(chunk)

    assert taken == LATENCY_HELD_BYTES


def test_jitter_is_the_same_for_the_same_seed():
    def dues(seed: str):
        one, found = stage("latency", seed, latency=100, jitter=50), []
        for _ in range(5):
            one.put(b"x", 0.0)
            found.append(one.due())
            one.step(1.0, Sink())
        return found

    assert dues("a") == dues("a") != dues("b")
    assert all(0.05 <= due < 0.15 for due in dues("a"))


def test_bandwidth_passes_its_rate_over_a_second():
    one, sink = stage("bandwidth", rate=100), Sink()
    one.put(bytes(150_000), 0.0)

    for tick in range(101):
        one.step(tick / 100, sink)

    assert 99_000 <= len(sink.data) <= 100_000


def test_bandwidth_gives_no_credit_for_idle_time():
    one, sink = stage("bandwidth", rate=100), Sink()
    one.step(10.0, sink)
    one.put(bytes(100_000), 10.0)

    for tick in range(11):
        one.step(10.0 + tick / 100, sink)

    assert 9_000 <= len(sink.data) <= 10_000


def test_bandwidth_never_makes_up_for_time_in_which_the_receiver_was_blocked():
    one, sink = stage("bandwidth", rate=100), Sink()
    one.put(bytes(100_000), 0.0)
    sink.full = True
    one.step(5.0, sink)
    sink.full = False

    one.step(5.0, sink)

    assert len(sink.data) <= 5_000


def test_bandwidth_zero_stalls():
    one, sink = stage("bandwidth", rate=0), Sink()
    one.put(b"x", 0.0)

    assert not one.step(1e6, sink)
    assert one.due() is None


def test_a_full_sink_holds_data_back_and_asks_for_no_timer_in_the_past():
    one, sink = stage("latency", latency=10), Sink()
    sink.full = True
    one.put(b"x", 0.0)

    assert not one.step(1.0, sink)
    sink.full = False
    assert one.step(1.0, sink)


def test_timeout_counts_what_it_loses_and_closes_in_time():
    one, sink = stage("timeout", timeout=100), Sink()
    one.put(b"xyz", 0.0)
    one.step(0.05, sink)

    assert (one.lost, one.demand) == (3, Demand.NONE)
    one.step(0.1, sink)
    assert one.demand is Demand.CLOSE
    assert one.toxic.counter.bytes == 3


def test_timeout_zero_never_closes_but_lets_the_end_pass():
    one, sink = stage("timeout"), Sink()
    one.step(1e9, sink)
    assert one.demand is Demand.NONE

    one.end(1e9)
    one.step(1e9, sink)

    assert sink.ended


def test_reset_needs_no_data():
    one = stage("reset_peer", timeout=50)

    one.step(0.049, Sink())
    assert one.demand is Demand.NONE
    one.step(0.05, Sink())

    assert one.demand is Demand.RESET


def test_slicer_sizes_stay_within_average_and_variation():
    one, sink = stage("slicer", average_size=50, size_variation=10), Sink()
    one.put(bytes(10_000), 0.0)

    one.step(0.0, sink)

    assert len(sink.data) == 10_000
    assert all(40 <= size <= 60 for size in sink.sizes[:-1])
    assert len(set(sink.sizes)) > 1


def test_limit_passes_exactly_its_bytes():
    one, sink = stage("limit_data", bytes=5), Sink()
    one.put(b"abc", 0.0)
    one.put(b"defg", 0.0)

    one.step(0.0, sink)

    assert sink.data == b"abcde"
    assert (one.lost, one.demand) == (2, Demand.CLOSE_AFTER_FLUSH)


def test_corrupt_stops_at_its_count():
    one, sink = stage("corrupt", every_bytes=10, count=3), Sink()
    for _ in range(20):
        one.put(bytes(7), 0.0)

    one.step(0.0, sink)

    assert sum(byte.bit_count() for byte in sink.data) == 3


def test_corrupt_without_a_window_flips_one_bit_right_after_the_skip():
    one, sink = stage("corrupt", every_bytes=0, skip_bytes=4), Sink()
    one.put(bytes(4), 0.0)
    one.put(bytes(4), 0.0)

    one.step(0.0, sink)

    assert [place for place, byte in enumerate(sink.data) if byte] == [4]


def test_a_type_that_acts_on_connections_has_no_stage():
    assert stage("drop_first_n") is None
