"""What the roles cost the host: threads, open files and memory, over time.

Read from /proc of the processes that the target started, so it holds for every system
whose roles run on this machine.
"""

from __future__ import annotations

import os
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Self

from chaos.safety.identity import is_alive

if TYPE_CHECKING:
    from collections.abc import Callable

    from chaos.systems.base import Cluster, Process

_PAGE = os.sysconf("SC_PAGE_SIZE")
_STEP_S = 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class Footprint:
    """One process at one instant."""

    threads: int
    files: int
    rss_bytes: int


def footprint_of(process: Process) -> Footprint | None:
    """What a process has now, None when it is gone."""
    root = Path(f"/proc/{process.pid}")
    try:
        threads = sum(1 for _ in (root / "task").iterdir())
        files = sum(1 for _ in (root / "fd").iterdir())
        resident = int((root / "statm").read_text(encoding="ascii").split()[1])
    except (FileNotFoundError, ProcessLookupError, IndexError):
        return None
    if not is_alive(process.pid, process.start_ticks):
        return None
    return Footprint(threads=threads, files=files, rss_bytes=resident * _PAGE)


def footprints(cluster: Cluster) -> dict[str, Footprint]:
    """Every role that runs."""
    roles = (*cluster.masters, *cluster.stores, *cluster.engines)
    found = {}
    for role in roles:
        process = cluster.process(role)
        seen = footprint_of(process) if process is not None else None
        if seen is not None:
            found[role] = seen
    return found


def counts(found: dict[str, Footprint]) -> dict[str, int]:
    """Threads and files by role, as `judge_baseline` takes them."""
    return {
        f"{role} {what}": number
        for role, one in found.items()
        for what, number in (("threads", one.threads), ("files", one.files))
    }


@dataclass(slots=True)
class MemoryWatch:
    """Notes the resident memory of every role twice a second while its block runs."""

    cluster: Cluster
    clock: Callable[[], float] = time.monotonic
    series: dict[str, list[tuple[float, float]]] = field(default_factory=dict)
    _ended: threading.Event = field(default_factory=threading.Event)
    _thread: threading.Thread | None = None

    def __enter__(self) -> Self:
        self._thread = threading.Thread(target=self._body, name="memory", daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_exc: object) -> None:
        self._ended.set()
        if self._thread is not None:
            self._thread.join(5.0)

    def _body(self) -> None:
        while not self._ended.wait(_STEP_S):
            now = self.clock()
            for role, one in footprints(self.cluster).items():
                self.series.setdefault(role, []).append((now, float(one.rss_bytes)))
