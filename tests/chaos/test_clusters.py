"""A cluster is used again, and replaced when it cannot be."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from chaos.clusters import Clusters
from chaos.errors import HarnessError, HostUnreachable, NeedsNewCluster
from chaos.systems.base import ClusterSpec


class FakeCluster:
    def __init__(self, error=None):
        self.error = error
        self.resets = 0
        self.stopped = False

    def reset(self):
        self.resets += 1
        if self.error is not None:
            raise self.error

    def stop(self):
        self.stopped = True


@pytest.fixture
def made(monkeypatch, tmp_path):
    """Clusters of fakes; `made.started` are those that were started."""
    started = []
    clusters = Clusters(system="refimpl", run_dir=tmp_path, command="test")

    def start(spec, target, proxy):
        started.append(FakeCluster())
        return started[-1]

    target = SimpleNamespace(close=lambda: None)
    monkeypatch.setattr(clusters, "_system", SimpleNamespace(start=start))
    monkeypatch.setattr(clusters, "_new_target", lambda: target)
    monkeypatch.setattr(Clusters, "proxy", None)
    clusters.started = started
    return clusters


def test_the_same_shape_is_reset_and_used_again(made):
    first = made.get(ClusterSpec())
    assert made.get(ClusterSpec()) is first
    assert first.resets == 1


def test_a_cluster_that_cannot_be_emptied_is_replaced(made):
    first = made.get(ClusterSpec())
    first.error = NeedsNewCluster("bytes stay allocated")
    second = made.get(ClusterSpec())
    assert second is not first
    assert first.stopped


def test_a_cluster_whose_host_went_away_is_replaced(made):
    first = made.get(ClusterSpec())
    first.error = HostUnreachable(host="h1", op="faults", reason="rebooted")
    assert made.get(ClusterSpec()) is not first
    assert first.stopped


def test_broken_laws_are_not_hidden_by_a_new_cluster(made):
    made.get(ClusterSpec()).error = HarnessError("broken laws")
    with pytest.raises(HarnessError, match="broken laws"):
        made.get(ClusterSpec())
    assert len(made.started) == 1
