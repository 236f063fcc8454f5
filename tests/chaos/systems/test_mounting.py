"""Waiting until every store is mounted, with a master that tests answer for."""

from __future__ import annotations

import grpc
import pytest

from chaos.errors import HarnessError
from chaos.systems import refimpl
from chaos.systems.refimpl import RefimplCluster
from refimpl.proto import pool_pb2

STORES = ("store-0", "store-1")


class Unavailable(grpc.RpcError):
    """A connection attempt that timed out."""


class Cluster(RefimplCluster):
    """Only what the waiting looks at; the last answer is given again."""

    stores = STORES

    def __init__(self, *answers) -> None:
        self.answers = list(answers)
        self.asked = 0

    def _segments(self):
        self.asked += 1
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if isinstance(answer, Exception):
            raise answer
        return answer


def segments(*names):
    return [pool_pb2.Segment(name=name, status="OK") for name in names]


def test_a_master_too_busy_to_answer_is_asked_again() -> None:
    cluster = Cluster(Unavailable(), segments("store-0"), segments(*STORES))
    cluster._wait_mounted()

    assert cluster.asked == 3


@pytest.mark.parametrize(
    ("answer", "seen"), [(segments("store-1"), "store-1 OK"), (Unavailable(), "none")]
)
def test_stores_that_do_not_come_are_an_error_of_the_harness(
    monkeypatch, answer, seen
) -> None:
    monkeypatch.setattr(refimpl, "_MOUNT_TIMEOUT_S", 0.05)

    with pytest.raises(HarnessError, match=f"not every store is mounted: {seen}"):
        Cluster(answer)._wait_mounted()
