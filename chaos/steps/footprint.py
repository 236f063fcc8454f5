"""What the roles cost the host: threads, open files and memory, over time.

Read from /proc of the processes that the target started: of this machine, or of their
host through its agent.
"""

from __future__ import annotations

import os
import re
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Self

from chaos.safety.identity import is_alive

if TYPE_CHECKING:
    from collections.abc import Callable

    from chaos.hosts.link import Agent
    from chaos.systems.base import Cluster, Process

_PAGE = os.sysconf("SC_PAGE_SIZE")
_STEP_S = 0.5
_START_FIELD = 19
"""Of /proc/<pid>/stat behind the name: ticks from boot to the start."""
_KIB = re.compile(r"^VmRSS:\s+(\d+) kB$", re.MULTILINE)


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


def footprint_on(agent: Agent, process: Process) -> Footprint | None:
    """The same on a host, asked of its agent with two commands that only read."""
    root = f"/proc/{process.pid}"
    said = agent.run(["cat", f"{root}/stat", f"{root}/status"])
    listed = agent.run(
        ["find", f"{root}/task", f"{root}/fd", "-mindepth", "1", "-maxdepth", "1"]
    )
    stat, _, status = said.stdout.partition("\n")
    fields = stat.rpartition(")")[2].split()
    if len(fields) <= _START_FIELD or int(fields[_START_FIELD]) != process.start_ticks:
        return None
    resident = _KIB.search(status)
    if resident is None:  # it has ended: no memory is left to tell of
        return None
    lines = listed.stdout.splitlines()
    return Footprint(
        threads=sum(line.startswith(f"{root}/task/") for line in lines),
        files=sum(line.startswith(f"{root}/fd/") for line in lines),
        rss_bytes=int(resident[1]) << 10,
    )


def footprints(cluster: Cluster) -> dict[str, Footprint]:
    """Every role that runs."""
    roles = (*cluster.masters, *cluster.stores, *cluster.engines)
    found = {}
    for role in roles:
        process = cluster.process(role)
        seen = _seen(cluster, process) if process is not None else None
        if seen is not None:
            found[role] = seen
    return found


def _seen(cluster: Cluster, process: Process) -> Footprint | None:
    if cluster.hosts is None:
        return footprint_of(process)
    return footprint_on(cluster.hosts.of(process.role).agent, process)


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
