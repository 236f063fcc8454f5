"""Plays a schedule on a running cluster, and records all of it as it goes.

One thread walks the steps. Every call is on disk before it is sent. Whatever ends the
walk, what was broken is healed first; then the cluster settles, and clients that know
nothing read every key: nothing that was acknowledged may be missing then, but what the
laws allow to be lost.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
import os
import time
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Final

from chaos.correctness import operation as record
from chaos.correctness.client import Answer, Client
from chaos.correctness.laws import EXPIRED, PRESSURE
from chaos.correctness.operation import Operation, Window
from chaos.correctness.schedule import CLIENT_STEPS, Do, Step, as_yaml
from chaos.errors import FaultNotInjected, HarnessError, NotHere, UsageError
from chaos.systems.base import Mounting

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from chaos.correctness.schedule import Schedule
    from chaos.faults.injector import Injection, Injector
    from chaos.history.history import History
    from chaos.safety.halt import LeverPoll
    from chaos.systems.base import Cluster

SETTLE_S: Final = 60.0
"""The system's seconds in which a healed cluster must be whole again."""
_MARGIN_S: Final = 15.0
_CLOSE_S: Final = 5.0
_SLICE_S: Final = 0.25
_LOOK_GAP_S: Final = 0.05
"""Real seconds between two looks of one step."""
_LEAST_S: Final = 10.0
_HOLDER: Final = "holder "
_LEADER: Final = "leader"
_STARTS: Final = frozenset({"kill", "restart"})
_AT_ONCE: Final = frozenset({"restart"})
_RETRIES: Final = 5
_NO_ROOM: Final = -200
_EVICTION_S: Final = 2.0
"""Until housekeeping has looked for room: its longest pause is a second."""
_DEFINITE: Final = frozenset({0, -704, -712})
_plays = itertools.count(1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """What a schedule is played on; in a suite these are the fixtures.

    `settled` waits so many real seconds at most and says whether the cluster is whole.
    """

    cluster: Cluster
    inject: Injector
    history: History
    settled: Callable[[float], bool]
    lever: LeverPoll | None = None
    clock: Callable[[], float] = time.monotonic
    wait: Callable[[float], None] = time.sleep


@dataclass(slots=True, kw_only=True)
class Played:
    """Everything that was seen; nothing is judged yet."""

    schedule: Schedule
    operations: list[Operation] = field(default_factory=list)
    windows: list[Window] = field(default_factory=list)
    skipped: list[str] = field(default_factory=list)
    not_here: list[NotHere] = field(default_factory=list)
    hung: list[str] = field(default_factory=list)
    revived: list[str] = field(default_factory=list)
    settled: bool = False
    halted: str = ""

    @property
    def unproved(self) -> str:
        """Why it proves nothing, "" when it does: it did not come to its end."""
        if self.halted:
            return f"it was halted: {self.halted}"
        if self.not_here:
            return str(self.not_here[0])
        if not self.settled:
            return "the cluster did not become whole again after the last step"
        return ""


def play(schedule: Schedule, stage: Stage, *, cut: bool = False) -> Played:
    """Plays every step in order and returns what was seen, nothing left broken.

    `cut`: it is a part of a schedule that was played before, and is not judged.
    """
    return _Player(schedule, stage, cut=cut).play()


class _Player:
    """One play: its clients, the faults in place, and the tokens of announcements."""

    def __init__(self, schedule: Schedule, stage: Stage, *, cut: bool) -> None:
        self._cut = cut
        self.seen = Played(schedule=schedule)
        self._schedule = schedule
        self._stage = stage
        self._scale = schedule.time_scale
        self._prefix = f"c{os.getpid():x}.{next(_plays):x}-"
        self._clients: dict[str, Client] = {}
        self._active: dict[str, tuple[Step, str, Injection, int]] = {}
        self._tokens: dict[str, tuple[str, int]] = {}
        self._number = itertools.count()
        self._mounts: dict[str, int] = {}
        self._watched_s = stage.clock()

    def play(self) -> Played:
        stage, seen = self._stage, self.seen
        text = as_yaml(self._schedule)
        stage.history.append(record.played(text, stage.clock(), cut=self._cut))
        try:
            self._walk()
        finally:
            self._over()
        stage.history.append(record.over(seen.unproved, stage.clock()))
        return seen

    def _walk(self) -> None:
        """The steps, then the end that every schedule has."""
        try:
            for number, step in enumerate(self._schedule.steps):
                if self._pulled():
                    return
                self._supervise()
                self._watch()
                self._step(number, step)
        finally:
            self._heal_all()
        for client in self._clients.values():
            self._await(client)
        self._supervise()
        self.seen.settled = self._stage.settled(max(SETTLE_S * self._scale, _LEAST_S))
        self._watch()
        self._look_at_everything(len(self._schedule.steps))
        self._watch()

    def _step(self, number: int, step: Step) -> None:
        if step.do is Do.WAIT:
            self._pause(step.seconds * self._scale)
        elif step.do is Do.BREAK:
            self._break(number, step)
        elif step.do is Do.HEAL:
            if self._away() and self._needs_a_master(step.name):
                self._skip(number, step, "it could not come back now; in the end")
            else:
                self._heal(step.name)
        elif step.do in CLIENT_STEPS:
            self._client_step(number, step)

    def _supervise(self) -> None:
        """Starts stores that ended by themselves, as whoever runs them would.

        A store of Mooncake that comes back too early finds its old self in the
        metadata and gives up, so that the next one succeeds.
        """
        cluster, broken = self._stage.cluster, self._broken_roles()
        if self._away():
            return
        for store in cluster.stores:
            if store in broken or cluster.process(store) is not None:
                continue
            window = self._open("restart", store)
            self.seen.revived.append(store)
            try:
                cluster.start_role(store)
            except HarnessError as error:  # the next step tries again
                self.seen.revived.append(f"{store}: {error}"[:200])
            self._close(window)

    def _watch(self) -> None:
        """Writes down the stores that were taken for dead though nobody broke them.

        A machine too busy for heartbeats loses what a dead store loses: no finding.
        """
        cluster, now_s = self._stage.cluster, self._stage.clock()
        if not isinstance(cluster, Mounting) or self._away():
            return
        mounts = cluster.mounts()
        if not mounts:
            return
        for store, known in self._mounts.items():
            if mounts.get(store) != known and not self._was_broken(store, now_s):
                window = self._open(EXPIRED, store, begin_s=self._watched_s)
                self._close(window)
        self._mounts, self._watched_s = mounts, now_s

    def _was_broken(self, store: str, now_s: float) -> bool:
        """Whether a fault explains that a store is another one than when last seen."""
        limits = self._stage.cluster.limits
        since_s = self._watched_s - 2 * limits.client_ttl_s
        return any(
            window.meets(since_s, now_s)
            for window in self.seen.windows
            if window.kind not in (PRESSURE, EXPIRED)
            and (window.target == store or not window.target.startswith("store"))
        )

    def _broken_roles(self) -> list[str]:
        return [role for _, role, _, _ in self._active.values()]

    def _pulled(self) -> bool:
        pulled = self._stage.lever() if self._stage.lever is not None else None
        if pulled is not None:
            self.seen.halted = str(pulled)
        return pulled is not None

    def _pause(self, seconds: float) -> None:
        until = self._stage.clock() + seconds
        while (left := until - self._stage.clock()) > 0 and not self._pulled():
            self._stage.wait(min(left, _SLICE_S))

    # -- clients -------------------------------------------------------------------

    def _client_step(self, number: int, step: Step) -> None:
        client = self._client(step.by)
        self._await(client)
        if step.do is Do.FRESH:
            client.renew()
            return
        timeout_s = (step.timeout or self._schedule.timeout) * self._scale
        act = self._act(client, number, step, timeout_s)
        if act is None:
            self._skip(number, step, "it ends a write that was not announced")
            return
        if step.do is Do.FILL:
            self._open(PRESSURE, "pool")  # for ever: what was written stays
        until_s = self._stage.clock() + step.seconds * self._scale
        self._send(client, number, step, act)
        while step.do is Do.EXISTS and self._stage.clock() < until_s:
            self._await(client)
            if self._pulled():
                return
            self._stage.wait(_LOOK_GAP_S)
            self._send(client, number, step, act)
        if not step.background:
            self._await(client)

    def _act(
        self, client: Client, number: int, step: Step, timeout_s: float
    ) -> Callable[[], Answer] | None:
        """The call of a step, None when there is none."""
        keys = step.keys
        if step.do is Do.PUT:
            known = not step.background
            return partial(client.put, keys, step.value, timeout_s, owners=known)
        if step.do is Do.GET:
            return partial(client.get, keys, step.path or "plain", timeout_s)
        if step.do is Do.EXISTS:
            return partial(client.exists, keys, timeout_s)
        if step.do is Do.REMOVE:
            return partial(client.remove, keys, timeout_s)
        if step.do is Do.FILL:
            return partial(client.fill, step.count, f"fill{number}", timeout_s)
        if step.do is Do.ANNOUNCE:
            return partial(client.announce, keys[0], timeout_s)
        key, token = self._tokens.get(step.name, ("", 0))
        return partial(client.end, key, token, timeout_s) if key else None

    def _send(
        self,
        client: Client,
        number: int,
        step: Step,
        act: Callable[[], Answer],
        *,
        quiet: bool = False,
    ) -> int:
        """Writes the operation down and begins it; its index in the record."""
        keys = step.keys
        if step.do is Do.END:
            keys = (self._tokens[step.name][0],)
        operation = Operation(
            number=next(self._number),
            step=number,
            do=step.do.value,
            client=client.name,
            keys=keys,
            begin_s=self._stage.clock(),
            value=step.value,
            path=step.path,
            name=step.name,
            quiet=quiet,
        )
        index = len(self.seen.operations)
        self.seen.operations.append(operation)
        self._stage.history.append(record.begun(operation))
        client.begin(act, partial(self._ended, index))
        return index

    def _ended(self, index: int, answer: Answer) -> None:
        """Called on the thread of the client, once."""
        operation = dataclasses.replace(
            self.seen.operations[index],
            end_s=self._stage.clock(),
            codes=answer.codes,
            seen=answer.seen,
            owners=answer.owners,
            calls=answer.calls,
            took_s=answer.took_s,
            error=answer.error,
        )
        if answer.token and operation.codes == (0,):
            self._tokens[operation.name] = (operation.keys[0], answer.token)
        self.seen.operations[index] = operation
        self._stage.history.append(record.ended(operation))
        if _NO_ROOM in answer.codes:
            self._evicts(operation)

    def _evicts(self, operation: Operation) -> None:
        """Who finds no room has others go: what is not leased, however new it is."""
        until_s = self._stage.clock() + _EVICTION_S
        window = Window(
            kind=PRESSURE, target="pool", begin_s=operation.begin_s, end_s=until_s
        )
        self.seen.windows.append(window)
        self._stage.history.append(record.opened(window))
        self._stage.history.append(record.closed(window))

    def _await(self, client: Client) -> None:
        """Waits for what a client is doing; one that hangs is given up."""
        if client.call is None:
            return
        limit_s = self._longest_s() + _MARGIN_S
        if client.call.wait(limit_s):
            client.call = None
            return
        self.seen.hung.append(f"a call of {client.name} hung for {limit_s:.1f} s")
        client.renew(hung=True)

    def _longest_s(self) -> float:
        """The longest time that one step of this schedule may ask for."""
        steps = self._schedule.steps
        asked = max((step.timeout for step in steps), default=0.0)
        keys = max((len(step.keys) for step in steps), default=1)
        each = max(asked, self._schedule.timeout) * self._scale
        return each * max(2, keys)

    def _client(self, name: str) -> Client:
        if name not in self._clients:
            self._clients[name] = Client(
                name,
                self._stage.cluster.kv,
                prefix=self._prefix,
                size_bytes=self._schedule.size_bytes,
                among=self._schedule.keys,
                clock=self._stage.clock,
            )
        return self._clients[name]

    # -- faults --------------------------------------------------------------------

    def _break(self, number: int, step: Step) -> None:
        """Injects one fault, if it can be there at all now."""
        target = self._target(step)
        why = self._why_not(step, target)
        if why:
            self._skip(number, step, why)
            return
        window = self._open(step.fault, target)
        try:
            build = getattr(self._stage.inject, step.fault)
            injection: Injection = build(target, **step.parameters)
            injection.start()
        except NotHere as error:
            self.seen.not_here.append(error)
            self._close(window)
            return
        except (FaultNotInjected, UsageError) as error:
            self._skip(number, step, str(error))
            self._close(window)
            return
        name = step.name or f"step {number}"
        self._active[name] = (step, target, injection, window)
        if step.fault in _AT_ONCE:
            self._heal(name)

    def _target(self, step: Step) -> str:
        """The role that is meant; "" when nobody has the key, or leads."""
        if step.target == _LEADER:
            cluster = self._stage.cluster
            leader = getattr(cluster, "leader", None)
            return str(leader()) if leader is not None else cluster.masters[0]
        if not step.target.startswith(_HOLDER):
            return step.target
        asking = self._client("owners")
        timeout_s = self._schedule.timeout * self._scale
        found = asking.owners(step.target.removeprefix(_HOLDER), timeout_s)
        return found[0] if found else ""

    def _why_not(self, step: Step, target: str) -> str:
        """Why a fault makes no sense now, "" when it does."""
        if not target:
            return f"nobody is the {step.target}"
        if not hasattr(self._stage.inject, step.fault):
            raise UsageError(f"no fault is called {step.fault!r}", "see `chaos plan`")
        stores = self._stage.cluster.stores
        if target.startswith("store") and target not in stores:
            there = f"there are {', '.join(stores)}"
            raise UsageError(f"{self._schedule.name}: no {target} here", there)
        if step.name in self._active:
            return f"{step.name} is in place"
        if target in self._broken_roles():
            return f"{target} is broken already"
        if step.fault in _STARTS and target.startswith("store") and self._away():
            return f"{self._away()} is away, {target} could not come back"
        return ""

    def _away(self) -> str:
        """A broken role without which nobody can start; "" when there is none."""
        roles = self._broken_roles()
        return next((r for r in roles if not r.startswith("store")), "")

    def _needs_a_master(self, name: str) -> bool:
        """Whether healing it starts a store."""
        if name not in self._active:
            return False
        step, role, _, _ = self._active[name]
        return step.fault in _STARTS and role.startswith("store")

    def _heal(self, name: str) -> None:
        """Undoes one fault; one that is not there is none."""
        entry = self._active.pop(name, None)
        if entry is None:
            return
        _, _, injection, window = entry
        try:
            injection.stop()
        finally:
            self._close(window)

    def _heal_all(self) -> None:
        """Masters and what they need first, so that stores can come back."""
        newest_first = list(self._active)[::-1]
        waiting = sorted(newest_first, key=self._needs_a_master)
        errors: list[Exception] = []
        for name in waiting:
            try:
                self._heal(name)
            except Exception as error:
                errors.append(error)
        if len(errors) == 1:
            raise errors[0]
        if errors:
            raise ExceptionGroup("faults could not be undone orderly", errors)

    def _open(self, kind: str, target: str, *, begin_s: float | None = None) -> int:
        at_s = self._stage.clock() if begin_s is None else begin_s
        window = Window(kind=kind, target=target, begin_s=at_s)
        self.seen.windows.append(window)
        self._stage.history.append(record.opened(window))
        return len(self.seen.windows) - 1

    def _close(self, index: int) -> None:
        window = self.seen.windows[index]
        if math.isinf(window.end_s):
            window = dataclasses.replace(window, end_s=self._stage.clock())
            self.seen.windows[index] = window
            self._stage.history.append(record.closed(window))

    def _skip(self, number: int, step: Step, why: str) -> None:
        self.seen.skipped.append(f"step {number} ({step}): {why}")

    # -- the end -------------------------------------------------------------------

    def _look_at_everything(self, number: int) -> None:
        """Clients that know nothing read every key, by each path that was used."""
        keys = self._schedule.keys
        if not keys:
            return
        used = [s.path or "plain" for s in self._schedule.steps if s.do is Do.GET]
        for path in dict.fromkeys(used or ["plain"]):
            self._look(number, keys, path)
        client = self._client("last exists")
        step = _step_of(Do.EXISTS, client, keys)
        act = partial(client.exists, keys, self._timeout_s)
        self._send(client, number, step, act, quiet=True)
        self._await(client)

    def _look(self, number: int, keys: Sequence[str], path: str) -> None:
        """One read of everything, again while some answer is not definite."""
        client = self._client(f"last {path}")
        step = dataclasses.replace(_step_of(Do.GET, client, keys), path=path)
        for turn in range(_RETRIES):
            last = turn == _RETRIES - 1
            act = partial(client.get, keys, path, self._timeout_s)
            index = self._send(client, number, step, act, quiet=True)
            self._await(client)
            codes = self.seen.operations[index].codes
            if last or (codes and set(codes) <= _DEFINITE):
                return
            self._unquiet(index)
            self._stage.wait(self._stage.cluster.limits.ping_interval_s)

    def _unquiet(self, index: int) -> None:
        """It was asked again, so this answer is no last word."""
        operation = dataclasses.replace(self.seen.operations[index], quiet=False)
        self.seen.operations[index] = operation
        self._stage.history.append(record.ended(operation))

    @property
    def _timeout_s(self) -> float:
        return self._schedule.timeout * self._scale

    def _over(self) -> None:
        """Closes every client; the probes of hung calls are the cluster's to close."""
        for client in self._clients.values():
            hung = client.call is not None and not client.call.wait(_CLOSE_S)
            client.renew(hung=hung)


def _step_of(do: Do, client: Client, keys: Sequence[str]) -> Step:
    return Step(do=do, by=client.name, keys=tuple(keys))
