"""The engines of a cluster: the reference engine's HiCache over Mooncake.

What they say names stores by the addresses of their transfer engines; here they have
the names of the cluster. Failpoints are theirs alone: Mooncake's release has none.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

from chaos.errors import HarnessError, NotHere
from chaos.systems.clocks import Clocks, in_our_time
from chaos.systems.engines import CALL_TIMEOUT_S

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from chaos.systems.base import Answer, KvProbe, Process, Request
    from chaos.systems.engines import Engines
    from chaos.systems.mooncake.plan import ClientPlan


class EnginesOver:
    """The part of `Cluster` that is about engines; threads may share it.

    Args:
        engines: the harness's end of them.
        names: their roles.
        plan: where the stores are.
        asker: a client for our own questions about pages.
        process: the live process of a role.
        remote: whether their clocks may be others than ours.
    """

    def __init__(
        self,
        engines: Engines,
        names: Sequence[str],
        plan: ClientPlan,
        *,
        asker: Callable[[], KvProbe],
        process: Callable[[str], Process | None],
        remote: bool,
    ) -> None:
        self._engines = engines
        self._names = tuple(names)
        self._plan = plan
        self._asker = asker
        self._process = process
        self._remote = remote
        self._clocks = Clocks()

    def prefill(self, engine: str, request: Request, *, timeout_s: float) -> Answer:
        answer = self._engines.prefill(engine, request, timeout_s=timeout_s)
        stores = tuple(map(self._plan.store_at, answer.stores))
        return dataclasses.replace(answer, stores=stores)

    def abort(self, engine: str, request_id: str) -> None:
        self._engines.abort(engine, request_id)

    def expected_output(self, request: Request) -> str:
        return self._engines.expected_output(request)

    def engine_state(self, engine: str) -> dict[str, Any]:
        """As the engine says it, with stores by their names."""
        state: dict[str, Any] = self._named(self._engines.control(engine, op="state"))
        if self._remote:
            process = self._process(engine)
            ahead_s = self._clocks.ahead_s(
                engine,
                process.pid if process else 0,
                lambda: self._engines.now_s(engine),
            )
            in_our_time(state["hicache"], ahead_s)
        return state

    def connected(self, engine: str) -> bool:
        """Whether it says that its client has reached the master and its segments."""
        try:
            client = self._engines.ask(engine, "GET", "/state")["client"]
        except HarnessError:
            return False
        return bool(client["connected"] and client["segments"])

    def local_only(self, engine: str, on: bool) -> None:
        self._engines.local_only(engine, on)

    def flush_local(self, engine: str) -> None:
        self._engines.flush_local(engine)

    def owners_of(self, request: Request) -> list[tuple[str, ...]]:
        """The stores of each whole page; a page in several objects needs them all."""
        pages = self._objects(self._engines.page_keys(request))
        names = [name for page in pages for name in page]
        owners = iter(self._asker().owners(names, timeout_s=CALL_TIMEOUT_S))
        found = [[next(owners) for _ in page] for page in pages]
        return [
            tuple(sorted({store for one in page for store in one})) if all(page) else ()
            for page in found
        ]

    def drop_pages(
        self, request: Request, pages: Sequence[int], *, component: str | None = None
    ) -> int:
        keys = self._engines.page_keys(request)
        objects, gone = self._objects(keys, component), 0
        for at in pages:
            codes = self._asker().remove(objects[at], timeout_s=CALL_TIMEOUT_S)
            gone += not any(codes)
        return gone

    def role_state(self, engine: str) -> dict[str, Any]:
        """What its admin door says, with its failpoints beside it."""
        points = self._engines.ask(engine, "GET", "/failpoints")
        state: dict[str, Any] = self._named(self._engines.ask(engine, "GET", "/state"))
        return {**state, "failpoints": points}

    def broken_laws(self) -> list[str]:
        """Broken laws of the engines that run, each with the engine's name."""
        running = [engine for engine in self._names if self._process(engine)]
        return [f"{e}: {law}" for e in running for law in self._engines.broken_laws(e)]

    def set_failpoint(self, role: str, name: str, spec: str) -> None:
        self.refuse_failpoint(role, name)
        self._engines.ask(role, "PUT", f"/failpoints/{name}", spec)

    def clear_failpoints(self, role: str) -> None:
        if role in self._names:
            self._engines.ask(role, "DELETE", "/failpoints")

    def failpoint_hits(self, role: str, name: str) -> int:
        self.refuse_failpoint(role, name)
        found = self._engines.ask(role, "GET", "/failpoints").get(name, {})
        return int(found.get("hits", 0))

    def _objects(self, keys: bytes, component: str | None = None) -> list[list[str]]:
        """The names in Mooncake of what each page is made of."""
        return [
            [name for key in page for name in self._engines.mooncake_names(key)]
            for page in self._engines.objects(keys, component)
        ]

    def _named(self, document: Any) -> Any:
        """A document of an engine with stores by their names, wherever they stand."""
        if isinstance(document, dict):
            return {self._store(key): self._named(one) for key, one in document.items()}
        if isinstance(document, list):
            return [self._named(one) for one in document]
        return self._store(document) if isinstance(document, str) else document

    def _store(self, word: str) -> str:
        return self._plan.store_at(word) if word.count(":") == 1 else word

    def refuse_failpoint(self, role: str, name: str) -> None:
        """Mooncake has none, and its client runs nothing of ours."""
        if role not in self._names:
            reason = f"{role} is Mooncake's own, whose release has no failpoints"
            raise NotHere(capability="failpoints", target="mooncake", reason=reason)
        if name.startswith("client."):
            reason = f"{name} is in the client of the reference pool"
            raise NotHere(capability="failpoints", target="mooncake", reason=reason)
