from __future__ import annotations

from refimpl.core.segments import SegmentInfo
from refimpl.transfer.rails import Rails

SEGMENT = SegmentInfo(
    id=1,
    name="store-0",
    host_id="h",
    size=4096,
    rails=(("a", "127.0.0.1:1"), ("b", "127.0.0.1:2")),
)


def test_rails_take_turns_so_that_single_requests_are_spread_too():
    rails = Rails()

    firsts = [rails.choose(SEGMENT, 0.0)[0][0][0] for _ in range(10)]

    assert firsts.count("a") == firsts.count("b") == 5


def test_a_paused_rail_is_for_need_only():
    rails = Rails()
    rails.failed(SEGMENT, "a", 0.0, had_other=True)

    usable, reserve = rails.choose(SEGMENT, 1.0)

    assert [name for name, _ in usable] == ["b"]
    assert [name for name, _ in reserve] == ["a"]
