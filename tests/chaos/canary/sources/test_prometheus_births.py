"""Counters that a target exports only from their first count on: made-up series."""

from __future__ import annotations

import numpy as np
import pytest

from chaos.canary.sources.prometheus import read_prometheus
from chaos.canary.sources.prometheus_api import Series
from chaos.canary.sources.queries import Queries

QUERIES = Queries.model_validate(
    {
        "schema": "canary.queries/1",
        "metrics": {"ttft_s": "ttft"},
        "failed": "failed",
    }
)
BEGIN, END, STEP = 1000.0, 4600.0, 15.0


class Server:
    """A target an arm; failures of the canary are exported from scrape `late` on."""

    def __init__(self, *, late, failed, apart_s=0.0):
        self.late, self.failed, self.apart_s = late, failed, apart_s

    def samples(self, name, inside, start, end):
        times = np.arange(start, end + 1, STEP)
        canary = "canary" in inside
        labels = {"instance": "c:1" if canary else "b:1"}
        if name == "ttft_bucket":
            counts = np.arange(len(times)) * 100.0
            return [
                Series(labels={**labels, "le": le}, times=times, values=counts)
                for le in ("0.5", "+Inf")
            ]
        if name == "failed":
            late = self.late if canary else 0
            values = np.full(len(times) - late, self.failed if canary else 0.0)
            at = times[late:] + self.apart_s
            return [Series(labels=labels, times=at, values=values)]
        return []


def problems(**made):
    server = Server(**made)
    arms = ("x='baseline'", "x='canary'")
    return read_prometheus(server, *arms, BEGIN, END, QUERIES).worst[1].problems


@pytest.mark.parametrize("late", [1, 2])
def test_a_counter_that_appears_with_its_first_failures_forbids_pass(late) -> None:
    (told,) = problems(late=late, failed=30.0)

    assert told == "failed of c:1 appears with 30 counted already"


@pytest.mark.parametrize(
    "made",
    [
        {"late": 0, "failed": 30.0},
        {"late": 1, "failed": 0.0},
        {"late": 0, "failed": 30.0, "apart_s": 0.4},
    ],
    ids=["from the beginning", "from 0 on", "with timestamps of its own"],
)
def test_what_was_counted_before_the_window_is_no_problem(made) -> None:
    assert problems(**made) == ()
