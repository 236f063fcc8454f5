"""Segments as messages: built once, all of them named, none twice."""

from __future__ import annotations

import numpy as np

from refimpl.core.segments import SegmentInfo
from refimpl.master.directory import Directory, from_message, to_message


def info(number: int) -> SegmentInfo:
    return SegmentInfo(
        id=number,
        name=f"store-{number}",
        host_id=f"host-{number}",
        size=1 << 20,
        rails=(("a", "127.0.0.1:1"), ("b", "127.0.0.2:1")),
        numa_node=1,
    )


def named(directory: Directory, ids: list[int]) -> list[int]:
    return [m.id for m in directory.describe(np.array(ids, dtype=np.uint64))]


def test_small_cluster_is_described_whole() -> None:
    directory = Directory({}).renewed(map(info, [1, 2, 3]))

    assert sorted(named(directory, [2, 2, 0])) == [1, 2, 3]


def test_large_cluster_is_described_by_what_is_named_each_once() -> None:
    directory = Directory({}).renewed(map(info, range(1, 101)))

    assert named(directory, [7, 0, 99, 7, 7]) == [7, 99]


def test_segment_that_is_gone_is_not_described() -> None:
    directory = Directory({}).renewed(map(info, range(1, 101)))

    assert named(directory, [7, 5000]) == [7]


def test_message_is_built_once_and_goes_with_its_segment() -> None:
    former = Directory({}).renewed([info(1), info(2)])
    renewed = former.renewed([info(2), info(3)])

    assert renewed.messages[2] is former.messages[2]
    assert sorted(renewed.messages) == [2, 3]
    assert sorted(former.messages) == [1, 2]


def test_segment_survives_the_wire() -> None:
    assert from_message(to_message(info(5))) == info(5)
