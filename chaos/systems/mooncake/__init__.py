"""The real Mooncake as a system under test (`--system mooncake`).

Its master, its stores and its client are those of the wheel; the harness starts, breaks
and asks them from outside. See `docs/mooncake.md`.
"""

from __future__ import annotations

import dataclasses
import os
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from chaos.errors import NotHere
from chaos.systems.mooncake.package import why_no_etcd, why_not
from chaos.systems.mooncake.plan import VARIABLE, ClientPlan

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from chaos.systems.base import Cluster, ClusterSpec, KvProbe
    from chaos.systems.mooncake.cluster import MooncakeCluster
    from chaos.targets.base import Target

__all__ = ["MooncakeSystem", "start_mooncake", "system", "why_no_etcd", "why_not"]


class MooncakeSystem:
    """Starts clusters of Mooncake on a target."""

    name = "mooncake"

    def start(self, spec: ClusterSpec, target: Target, proxy: Any) -> Cluster:
        """A running cluster; nothing is left of one that does not come up.

        Raises:
            NotHere: The wheel, or something it needs, is missing here.
        """
        from chaos.systems.mooncake.cluster import MooncakeCluster

        _refuse_without_wheel()
        cluster = MooncakeCluster(spec, target, proxy)
        try:
            cluster.start()
        except BaseException:
            cluster.stop()
            raise
        return cluster

    def plan(self, spec: ClusterSpec, target: Target) -> tuple[Cluster, list[str]]:
        """The cluster as it would be, and the commands that would start it."""
        from chaos.systems.mooncake.cluster import MooncakeCluster

        _refuse_without_wheel()
        cluster = MooncakeCluster(spec, target, None)
        return cluster, [" ".join(cluster.argv(role)) for role in cluster.roles]

    def probe(self, master: str, host: str, spec: ClusterSpec) -> KvProbe:
        """A client in a worker of this process; its plan comes by environment."""
        from chaos.systems.mooncake.probe import MooncakeProbe

        plan = ClientPlan.from_json(os.environ[VARIABLE])
        return MooncakeProbe(dataclasses.replace(plan, master=master), host)


def system() -> MooncakeSystem:
    return MooncakeSystem()


@contextmanager
def start_mooncake(
    run_dir: Path,
    *,
    stores: int = 3,
    profile: str = "default",
    engines: int = 0,
    masters: int = 1,
    oplog: bool = False,
    metadata: str = "p2p",
    aslr: bool = True,
    store_bytes: int = 64 << 20,
    placement: str = "random",
    master: dict[str, Any] | None = None,
    env: dict[str, str] | None = None,
    client: dict[str, str] | None = None,
    target: str = "local",
    **more: Any,
) -> Iterator[MooncakeCluster]:
    """A small cluster for one test, ended whatever happens.

        with start_mooncake(tmp_path, stores=3, profile="tuned") as cluster:
            probe = cluster.probe()
            assert probe.write(["a"], timeout_s=10) == [0]

    `master` are flags of the master, `env` variables for stores and clients, `client`
    for clients alone; `more` are further fields of `ClusterSpec`.

    Raises:
        NotHere: The wheel, or something it needs, is missing here.
    """
    from chaos.clusters import Clusters
    from chaos.systems.base import ClusterSpec
    from chaos.targets.place import Place

    own = {
        "profile": profile,
        "masters": masters,
        "oplog": oplog,
        "metadata": metadata,
        "aslr": aslr,
    }
    overrides = {
        "mooncake": own,
        "master": master or {},
        "env": env or {},
        "client": client or {},
        **more.pop("overrides", {}),
    }
    spec = ClusterSpec(
        stores=stores,
        engines=engines,
        store_bytes=store_bytes,
        placement=placement,
        overrides=overrides,
        **more,
    )
    clusters = Clusters(
        system="mooncake",
        run_dir=run_dir,
        command="start_mooncake",
        place=Place(kind=target),
    )
    try:
        yield clusters.get(spec)  # type: ignore[misc]
    finally:
        clusters.close()


def _refuse_without_wheel() -> None:
    reason = why_not()
    if reason:
        raise NotHere(capability="mooncake", target="local", reason=reason)
