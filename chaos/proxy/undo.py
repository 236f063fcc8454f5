"""Takes toxics back, even from a server that hangs on them.

Toxiproxy holds the lock of a proxy while it waits for that proxy's data path. With a
client gone and much data held back it hands over one chunk in 5 s, and meanwhile no
call about the proxy, not even a read, is answered; once its accept loop waits for the
lock as well, deleting the proxy blocks the whole server (Toxiproxy#558, #159, #412).
So undoing goes from the gentle to the certain, each step with a deadline of its own:

1. remove the toxics: connections live on;
2. disable and enable the proxy, remove again: connections are closed;
3. delete the proxy and make it again, without them;
4. only a server of ours: kill it, start it on the same address, make every proxy again.

Nothing is believed that was not read back. The steps work on all proxies at once. A
server that died, other than one that hangs, is not started again: its faults ended when
it did, and what was measured since is worth nothing.
"""

from __future__ import annotations

import logging
import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal
from urllib.parse import quote

from chaos.errors import (
    ChaosError,
    ProxyError,
    ProxyRefused,
    ProxyUnreachable,
    ResidualFault,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from chaos.proxy.client import ProxyClient, ProxyInfo
    from chaos.proxy.known import KnownProxies

    Step = Callable[["_Job"], "Removal | None"]

Removal = Literal["absent", "removed", "closed", "recreated", "restarted"]
#: Deadlines of the calls of a step, seconds: a server that does not hang needs 5 ms.
#: All four steps together stay under 5 s while no more than `_THREADS` proxies hang.
REMOVE_S = 0.5
READ_S = 0.5
CLOSE_S = 0.15
RECREATE_S = 0.4
#: Ours never hangs, but it may be slow on a busy host: cutting its connections, or its
#: counters, for that would be a fault that nobody ordered.
_PATIENCE_WITH_OURS = 4
_THREADS = 32
_NOT_FOUND = 404
_LOG = logging.getLogger(__name__)
_IN_WORDS = {
    "absent": "nothing was left to remove",
    "removed": "removed",
    "closed": "removed by closing the connections",
    "recreated": "removed by making the proxy again",
    "restarted": "removed by restarting the proxy server",
}
_STEPS: tuple[Removal, ...] = ("absent", "removed", "closed", "recreated", "restarted")


@dataclass(frozen=True, slots=True, kw_only=True)
class Undone:
    """How far undoing had to go: the furthest step, and for which proxies."""

    removal: Removal
    hung: tuple[str, ...] = ()

    def __str__(self) -> str:
        words = _IN_WORDS[self.removal]
        return f"{words} ({', '.join(self.hung)} hung)" if self.hung else words


@dataclass(slots=True, kw_only=True)
class _Job:
    """The toxics to take from one proxy."""

    proxy: str
    toxics: tuple[str, ...]
    first_s: float
    before: ProxyInfo | None = None
    reason: str = ""
    died: bool = False

    def failed(self, error: ChaosError) -> None:
        self.reason = str(error)
        self.died = isinstance(error, ProxyUnreachable) and not error.hung

    def residual(self, reason: str) -> ResidualFault:
        fault = ", ".join(self.toxics) or "a hung data path"
        return ResidualFault(fault=fault, target=self.proxy, reason=reason)

    @property
    def path(self) -> str:
        return f"/proxies/{quote(self.proxy, safe='')}"


class Undo:
    """The way back of one client; `counts` tells how often each step was the last.

    Args:
        client: whose toxics are taken back.
        known: what that client made.
        restart: kills the server and starts it on the same address; None when it is
            not ours.
    """

    def __init__(
        self,
        client: ProxyClient,
        known: KnownProxies,
        restart: Callable[[], None] | None,
    ) -> None:
        self.counts: Counter[str] = Counter()
        self._client = client
        self._known = known
        self._restart = restart
        self._lock = threading.Lock()
        self._generation = 0

    @property
    def generation(self) -> int:
        """How often the server was restarted."""
        return self._generation

    def patience_s(self, deadline_s: float) -> float:
        """A deadline of a step, for the server that this is."""
        ours = self._client.flavour == "embedded"
        return deadline_s * (_PATIENCE_WITH_OURS if ours else 1)

    def restarted_since(self, generation: int, *, hung: bool) -> bool:
        """Restarts a hung server of ours, once for all who wait for it together.

        Those who still wait when it is killed see it die; it is there again for them.
        """
        with self._lock:
            if self._generation == generation:
                if self._restart is None or not hung:
                    return False
                self._anew({})
        return True

    def toxics(self, placed: Iterable[tuple[str, str]], first_s: float) -> Undone:
        """Takes toxics, given as (proxy, name), from their proxies, verified.

        Raises:
            ResidualFault: nothing helped.
        """
        jobs = _jobs(placed, first_s)
        with self._lock:
            furthest: Removal = "absent"
            hung: list[str] = []
            left = jobs
            for step in (self._remove, self._close, self._recreate):
                results = _at_once(step, left)
                done = [removal for removal in results if removal is not None]
                furthest = max([furthest, *done], key=_STEPS.index)
                left = _undone(left, results)
                hung = hung or [job.proxy for job in left]
                if not left:
                    break
            if left:
                self._anew_for(left, jobs)
                furthest = "restarted"
            return self._concluded(jobs, furthest, tuple(hung))

    def everything(self, names: frozenset[str] | None) -> None:
        """Takes all toxics off proxies of which at least one hangs; None means all.

        Raises:
            ResidualFault: nothing helped.
        """
        with self._lock:
            infos = [i for i in self._known.all() if names is None or i.name in names]
            jobs = [_all_of(info) for info in infos]
            if self._restart is None:
                jobs = _undone(jobs, _at_once(self._answering, jobs))
                jobs = _undone(jobs, _at_once(self._recreate, jobs))
            if jobs:
                self._anew_for(jobs, jobs)
                self.counts["restarted"] += 1

    # The steps: how far they came, or None when the toxics may still be there.

    def _remove(self, job: _Job) -> Removal | None:
        try:
            self._look_before(job)
            found = [self._delete_toxic(job, name, job.first_s) for name in job.toxics]
            if not self._clean(job):
                return None
        except ProxyRefused as error:
            if error.status == _NOT_FOUND:  # the proxy is gone, and its toxics with it
                return "absent"
            job.failed(error)
            return None
        except ProxyError as error:
            job.failed(error)
            return None
        return "removed" if any(found) else "absent"

    def _close(self, job: _Job) -> Removal | None:
        """Disables and enables, then removes again.

        A server that hangs on a toxic may close the connections and then hang in its
        answer; closing them is what frees it, so the second order is worth a try.
        """
        if job.before is None:
            return None
        answered = True
        for enabled in (False, job.before.enabled):
            try:
                order = {"enabled": enabled}
                self._client.call(
                    "post", job.path, order, timeout_s=self.patience_s(CLOSE_S)
                )
                answered = True
            except ProxyError:
                answered = False
        if not answered:
            return None
        again = replace(job, first_s=self.patience_s(CLOSE_S))
        return "closed" if self._remove(again) is not None else None

    def _recreate(self, job: _Job) -> Removal | None:
        if job.before is None:
            return None
        kept = [t for t in job.before.toxics if t.full_name not in job.toxics]
        try:
            self._client.call("delete", job.path, timeout_s=self.patience_s(RECREATE_S))
        except ProxyRefused as error:
            job.failed(error)
            if error.status != _NOT_FOUND:
                return None
        except ProxyError as error:
            job.failed(error)
            return None
        try:
            self._make(
                replace(job.before, toxics=tuple(kept)),
                timeout_s=self.patience_s(RECREATE_S),
            )
        except ChaosError as error:
            job.failed(error)
            return None
        return "recreated"

    def _answering(self, job: _Job) -> Removal | None:
        """Whether a read of the proxy is answered: what does not hang can wait."""
        try:
            self._client.toxics(job.proxy, timeout_s=self.patience_s(READ_S))
        except ProxyError as error:
            job.failed(error)
            return None
        return "absent"

    def _anew_for(self, left: Sequence[_Job], jobs: Sequence[_Job]) -> None:
        """The last step, for what is left; the others stay as they are now."""
        worst = left[0]
        if worst.died:
            raise worst.residual(f"the server died, with all faults: {worst.reason}")
        if self._restart is None:
            raise worst.residual(
                f"{worst.reason}; the server at {self._client.url} was started by"
                " somebody else, who must restart it, then run `chaos recover`"
            )
        _LOG.warning("the proxy server is restarted: %s", worst.reason)
        try:
            self._anew({job.proxy: job.toxics for job in jobs})
            still = [job for job in left if not self._clean(job)]
        except ChaosError as error:
            raise worst.residual(f"after a restart of the server: {error}") from error
        if still:
            raise still[0].residual("there even after a restart of the server")

    def _anew(self, without: Mapping[str, Sequence[str]]) -> None:
        """Restarts our server; every known proxy again, less the toxics named.

        What other faults armed stays armed; connections are cut once.

        Raises:
            ProxyError: a proxy cannot be made again.
            ProcessFailed: the server does not start.
        """
        assert self._restart is not None
        self._generation += 1
        self._restart()
        for info in self._known.all():
            names = without.get(info.name, ())
            kept = [toxic for toxic in info.toxics if toxic.full_name not in names]
            self._make(replace(info, toxics=tuple(kept)), timeout_s=None)

    # Parts of steps.

    def _look_before(self, job: _Job) -> None:
        """What to make again; read only when this client did not make it."""
        job.before = self._known.get(job.proxy)
        if job.before is None:
            job.before = self._client.proxy(
                job.proxy, timeout_s=self.patience_s(READ_S)
            )

    def _delete_toxic(self, job: _Job, name: str, timeout_s: float) -> bool:
        """Orders one toxic deleted; False when there is none of this name."""
        path = f"{job.path}/toxics/{quote(name, safe='')}"
        try:
            self._client.call("delete", path, timeout_s=timeout_s)
        except ProxyRefused as error:
            return error.status != _NOT_FOUND  # refused: the list tells what is there
        return True

    def _clean(self, job: _Job) -> bool:
        """Whether none of the toxics is on the proxy, as seen and not as said.

        A proxy that is not there has none.
        """
        try:
            left = self._client.toxics(job.proxy, timeout_s=self.patience_s(READ_S))
        except ProxyRefused as error:
            if error.status == _NOT_FOUND:
                return True
            raise
        still = [name for name in job.toxics if name in left]
        if still:
            job.reason = f"{', '.join(still)} read back after the removal"
        return not still

    def _make(self, info: ProxyInfo, *, timeout_s: float | None) -> None:
        self._client.create(
            info.name, info.listen, info.upstream, info.toxics, timeout_s=timeout_s
        )
        if not info.enabled:
            self._client.set_enabled(info.name, False)

    def _concluded(
        self, jobs: Sequence[_Job], furthest: Removal, hung: tuple[str, ...]
    ) -> Undone:
        for job in jobs:
            self._known.disarmed(job.proxy, job.toxics)
        self.counts[furthest] += 1
        undone = Undone(removal=furthest, hung=hung)
        if hung:
            _LOG.warning("toxics were %s", undone)
        return undone


def _jobs(placed: Iterable[tuple[str, str]], first_s: float) -> list[_Job]:
    toxics: dict[str, list[str]] = {}
    for proxy, name in placed:
        toxics.setdefault(proxy, []).append(name)
    return [
        _Job(proxy=proxy, toxics=tuple(names), first_s=first_s)
        for proxy, names in toxics.items()
    ]


def _all_of(info: ProxyInfo) -> _Job:
    """Every toxic that was armed on a proxy."""
    names = tuple(toxic.full_name for toxic in info.toxics)
    reason = "no answer to GET /proxies"
    return _Job(
        proxy=info.name, toxics=names, first_s=READ_S, before=info, reason=reason
    )


def _at_once(step: Step, jobs: Sequence[_Job]) -> list[Removal | None]:
    """One step on every proxy, together: their deadlines must not add up."""
    if len(jobs) < 2:
        return [step(job) for job in jobs]
    with ThreadPoolExecutor(_THREADS, thread_name_prefix="undo") as helpers:
        return list(helpers.map(step, jobs))


def _undone(jobs: Sequence[_Job], results: Sequence[Removal | None]) -> list[_Job]:
    return [job for job, done in zip(jobs, results, strict=True) if done is None]
