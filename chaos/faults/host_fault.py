"""What all faults on hosts share: steps for agents, judged before, proved after.

A fault is made of parts, one a host. Planning asks the hosts for their facts, builds
the steps and lets the management guard judge them; injecting hands these very steps
to the agents, which hold them under the lease of the run; reverting disarms them in
reverse order. Steps that touch the network are armed for a few seconds only, until the
controller has confirmed that it still reaches the host (commit-confirmed). A host that
is not reached is never taken for healed.
"""

from __future__ import annotations

import itertools
import secrets
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar

from chaos.errors import (
    AgentError,
    ChaosError,
    FaultNotInjected,
    HarnessError,
    HostUnreachable,
    ResidualFault,
    UsageError,
)
from chaos.faults.base import Evidence
from chaos.faults.steps import holds, words
from chaos.hosts.facts import gather, has_agent, tell
from chaos.safety.management import check

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from chaos.faults.steps import Step
    from chaos.hosts.host import Host
    from chaos.safety.management import HostFacts
    from chaos.systems.base import Cluster

S = TypeVar("S")
T = TypeVar("T")

#: How long a change of the network lives before it is confirmed.
CONFIRM_S = 10.0
DEFAULT_TTL_S = 30.0
_AT_ONCE = 16
_numbers = itertools.count(1)


@dataclass(slots=True, kw_only=True)
class Part:
    """What a fault does on one host; `results` is what the steps answered."""

    host: Host
    facts: HostFacts
    steps: tuple[Step, ...]
    results: list[dict[str, Any]] = field(default_factory=list)
    before: dict[str, float] = field(default_factory=dict)
    """Readings from before the injection, of counters that never start at 0."""

    @property
    def touches_network(self) -> bool:
        tools = ("ip", "nft", "tc")
        runs = [a["run"][0] for s in self.steps for a in s.actions if "run" in a]
        return any(tool in tools for tool in runs)


class HostFault:
    """A fault that agents carry out; the kinds say which steps, and what proves them.

    Args:
        cluster: with hosts.
        target: whom it is aimed at, for people.
    """

    kind = "host"

    def __init__(self, cluster: Cluster, target: str) -> None:
        if cluster.hosts is None:
            raise UsageError(f"{self.kind} acts on hosts, and this target has none")
        self.target = target
        self.number = next(_numbers)
        self.fault_id = f"{self.kind}-{self.number}-{secrets.token_hex(3)}"
        self._cluster = cluster
        self._hosts = cluster.hosts
        self._planned: list[Part] = []
        self._armed: list[Part] = []
        self._residual: dict[str, str] = {}

    # -- what a kind says ----------------------------------------------------------

    def hosts(self) -> Sequence[Host]:
        """The hosts that this fault acts on."""
        raise NotImplementedError

    def steps(self, host: Host, facts: HostFacts) -> Sequence[Step]:
        """What is to be done there."""
        raise NotImplementedError

    def effect(self, part: Part) -> tuple[float, str]:
        """How much of an effect there is on one host, and in words."""
        raise NotImplementedError

    measure = "effect"

    # -- the fault protocol --------------------------------------------------------

    @property
    def domain(self) -> tuple[str, ...]:
        """Names of the hosts that this fault acts on."""
        return tuple(dict.fromkeys(host.name for host in self.hosts()))

    def ttl_on(self, host: Host) -> float:
        """Of the kernel's own timeouts: as long as the lease that renews them."""
        return host.agent.hello().ttl_s if has_agent(host) else DEFAULT_TTL_S

    def plan(self) -> list[str]:
        lines: list[str] = []
        for part in self._parts():
            lines += [*self._notes(part), *_told(part)]
        return lines

    def inject(self) -> None:
        """Arms all hosts at once, each whatever happens on another, then confirms."""
        self._armed = list(self._parts())
        everywhere(self._arm, self._armed)
        for part in self._armed:
            if part.touches_network:
                part.host.agent.confirm(self.fault_id)

    def prepare(self, part: Part) -> None:
        """Reads what must be known from before; nothing by default."""

    def probe(self) -> Evidence:
        found = [(part, *self.effect(part)) for part in self._armed]
        told = "; ".join(f"{part.host.name}: {detail}" for part, _, detail in found)
        return Evidence(
            measure=self.measure,
            effect=sum(effect for _, effect, _ in found),
            detail=told or "not injected",
        )

    def revert(self) -> None:
        """Disarms on every host, whatever fails on another.

        Raises:
            HarnessError: A host did not answer; what is there is not known.
            ResidualFault: Nor will it ever: there is no agent of ours any more. It has
                healed by itself, or the host was rebooted; but too early, and unseen.
        """
        lost: list[HarnessError] = []
        for part in reversed(self._armed):
            try:
                left = part.host.agent.disarm(self.fault_id)
            except HarnessError as error:
                lost.append(error)
            else:
                self._residual[part.host.name] = left
        if lost:
            raise self._lost(lost)

    def verify_reverted(self) -> str:
        left = [f"{name}: {text}" for name, text in self._residual.items() if text]
        left += [text for part in self._armed for text in self._unmet(part)]
        return "; ".join(left)

    # -- inner life ----------------------------------------------------------------

    def _lost(self, errors: Sequence[HarnessError]) -> ChaosError:
        reason = "; ".join(map(str, errors))
        if all(isinstance(each, HostUnreachable) and each.gone for each in errors):
            return ResidualFault(fault=self.kind, target=self.target, reason=reason)
        return HarnessError(reason)

    def _arm(self, part: Part) -> None:
        """Hands the steps to the agent.

        Raises:
            FaultNotInjected: The agent could not do them, and has undone the others.
        """
        self.prepare(part)
        try:
            part.results = part.host.agent.arm(
                fault_id=self.fault_id,
                kind=self.kind,
                target=self.target,
                steps=[step.to_json() for step in part.steps],
                confirm_s=CONFIRM_S if part.touches_network else 0.0,
            )
        except AgentError as error:
            raise FaultNotInjected(
                fault=self.kind, target=self.target, reason=str(error)
            ) from error

    def _parts(self) -> list[Part]:
        """The planned parts, judged by the guard; asked for once."""
        if not self._planned:
            self._planned = everywhere(self._part, self.hosts())
        return self._planned

    def _part(self, host: Host) -> Part:
        facts = gather(host)
        part = Part(host=host, facts=facts, steps=tuple(self.steps(host, facts)))
        if has_agent(host):
            steps = [step.to_json() for step in part.steps]
            check(facts, steps, fault=f"{self.kind}({self.target})")
        return part

    def _notes(self, part: Part) -> list[str]:
        """Who else lives there and suffers as well, where a host has several roles."""
        others = [role for role in part.host.roles if role not in self.target]
        if not others:
            return []
        return [f"{part.host.name} also runs {', '.join(others)}"]

    def _unmet(self, part: Part) -> list[str]:
        """Checks that the controller makes for itself: an agent may be mistaken."""
        found: list[str] = []
        for step in part.steps:
            if step.verify is None or "run" not in step.verify:
                continue
            told = tell(part.host, step.verify["run"])
            if not holds(step.verify, told.rc, told.stdout):
                found.append(f"{part.host.name}: not undone: {words(step.do)[:200]}")
        return found


def everywhere(act: Callable[[S], T], things: Sequence[S]) -> list[T]:
    """Acts on all of them at once, and on each whatever happens to another.

    Raises:
        Exception: The first one, when all have ended.
    """
    if len(things) < 2:
        return [act(thing) for thing in things]
    with ThreadPoolExecutor(_AT_ONCE, thread_name_prefix="fault") as pool:
        done = [pool.submit(act, thing) for thing in things]
    return [one.result() for one in done]


def _told(part: Part) -> list[str]:
    lines = [f"{part.host.name}: {words(step.do)}" for step in part.steps]
    undone = [step.undo for step in reversed(part.steps) if step.undo is not None]
    return lines + [f"{part.host.name}: to undo: {words(action)}" for action in undone]
