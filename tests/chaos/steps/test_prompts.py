"""A prompt that is kept in the pool before anything is broken."""

from __future__ import annotations

import pytest

from chaos.errors import HarnessError
from chaos.steps import prompts
from chaos.systems.base import Request

ASKED = Request(
    request_id="p",
    session="s",
    at_s=0.0,
    input_length=1024,
    output_length=1,
    hash_ids=(1, 2),
)


class Cluster:
    """Its write-backs fail so often before one succeeds."""

    def __init__(self, failures: int) -> None:
        self.failures = failures
        self.asked: list[str] = []
        self.flushed = 0

    def prefill(self, engine, request, *, timeout_s):
        self.asked.append(request.request_id)

    def owners_of(self, request):
        kept = len(self.asked) > self.failures
        return [("store-0",), ("store-0",) if kept else ()]

    def flush_local(self, engine):
        self.flushed += 1


@pytest.fixture(autouse=True)
def _short(monkeypatch):
    monkeypatch.setattr(prompts, "_KEPT_S", 0.01)


def test_a_prompt_is_asked_for_once_when_its_pages_are_kept() -> None:
    cluster = Cluster(failures=0)
    sample = prompts.keep(cluster, "engine-0", ASKED)

    assert cluster.asked == ["p"]
    assert cluster.flushed == 1
    assert sample.request == ASKED


def test_a_failed_write_back_is_left_to_the_next_request_for_the_prompt() -> None:
    cluster = Cluster(failures=1)
    prompts.keep(cluster, "engine-0", ASKED)

    assert len(cluster.asked) == 2
    assert cluster.flushed == 2


def test_pages_that_never_come_are_an_error_of_the_harness(monkeypatch) -> None:
    monkeypatch.setattr(prompts.wait_for, "__kwdefaults__", {"timeout_s": 0.01})

    with pytest.raises(HarnessError, match="the pool to hold all pages of p"):
        prompts.keep(Cluster(failures=9), "engine-0", ASKED)
