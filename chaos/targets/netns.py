"""The netns target: every host a set of namespaces on this machine. Needs root.

The namespaces and their networks come with the first `prepare` and end with `close`, or
with the harness (see `fabric.py`); the agents in them end what runs there when nobody
renews their lease. Everything of the kernel that a fault can touch there is the
host's own, so nothing of the machine can be hit.
"""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
import shutil
import sys
from typing import TYPE_CHECKING, ClassVar, Final

from chaos.errors import ChaosError, HarnessError, ResidualFault, UsageError
from chaos.hosts.connectors import NamespaceConnector
from chaos.hosts.host import Host
from chaos.hosts.link import Agent
from chaos.safety.ledger import host_state
from chaos.targets.fabric import Fabric, Machine, Member
from chaos.targets.hosts import TTL_S, HostTarget, is_healed, roles_of
from chaos.targets.namespaces import why_no_namespaces
from chaos.targets.starting import StartedConnector, start_agents

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from chaos.systems.base import ClusterSpec

STATE: Final = host_state() / "netns"
_MASTER, _FIRST_STORE, _FIRST_ENGINE, _PROBE, _ETCD = 2, 10, 200, 3, 8
_LAST_STORE, _LAST = _FIRST_ENGINE - 1, 254
_ATTEMPTS = 10
_LOG = logging.getLogger(__name__)


class NetnsTarget(HostTarget):
    """Hosts in network namespaces, with real links between them.

    Args:
        block: the fabric's number, or the first free one.
        directory: of the fabric's lease.
    """

    name = "netns"
    _of_this_kernel: ClassVar[dict[str, str] | None] = None
    """What the probe said; all hosts share the kernel, so it is asked once."""

    def __init__(
        self,
        *,
        run_dir: Path,
        run: str,
        ttl_s: float = TTL_S,
        controller: str = "",
        block: int | None = None,
        directory: Path | None = None,
    ) -> None:
        super().__init__(run_dir=run_dir, run=run, ttl_s=ttl_s, controller=controller)
        self._block = block
        self._directory = directory
        self._fabric: Fabric | None = None
        self._state = -1

    def prepare(self, spec: ClusterSpec) -> None:
        """Builds the namespaces of a cluster of this shape and starts their agents.

        Raises:
            UsageError: The shape does not fit, or the privilege is missing.
        """
        if self._fabric is not None:
            raise UsageError("this target has its namespaces", "close it first")
        members = members_of(spec)
        self._build(members, placed(spec), rails=spec.rails)

    @property
    def fabric(self) -> Fabric:
        if self._fabric is None:
            raise UsageError("the namespaces are not there yet", "prepare the target")
        return self._fabric

    def address(self, role: str, plane: str = "control", rail: int = 0) -> str:
        """The address of a role on a plane: "control", "data" or "management"."""
        network = f"rail{rail}" if plane == "data" else plane
        return self.fabric.planes[network].address(number_of(role))

    def python(self, role: str) -> str:
        return sys.executable

    def why_not(self, capability: str) -> str:
        return why_no_namespaces() or super().why_not(capability)

    @property
    def capabilities(self) -> frozenset[str]:
        return frozenset() if why_no_namespaces() else super().capabilities

    def close(self) -> None:
        """Ends agents, roles and namespaces. Safe to call twice."""
        fabric, self._fabric = self._fabric, None
        with contextlib.ExitStack() as stack:
            stack.callback(self._release_state)
            stack.callback(self._heal_ledgers)
            if fabric is not None:
                stack.callback(fabric.close)
            stack.callback(super().close)

    # -- inside ------------------------------------------------------------------

    def _build(
        self, members: Sequence[Member], roles: Mapping[str, Sequence[str]], rails: int
    ) -> None:
        self._take_state()
        try:
            fabric = self._fabric = Fabric.build(
                members,
                rails=rails,
                machine=Machine(scratch=self._scratch),
                block=self._block,
                directory=self._directory,
            )
            connectors = {name: self._connector(fabric, name) for name in fabric.hosts}
            start_agents(
                list(connectors.values()),
                run=self.run,
                ttl_s=self.ttl_s,
                controller=self.controller,
            )
            self._open(
                [
                    self._host(fabric, connector, roles[name])
                    for name, connector in connectors.items()
                ]
            )
        except BaseException:
            self.close()
            raise

    def _connector(self, fabric: Fabric, name: str) -> StartedConnector:
        state = STATE / self.run / name
        state.mkdir(mode=0o700, parents=True, exist_ok=True)
        return StartedConnector(fabric.namespaces(name), state_dir=str(state))

    def _host(
        self, fabric: Fabric, connector: StartedConnector, roles: Sequence[str]
    ) -> Host:
        name = connector.name
        return Host(
            name=name,
            roles=tuple(roles),
            agent=Agent(connector),
            devices=fabric.devices(),
            addresses=fabric.addresses(name),
            controller=fabric.harness_address,
            scratch=self._scratch,
        )

    @property
    def _scratch(self) -> str:
        """The same path on each host, and on each host another file system."""
        return str(STATE / self.run / "scratch")

    def _take_state(self) -> None:
        """The directory of our agents, locked, so that nobody takes it for a ruin."""
        remove_ruins()
        self._state = _locked(STATE / self.run)

    def _release_state(self) -> None:
        if self._state >= 0:
            _remove(STATE / self.run)
            os.close(self._state)
            self._state = -1

    def _recovered(self, host: Host, residual: str) -> str:
        """Waits: what its namespaces do not take with them is healed after them."""
        _LOG.warning("host %s: %s; its namespaces are removed", host.name, residual)
        return ""

    def _unreached(self, host: Host, error: ChaosError) -> str:
        return self._recovered(host, str(error))

    def _heal_ledgers(self) -> None:
        """Heals what outlives namespaces (files, cgroups) from the ledgers left.

        Raises:
            ResidualFault: That did not work; `chaos recover` will find the ledger.
        """
        for ledger in sorted((STATE / self.run).glob("*/*/ledger.jsonl")):
            name, state = ledger.parts[-3], str(ledger.parents[1])
            rows = NamespaceConnector(name, state_dir=state).recover(self.run)
            if not is_healed(rows):
                reason = f"see {ledger}"
                raise ResidualFault(
                    fault="a fault", target=f"host {name}", reason=reason
                )

    def _probe_hosts(self) -> Sequence[Host]:
        return self._hosts.all[:1]

    def _probe(self) -> dict[str, str]:
        """Asks one host, a passing one when none is there yet."""
        if NetnsTarget._of_this_kernel is None:
            ask = super()._probe if self._fabric is not None else self._ask_in_passing
            NetnsTarget._of_this_kernel = ask()
        return NetnsTarget._of_this_kernel

    def _ask_in_passing(self) -> dict[str, str]:
        passing = NetnsTarget(
            run_dir=self.run_dir,
            run=f"probe-{os.getpid()}",
            ttl_s=self.ttl_s,
            controller=self.controller,
            directory=self._directory,
        )
        try:
            passing._build([Member(name="probe", numbers=(_PROBE,))], {"probe": ()}, 1)
            return HostTarget._probe(passing)
        finally:
            passing.close()


def number_of(role: str) -> int:
    """The number of a role on every plane: 2 master, 10.. stores, 200.. engines.

    Of other masters: 4 and on, behind the harness's own client; of etcd: 8.
    """
    kind, _, text = role.partition("-")
    if kind == "store":
        return _FIRST_STORE + int(text)
    if kind == "engine":
        return _FIRST_ENGINE + int(text)
    if kind == "master" and text:
        return _PROBE + int(text)
    return {"probe": _PROBE, "etcd": _ETCD}.get(kind, _MASTER)


def placed(spec: ClusterSpec) -> dict[str, list[str]]:
    """Roles by host: stores share one as the spec says, others have their own."""
    hosts: dict[str, list[str]] = {}
    for role in roles_of(spec):
        kind, _, text = role.partition("-")
        name = f"h{int(text) // spec.stores_per_host}" if kind == "store" else role
        hosts.setdefault(name, []).append(role)
    return hosts


def members_of(spec: ClusterSpec) -> list[Member]:
    """The hosts of a fabric for a cluster of this shape.

    Raises:
        UsageError: More stores or engines than a plane has addresses for.
    """
    last_store = _FIRST_STORE + spec.stores - 1
    last_engine = _FIRST_ENGINE + spec.engines - 1
    if last_store > _LAST_STORE or last_engine > _LAST:
        most = f"{_LAST_STORE - _FIRST_STORE + 1} and {_LAST - _FIRST_ENGINE + 1}"
        problem = f"{spec.stores} stores and {spec.engines} engines do not fit"
        raise UsageError(problem, f"a fabric has room for {most}")
    return [
        Member(name=name, numbers=tuple(map(number_of, roles)))
        for name, roles in placed(spec).items()
    ]


def _locked(directory: Path) -> int:
    """Makes a directory and locks it; another run may take it for a ruin until then."""
    for _ in range(_ATTEMPTS):
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        if (
            directory.is_dir()
            and os.fstat(descriptor).st_ino == directory.stat().st_ino
        ):
            return descriptor
        os.close(descriptor)
    message = f"{directory} is removed again and again"
    raise HarnessError(message)


def remove_ruins(state: Path = STATE) -> list[Path]:
    """Removes what killed runs left of their directories; returns which.

    One whose harness lives is locked; one with a ledger has an agent that lives, or a
    fault that `chaos recover` will ask for.
    """
    removed = []
    for directory in sorted(state.iterdir()) if state.is_dir() else ():
        descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if _remove(directory):
                removed.append(directory)
        except BlockingIOError:
            continue  # somebody works there
        finally:
            os.close(descriptor)
    return removed


def _remove(directory: Path) -> bool:
    """Removes what agents leave of a run, lock files; False when a ledger is left."""
    if any(directory.rglob("ledger.jsonl")):
        return False
    shutil.rmtree(directory, ignore_errors=True)
    return True
