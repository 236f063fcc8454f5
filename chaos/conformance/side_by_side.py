"""One fault, three columns: the pool bare, the pool behind HiCache, the reference.

Each column has a cluster of its own, fresh, since a fault leaves traces in Mooncake's
clients that outlive it by a minute.
"""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

from chaos.clusters import Clusters
from chaos.conformance.bare import measure_bare
from chaos.conformance.engine import measure_engine
from chaos.conformance.stage import STORES, Stage, identity_of
from chaos.faults.injector import Injector

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from chaos.conformance.faults import NamedFault
    from chaos.conformance.measured import Measured
    from chaos.faults.base import Receipt
    from chaos.safety.ledger import Ledger
    from chaos.systems.base import Cluster, ClusterSpec
    from chaos.targets.place import Place

REFERENCE: Final = "refimpl"


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """How long a fault lasts, and how long one call is waited for, in seconds.

    Mooncake's own waits are of half a minute and a minute, and do not scale.
    """

    window_s: float
    patience_s: float


SPANS: Final = {
    "default": Span(window_s=35.0, patience_s=90.0),
    "tuned": Span(window_s=6.0, patience_s=20.0),
}


def shape(fault: NamedFault, *, engines: int) -> dict[str, Any]:
    """A small cluster whose pages lie on all of its stores.

    A prefix of one page is worth its read here, so that every healthy page counts.
    """
    engine = {
        "replicas": fault.replicas,
        "mooncake_near": False,
        "prefetch_threshold_tokens": 1,
    }
    return {
        "stores": STORES + fault.replicas - 1,
        "engines": engines,
        "rails": 1,
        "placement": "random",
        "overrides": {"engine": engine},
    }


def columns_of(
    fault: NamedFault,
    cluster_of: Callable[..., Cluster],
    inject: Injector,
    *,
    reproduce: str = "",
) -> list[Measured]:
    """The system under test, bare and behind HiCache."""
    bare = cluster_of(**shape(fault, engines=0))
    rows = measure_bare(_stage(fault, bare, inject, reproduce))
    protected = cluster_of(**shape(fault, engines=1))
    return rows + measure_engine(_stage(fault, protected, inject, reproduce))


def reference_column(
    fault: NamedFault, clusters: Clusters, spec: ClusterSpec, *, reproduce: str = ""
) -> tuple[list[Measured], list[Receipt]]:
    """The reference system under the same fault, behind the same HiCache."""
    cluster = clusters.get(replace(spec, **shape(fault, engines=1)))
    injector = Injector(lambda: cluster, lambda: clusters.control, clusters.ledger)
    try:
        rows = measure_engine(_stage(fault, cluster, injector, reproduce))
    finally:
        injector.revert_all()
    return rows, injector.receipts


class Beside(Clusters):
    """Clusters beside those of the run, on its ledger: a process has one file of it.

    The run ends its ledger itself.
    """

    def __init__(self, ledger: Ledger, **named: Any) -> None:
        super().__init__(**named)
        self._ledger = ledger

    def close(self) -> None:
        """Stops everything; the ledger stays open."""
        self._ledger = None
        super().close()


@contextmanager
def reference(
    run_dir: Path, *, ledger: Ledger, place: Place, command: str, seed: int
) -> Iterator[Clusters]:
    """Clusters of the reference system beside those of the run, ended afterwards."""
    clusters = Beside(
        ledger,
        system=REFERENCE,
        run_dir=run_dir / REFERENCE,
        command=command,
        place=place,
        seed=seed,
    )
    try:
        yield clusters
    finally:
        clusters.close()


def _stage(
    fault: NamedFault, cluster: Cluster, inject: Injector, reproduce: str
) -> Stage:
    identity = identity_of(cluster)
    span = SPANS.get(identity.settings, SPANS["default"])
    if identity.system == REFERENCE:
        span = SPANS["tuned"]  # its own waits scale, and are short
    return Stage(
        cluster=cluster,
        inject=inject,
        fault=fault,
        identity=identity,
        window_s=span.window_s,
        patience_s=span.patience_s,
        reproduce=reproduce,
    )
