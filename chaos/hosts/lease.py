"""Keeps the lease of a host alive while the run lives, and says when it is lost.

A thread a host: a host that answers slowly never delays the renewal of another. What
is lost is told, never hidden: without its lease a host has healed itself, so a verdict
about what happens under a fault there means nothing from that instant on.
"""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING

from chaos.errors import AgentError, HostUnreachable

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from chaos.hosts.link import Agent

RENEWALS_PER_TTL = 3
_LONGEST_RETRY_S = 1.0
_JOIN_S = 15.0


class Lease:
    """Renews every `ttl_s / 3` from a thread of its own, until closed or lost.

    Args:
        agent: On the host.
        ttl_s: How long the host holds faults and roles after the last renewal.
        on_lost: Told once, from the thread, why the host is lost.
        clock: Seconds.
    """

    def __init__(
        self,
        agent: Agent,
        *,
        ttl_s: float,
        on_lost: Callable[[str], None] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.ttl_s = ttl_s
        self.lost = ""
        self.renewals = 0
        self._agent = agent
        self._on_lost = on_lost
        self._clock = clock
        self._failed: dict[str, str] = {}
        self._closed = threading.Event()
        name = f"lease {agent.name}"
        self._thread = threading.Thread(target=self._keep, name=name, daemon=True)

    @property
    def failed(self) -> Mapping[str, str]:
        """Faults that a renewal could not extend, and why; the last word on each."""
        return dict(self._failed)

    def start(self) -> Lease:
        self._thread.start()
        return self

    def close(self) -> None:
        """Renews no more; the agent goes on until its lease ends. Again is harmless."""
        self._closed.set()
        if self._thread.is_alive():
            self._thread.join(_JOIN_S)

    def _keep(self) -> None:
        renewed_at = self._clock()
        pause_s = 0.0
        while not self._closed.wait(pause_s):
            problem = self._renew()
            if not problem:
                renewed_at = self._clock()
                pause_s = self.ttl_s / RENEWALS_PER_TTL
                continue
            if self.lost or self._clock() - renewed_at >= self.ttl_s:
                self._lose(problem)
                return
            pause_s = min(_LONGEST_RETRY_S, self.ttl_s / 10)

    def _renew(self) -> str:
        """Renews once; why it failed, "" when it did not."""
        try:
            renewed = self._agent.renew(
                self.ttl_s, timeout_s=self.ttl_s / RENEWALS_PER_TTL
            )
        except AgentError as error:
            self.lost = str(error)
            return self.lost
        except HostUnreachable as error:
            if error.gone:
                self.lost = str(error)
            return str(error)
        self.renewals += 1
        self._failed.update(renewed.failed)
        return ""

    def _lose(self, problem: str) -> None:
        self.lost = self.lost or problem
        if self._on_lost is not None and not self._closed.is_set():
            self._on_lost(self.lost)
