"""The breakers' own logs, kept in the history: what a report draws as a strip.

Engines forget their log when they are emptied for the next test, so it is copied when
a test ends and before its cluster is given up. Nothing is judged from it: whatever goes
wrong here is written down and stops nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from chaos.history.history import History
    from chaos.systems.base import Cluster

MOST_CHANGES = 500
"""Transitions of an engine that are kept of one test, the last ones."""


def note_breakers(history: History, cluster: Cluster, *, since_s: float) -> None:
    """Writes the transitions of every engine since an instant of the run's clock.

    The first engine that does not answer ends it: the others may be as slow, and a
    picture is not worth the wait.
    """
    for engine in cluster.engines:
        try:
            breaker = cluster.engine_state(engine)["hicache"]["breaker"]
            rows = [
                row for row in breaker["transitions"] if float(row["at"]) >= since_s
            ]
        except Exception as error:  # of a system that may be broken on purpose
            history.info("breaker_unknown", engine, why=type(error).__name__)
            return
        history.info("breaker", engine, transitions=rows[-MOST_CHANGES:])
