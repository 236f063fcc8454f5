"""The ssh target: the hosts of an inventory, each reached over SSH.

Only hosts that carry a role of the cluster are touched, and only if the inventory opts
them in. On hosts with `manage: true` the harness starts and ends the roles, with the
inventory's `python` and `pythonpath`; on others the roles are there already and are
observed, and broken, through the inventory's rules (see `observed.py`).
"""

from __future__ import annotations

import uuid
from pathlib import Path
from typing import TYPE_CHECKING, Final

from chaos.errors import ProcessFailed, UsageError
from chaos.hosts.connectors import SshConnector
from chaos.hosts.facts import gather
from chaos.hosts.host import Host
from chaos.hosts.link import Agent
from chaos.safety.identity import wait_until
from chaos.safety.management import check
from chaos.systems.layout import PROBE
from chaos.targets.hosts import TTL_S, HostTarget, roles_of
from chaos.targets.observed import ObservedRole
from inventory import InventoryError, SshSession, load

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from chaos.systems.base import ClusterSpec, Process
    from inventory import HostEntry, Inventory

_PYTHONPATH = "PYTHONPATH"
_BACK_TIMEOUT_S: Final = 30.0
_BACK_POLL_S = 0.1


class SshTarget(HostTarget):
    """Hosts of an inventory.

    Args:
        inventory: a loaded one, or its file.
        agent_of: makes the agent of a host; over SSH by default.
    """

    name = "ssh"

    def __init__(
        self,
        *,
        run_dir: Path,
        run: str,
        inventory: Inventory | Path | str,
        ttl_s: float = TTL_S,
        controller: str = "",
        agent_of: Callable[[HostEntry], Agent] | None = None,
    ) -> None:
        super().__init__(run_dir=run_dir, run=run, ttl_s=ttl_s, controller=controller)
        self._inventory = _loaded(inventory)
        if ttl_s > self._inventory.fault_ttl_max_s:
            most = f"{self._inventory.fault_ttl_max_s:g} s"
            problem = f"a lease of {ttl_s:g} s is longer than fault_ttl_max_s, {most}"
            raise UsageError(problem, f"pass --fault-ttl {most.split()[0]}")
        self._agent_of = agent_of or _over_ssh
        self._entries: dict[str, HostEntry] = {}
        self._stopped: dict[str, str] = {}

    @property
    def inventory(self) -> Inventory:
        return self._inventory

    def prepare(self, spec: ClusterSpec) -> None:
        """Finds a host for every role and starts the agents of those hosts.

        Raises:
            UsageError: A role has no host, a host lacks a device or an address, may
                not be broken, or is in use by another run.
        """
        if self._hosts.all:
            raise UsageError("this target has its hosts", "close it first")
        entries = placed(self._inventory, spec)
        for role, entry in entries.items():
            _check(self._inventory, entry, role, spec.rails)
        self._entries = entries
        self._why_not = None
        try:
            self._open([self._host(entry, spec.rails) for entry in self._chosen()])
        except BaseException:
            self.close()
            raise

    def address(self, role: str, plane: str = "control", rail: int = 0) -> str:
        """The address of a role's host on a plane: "control", "data", "management"."""
        entry = self._entry(role)
        network = f"rail{rail}" if plane == "data" else plane
        return addresses_of(entry)[network]

    def python(self, role: str) -> str:
        return str(self._entry(role).python)

    def spawn(
        self, role: str, argv: Sequence[str], env: Mapping[str, str] | None = None
    ) -> Process:
        """Starts a role; one that is observed is waited for: its owner starts it."""
        observed = self._observed(role)
        if observed is None:
            return super().spawn(role, argv, env)
        self._take_back(role)
        return _awaited(observed)

    def wait_ready(self, role: str, marker: str, *, timeout_s: float) -> str:
        """As on any host; an observed role tells us no line, it is ready when it runs.

        Raises:
            ProcessFailed: The role ended, or was not ready in time.
        """
        observed = self._observed(role)
        if observed is None:
            return super().wait_ready(role, marker, timeout_s=timeout_s)
        _awaited(observed, timeout_s=timeout_s)
        return marker

    def process(self, role: str) -> Process | None:
        observed = self._observed(role)
        return super().process(role) if observed is None else observed.process()

    def stop(self, role: str, *, timeout_s: float) -> int:
        """Ends a role; an observed one by an order to its owner, under our lease.

        Raises:
            Refused: The rule of the inventory names a process that nobody may end.
        """
        observed = self._observed(role)
        if observed is None:
            return super().stop(role, timeout_s=timeout_s)
        self._take_back(role)
        check(gather(self._hosts.of(role)), observed.ends(), fault=f"stop({role})")
        fault_id = f"stop-{role}-{uuid.uuid4().hex[:8]}"
        steps = observed.stop_steps()
        self._stopped[role] = fault_id
        observed.agent.arm(fault_id=fault_id, kind="stop", target=role, steps=steps)
        gone = wait_until(
            lambda: observed.process() is None,
            timeout_s=timeout_s,
            poll_s=_BACK_POLL_S,
        )
        if not gone:
            reason = f"did not end in {timeout_s:g} s ({observed.owner})"
            raise ProcessFailed(process=role, reason=reason)
        return 0

    # -- inside ------------------------------------------------------------------

    def _entry(self, role: str) -> HostEntry:
        if role not in self._entries:
            raise UsageError(f"{role} has no host yet", "prepare the target")
        return self._entries[role]

    def _chosen(self) -> list[HostEntry]:
        """Every host that carries a role, once."""
        return list({entry.name: entry for entry in self._entries.values()}.values())

    def _host(self, entry: HostEntry, rails: int) -> Host:
        roles = [r for r, each in self._entries.items() if each.name == entry.name]
        return Host(
            name=entry.name,
            roles=tuple(roles),
            observed=frozenset(r for r in roles if not (entry.manage or r == PROBE)),
            agent=self._agent_of(entry),
            devices=devices_of(entry),
            addresses=addresses_of(entry),
            scratch=entry.scratch,
            metrics_ports=entry.metrics_ports,
        )

    def _observed(self, role: str) -> ObservedRole | None:
        """The rule of a role that we do not start; None for one that we do.

        The harness's own client is always ours.
        """
        entry = self._entry(role)
        if entry.manage or role == PROBE:
            return None
        agent = self._hosts.of(role).agent
        return ObservedRole(role=role, rule=entry.processes[role], agent=agent)

    def _take_back(self, role: str) -> None:
        """Takes our order to stop a role back, if there is one."""
        fault_id = self._stopped.pop(role, "")
        residual = self._hosts.of(role).agent.disarm(fault_id) if fault_id else ""
        if residual:
            raise ProcessFailed(process=role, reason="is not back", detail=residual)

    def _environment(self, role: str, env: Mapping[str, str]) -> dict[str, str]:
        """Our own paths mean nothing on another machine."""
        there = {name: text for name, text in env.items() if name != _PYTHONPATH}
        path = self._entry(role).pythonpath
        return {**there, _PYTHONPATH: path} if path else there


def placed(inventory: Inventory, spec: ClusterSpec) -> dict[str, HostEntry]:
    """The host of each role of a cluster of this shape.

    Stores that are to share a host do so where we start them: the hosts of stores are
    taken in the order of the inventory. The harness's own client goes to the host that
    names `probe`, else to the first engine's, else to the first store's.

    Raises:
        UsageError: A role has no host, or several.
    """
    entries: dict[str, HostEntry] = {}
    for role in roles_of(spec):
        if role != PROBE:
            entries[role] = _host_of(inventory, spec, role)
    named = inventory.with_role(PROBE)
    beside = "engine-0" if spec.engines else "store-0"
    entries[PROBE] = named[0] if named else entries[beside]
    return entries


def _host_of(inventory: Inventory, spec: ClusterSpec, role: str) -> HostEntry:
    kind, _, number = role.partition("-")
    if kind == "store" and spec.stores_per_host > 1:
        hosts = _store_hosts(inventory)
        place = int(number) // spec.stores_per_host
        if place < len(hosts):
            return hosts[place]
    found = inventory.with_role(role)
    if len(found) == 1:
        return found[0]
    file = inventory.file or "the inventory"
    if found:
        names = ", ".join(entry.name for entry in found)
        raise UsageError(f"{file}: {role} is on {names}", "leave it on one of them")
    raise UsageError(
        f"{file}: no host has the role {role}",
        f"add it to the roles of a host, or ask for less than {spec.stores} stores"
        f" and {spec.engines} engines",
    )


def _store_hosts(inventory: Inventory) -> list[HostEntry]:
    """Hosts on which we may start stores, in order."""
    return [
        entry
        for entry in inventory.hosts
        if entry.manage and any(role.startswith("store-") for role in entry.roles)
    ]


def addresses_of(entry: HostEntry) -> dict[str, str]:
    """The addresses of a host by plane; the one of SSH where nothing else is said."""
    management = entry.management.address if entry.management else ""
    control = entry.control.address if entry.control else ""
    found = {
        "management": management or entry.address,
        "control": control or entry.address,
    }
    rails = enumerate(entry.rails)
    return {**found, **{f"rail{n}": rail.address for n, rail in rails}}


def devices_of(entry: HostEntry) -> dict[str, str]:
    """The devices of a host by plane, as far as the inventory names them."""
    found = {
        "management": entry.management.device if entry.management else "",
        "control": entry.control.device if entry.control else "",
        **{f"rail{n}": rail.device for n, rail in enumerate(entry.rails)},
    }
    return {plane: device for plane, device in found.items() if device}


def _check(inventory: Inventory, entry: HostEntry, role: str, rails: int) -> None:
    """Refuses a host that may not be broken, or that says too little of itself.

    Raises:
        UsageError: with the file, the host, the field and the remedy.
    """
    where = f"{inventory.file or 'the inventory'}: host {entry.name}"
    reason = inventory.why_not(entry)
    if reason:
        raise UsageError(f"{inventory.file or 'the inventory'}: {reason}")
    if not entry.manage and role not in entry.processes and role != PROBE:
        fix = f"add processes: {{{role}: {{systemd: UNIT}}}}, or set manage: true"
        raise UsageError(f"{where} has no rule for {role}", fix)
    if role.startswith("store-"):
        lacking = [n for n in range(rails) if not _has_rail(entry, n)]
        if lacking:
            fix = f"write rails with device and address, or ask for {lacking[0]} rails"
            raise UsageError(f"{where} has no address on rail{lacking[0]}", fix)


def _has_rail(entry: HostEntry, number: int) -> bool:
    return number < len(entry.rails) and bool(entry.rails[number].address)


def _awaited(observed: ObservedRole, timeout_s: float = _BACK_TIMEOUT_S) -> Process:
    """The process of an observed role, once its owner has it running.

    Raises:
        ProcessFailed: It is not there in time.
    """
    found: list[Process] = []

    def is_there() -> bool:
        process = observed.process()
        found.extend([process] if process is not None else [])
        return bool(found)

    if not wait_until(is_there, timeout_s=timeout_s, poll_s=_BACK_POLL_S):
        reason = f"does not run: {observed.owner} had no process for {timeout_s:g} s"
        raise ProcessFailed(process=observed.role, reason=reason)
    return found[0]


def _over_ssh(entry: HostEntry) -> Agent:
    return Agent(SshConnector(SshSession(entry)))


def _loaded(inventory: Inventory | Path | str) -> Inventory:
    if not isinstance(inventory, (str, Path)):
        return inventory
    try:
        return load(inventory)
    except InventoryError as error:
        raise UsageError(str(error)) from error
