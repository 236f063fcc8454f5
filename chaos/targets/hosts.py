"""A target of hosts: everything that runs or breaks there is the work of its agents.

What namespaces and machines behind SSH have in common: roles are started, watched and
ended by the agent of their host, the lease of every host is renewed while the target is
open, and closing it heals and ends what is left on all of them at once.
"""

from __future__ import annotations

import logging
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, Final, TypeVar

from chaos.errors import AgentError, ChaosError, ProcessFailed, ResidualFault
from chaos.hosts.lease import Lease
from chaos.systems.base import Process
from chaos.systems.layout import MASTER, PROBE

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from chaos.hosts.host import Host
    from chaos.systems.base import ClusterSpec

T = TypeVar("T")
TTL_S: Final = 30.0
RUN_CHARACTERS: Final = 24
"""Of a run's name: a socket path holds it twice, and has 107 characters."""
_ALWAYS: Final = frozenset({"hosts", "kill", "pause", "restart", "failpoints"})
_HELPERS: Final = 8
_LOG_BYTES: Final = 256 << 10
_LOG = logging.getLogger(__name__)


class HostSet:
    """The hosts of a target, by the roles that run on them."""

    def __init__(self, hosts: Sequence[Host] = ()) -> None:
        self._hosts = tuple(hosts)
        self._of = {role: host for host in hosts for role in host.roles}

    @property
    def all(self) -> tuple[Host, ...]:
        return self._hosts

    def of(self, role: str) -> Host:
        """The host that a role runs on."""
        if role not in self._of:
            raise ProcessFailed(process=role, reason="has no host here")
        return self._of[role]


class HostTarget:
    """What the netns and the ssh target share; `prepare` and `address` are theirs.

    Args:
        run_dir: copies of the ends of the roles' logs go there when it closes.
        run: names this run on every host.
        ttl_s: a host that hears nothing for so long heals itself.
        controller: who we are, for a second run that is refused.
    """

    name = "hosts"

    def __init__(
        self, *, run_dir: Path, run: str, ttl_s: float = TTL_S, controller: str = ""
    ) -> None:
        if not 1 <= len(run) <= RUN_CHARACTERS:
            message = f"a run's name has 1..{RUN_CHARACTERS} characters: {run!r}"
            raise ValueError(message)
        self.run_dir = run_dir
        self.run_dir.mkdir(parents=True, exist_ok=True)
        self.run = run
        self.ttl_s = ttl_s
        self.controller = controller
        self._hosts = HostSet()
        self._leases: dict[str, Lease] = {}
        self._started: set[str] = set()
        self._why_not: dict[str, str] | None = None

    # -- what is here ------------------------------------------------------------

    @property
    def hosts(self) -> HostSet:
        return self._hosts

    @property
    def capabilities(self) -> frozenset[str]:
        """What every host can do, by its agent's probe."""
        found, _ = self._probed()
        return found

    def why_not(self, capability: str) -> str:
        """The reason of the probe of the first host that cannot; "" when all can."""
        found, reasons = self._probed()
        if capability in found:
            return ""
        fallback = f"hosts of the {self.name} target have no such thing"
        return reasons.get(capability, fallback)

    @property
    def lost(self) -> dict[str, str]:
        """Why, by host, of those whose lease was lost: they have healed themselves."""
        leases = self._leases.items()
        return {name: lease.lost for name, lease in leases if lease.lost}

    @property
    def broken_promises(self) -> tuple[str, ...]:
        """Leases that were lost, and faults that a renewal could not extend.

        What was broken there has healed at an instant that nobody knows.
        """
        leases = self._leases.items()
        lost = [f"{name}: {lease.lost}" for name, lease in leases if lease.lost]
        failed = [
            f"{name}: {fault} was not renewed: {why}"
            for name, lease in leases
            for fault, why in lease.failed.items()
        ]
        return (*lost, *failed)

    def python(self, role: str) -> str:
        """The interpreter that starts a role where it runs."""
        raise NotImplementedError

    # -- roles -------------------------------------------------------------------

    def spawn(
        self, role: str, argv: Sequence[str], env: Mapping[str, str] | None = None
    ) -> Process:
        """Starts a role on its host and returns at once."""
        try:
            started = self._hosts.of(role).agent.spawn(
                role, argv, env=self._environment(role, env or {})
            )
        except AgentError as error:
            raise ProcessFailed(process=role, reason=error.reason) from error
        self._started.add(role)
        return Process(role=role, pid=started.pid, start_ticks=started.start_ticks)

    def wait_ready(self, role: str, marker: str, *, timeout_s: float) -> str:
        """Waits for the line with the marker.

        Raises:
            ProcessFailed: The role ended, or was not ready in time.
        """
        try:
            agent = self._hosts.of(role).agent
            return agent.wait_line(role, marker, timeout_s=timeout_s)
        except AgentError as error:
            reason = str(error.detail.get("reason") or error.reason)
            detail = str(error.detail.get("tail") or "")
            raise ProcessFailed(process=role, reason=reason, detail=detail) from error

    def process(self, role: str) -> Process | None:
        """The live process of a role; its pid is the one on its host."""
        state = self._hosts.of(role).agent.role(role)
        if not state.alive:
            return None
        return Process(role=role, pid=state.pid, start_ticks=state.start_ticks)

    def stop(self, role: str, *, timeout_s: float) -> int:
        """SIGTERM, and SIGKILL to the whole group when the time is up."""
        return self._hosts.of(role).agent.stop(role, timeout_s=timeout_s)

    def close(self) -> None:
        """Heals and ends everything on all hosts at once. Safe to call twice.

        Raises:
            ResidualFault: A host is still broken; all others were healed.
        """
        hosts, self._hosts = self._hosts.all, HostSet()
        left = _everywhere(self._end, hosts)
        self._started.clear()
        self._leases.clear()
        for host, residual in zip(hosts, left, strict=True):
            if residual:
                raise ResidualFault(
                    fault="a fault", target=f"host {host.name}", reason=residual
                )

    # -- inside ------------------------------------------------------------------

    def _open(self, hosts: Sequence[Host]) -> None:
        """Starts the agents of all hosts at once, and renews their leases."""
        self._hosts = HostSet(hosts)
        _everywhere(self._begin, hosts)

    def _begin(self, host: Host) -> None:
        host.agent.start(run=self.run, ttl_s=self.ttl_s, controller=self.controller)
        lease = Lease(host.agent, ttl_s=self.ttl_s)
        self._leases[host.name] = lease.start()

    def _end(self, host: Host) -> str:
        """Ends one host; returns what is left there, in words."""
        lease = self._leases.get(host.name)
        if lease is None:  # its agent was never started
            host.agent.close()
            return ""
        lease.close()
        try:
            self._keep_logs(host)
        except (ChaosError, OSError) as error:  # logs are a comfort, healing is not
            _LOG.warning("the logs of %s stay there: %s", host.name, error)
        try:
            residual = host.agent.shutdown()
            return residual and self._recovered(host, residual)
        except ChaosError as error:
            return self._unreached(host, error)
        finally:
            host.agent.close()

    def _recovered(self, host: Host, residual: str) -> str:
        """Heals from the ledger of an agent that died or could not; what is left."""
        healed = is_healed(host.agent.connector.recover(self.run))
        return "" if healed else residual

    def _unreached(self, host: Host, error: ChaosError) -> str:
        """What to say of a host that does not answer while it is ended."""
        return f"{error}; it heals itself within {self.ttl_s:g} s"

    def _keep_logs(self, host: Host) -> None:
        for role in host.roles:
            if role in self._started and host.agent.role(role).pid:
                texts = host.agent.tail(role, size_bytes=_LOG_BYTES)
                for end, text in zip(("out", "err"), texts, strict=True):
                    (self.run_dir / f"{role}.{end}").write_text(text, encoding="utf-8")

    def _environment(self, role: str, env: Mapping[str, str]) -> dict[str, str]:
        return dict(env)

    def _probe_hosts(self) -> Sequence[Host]:
        """The hosts to probe; those that share a kernel need only one of them."""
        return self._hosts.all

    def _probed(self) -> tuple[frozenset[str], dict[str, str]]:
        if self._why_not is None:
            self._why_not = self._probe()
        found = (*_ALWAYS, self.name, *_KNOWN)
        return frozenset(set(found) - set(self._why_not)), self._why_not

    def _probe(self) -> dict[str, str]:
        """Reasons by capability, of every one that some host lacks."""
        hosts = self._probe_hosts()
        answers = _everywhere(lambda host: host.agent.probe(), hosts)
        return _lacking(
            {host.name: answer for host, answer in zip(hosts, answers, strict=True)}
        )


#: What an agent's probe answers about.
_KNOWN: Final = (
    "nft",
    "nft_numgen",
    "nft_limit",
    "nft_reject",
    "link",
    "tbf",
    "netem",
    "cgroup",
    "root",
    "pidfd",
)


def _lacking(answers: Mapping[str, Mapping[str, Any]]) -> dict[str, str]:
    reasons: dict[str, str] = {}
    for host, answer in answers.items():
        why = answer.get("why_not") or {}
        for capability in _KNOWN:
            if not answer.get(capability):
                reason = why.get(capability) or "its agent does not know it"
                reasons.setdefault(capability, f"{host}: {reason}")
    return reasons


def is_healed(rows: Sequence[Mapping[str, Any]]) -> bool:
    """Whether the rows of a recovery say so of every run that they name."""
    states = [row["state"] for row in rows if "state" in row and "row" not in row]
    return bool(states) and set(states) == {"healed"}


def roles_of(spec: ClusterSpec) -> tuple[str, ...]:
    """Every role of a cluster of this shape, the harness's own client included."""
    stores = [f"store-{number}" for number in range(spec.stores)]
    engines = [f"engine-{number}" for number in range(spec.engines)]
    return (MASTER, *spec.more_roles, *stores, *engines, PROBE)


def _everywhere(act: Callable[[Host], T], hosts: Sequence[Host]) -> list[T]:
    """Acts on all hosts at once, on each of them whatever happens on another.

    Raises:
        Exception: the first one, when all have ended.
    """
    if not hosts:
        return []
    with ThreadPoolExecutor(_HELPERS, thread_name_prefix="hosts") as pool:
        done = [pool.submit(act, host) for host in hosts]
    return [one.result() for one in done]
