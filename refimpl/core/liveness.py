"""Which clients are alive, and when silence is the master's own fault.

A master that was stopped, or that did not come round, hears nobody; expiring everybody
then would erase the whole index (Mooncake#3937). Silence of most clients at once, or a
tick that is itself late, is therefore forgiven once a stall, by one more ttl.
"""

from __future__ import annotations

from dataclasses import dataclass

_LATE = 0.6
"""A tick this many ttls after the last one is late: half a ttl, and a tenth for the
tick itself."""


@dataclass(slots=True)
class _Client:
    seen: float
    deadline: float
    forgiven: bool = False
    """Its deadline was extended and it was not heard since."""


class Liveness:
    """Heartbeats in, expired clients out.

    `heartbeat` only reads a dict and writes to one record: a thread that
    calls it while `expire` runs can at worst refresh a record that is already out.
    """

    def __init__(self, ttl_s: float) -> None:
        self._ttl_s = ttl_s
        self._clients: dict[int, _Client] = {}
        self._ticked: float | None = None
        self.deferred = 0
        """Stalls that were forgiven so far."""

    def __len__(self) -> int:
        return len(self._clients)

    def known(self) -> frozenset[int]:
        """The clients that count as alive."""
        return frozenset(self._clients)

    def register(self, client: int, now: float) -> None:
        """Makes a client known, or refreshes it."""
        self._clients.setdefault(client, _Client(now, now))
        self.heartbeat(client, now)

    def forget(self, client: int) -> None:
        """A client that left in order is not waited for."""
        self._clients.pop(client, None)

    def heartbeat(self, client: int, now: float) -> bool:
        """Returns whether the client is known; an unknown one has to remount."""
        record = self._clients.get(client)
        if record is None:
            return False
        record.seen = max(record.seen, now)
        record.deadline = max(record.deadline, now + self._ttl_s)
        record.forgiven = False
        return True

    def silence_s(self, client: int, now: float) -> float:
        """Seconds since the client was heard; infinite when it is not known."""
        record = self._clients.get(client)
        return float("inf") if record is None else now - record.seen

    def expire(self, now: float) -> list[int]:
        """Forgets and returns the clients whose time is up, our own stalls apart."""
        late = self._ticked is not None and now - self._ticked > self._ttl_s * _LATE
        self._ticked = now
        silent = [c for c, record in self._clients.items() if record.deadline <= now]
        most = len(self._clients) >= 2 and len(silent) * 2 > len(self._clients)
        if late or most:
            forgiven = [c for c in silent if self._clients[c].forgiven]
            if late or len(forgiven) < len(silent):
                self._forgive(now)
            silent = forgiven
        for client in silent:
            del self._clients[client]
        return silent

    def _forgive(self, now: float) -> None:
        """Gives everybody one more ttl, but nobody twice without a beat in between.

        So a client that really died is expired one ttl late and no later, however often
        the master stalls.
        """
        unforgiven = [r for r in self._clients.values() if not r.forgiven]
        self.deferred += bool(unforgiven)
        for record in unforgiven:
            record.deadline = max(record.deadline, now + self._ttl_s)
            record.forgiven = True
