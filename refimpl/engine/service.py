"""The gRPC face of an engine: `Prefill`, `Abort`, and `Control` for harnesses.

`Control` takes one JSON object and answers one; failures answer `{"error": ...}`:

| op | effect |
|---|---|
| `{"op": "state"}` | gauges, counters, HiCache ledger |
| `{"op": "settings"}` | limits as configured, in real (scaled) seconds |
| `{"op": "flush", "tiers": ["l1", "l2"]}` | empties local tiers |
| `{"op": "breaker", "force": "open" or "none"}` | local-only, or back to normal |
| `{"op": "reset"}` | empty tiers, breaker closed, counters zero |

An engine with an admin token asks for it here too, as metadata `authorization`.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Protocol

import grpc
import numpy as np

from refimpl.core.codes import Code
from refimpl.engine.engine import Order
from refimpl.proto import pool_pb2, pool_pb2_grpc

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from refimpl.engine.engine import Engine, Served
    from refimpl.security.token import Token

_NO_ENTRY: Final = (
    "Control asks for the metadata `authorization: Bearer TOKEN`; an engine off "
    "loopback without a token (REFIMPL_TOKEN, --token-file) has no Control"
)


class Levers(Protocol):
    """What a harness may pull at, given by the process that owns the parts."""

    def state(self) -> dict[str, Any]: ...
    def settings(self) -> dict[str, Any]: ...
    def flush(self, tiers: Sequence[str]) -> None: ...
    def force_breaker(self, state: str) -> None: ...
    def reset(self) -> None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class ControlGuard:
    """Who may use `Control`: it is an admin door like the one over HTTP."""

    token: Token | None = None
    open_door: bool = True
    """Whether callers need nothing where there is no token: on loopback."""

    def admits(self, context: grpc.ServicerContext) -> bool:
        """Whether a call carries what it needs, as metadata `authorization`."""
        if self.token is None:
            return self.open_door
        for name, value in context.invocation_metadata():
            if name == "authorization":
                return self.token.admits(value)
        return False


class EngineService(pool_pb2_grpc.EngineServicer):
    """Translates messages; knows nothing of its own."""

    def __init__(
        self, engine: Engine, levers: Levers, guard: ControlGuard | None = None
    ) -> None:
        self._engine = engine
        self._guard = guard or ControlGuard()
        self._ops = _ops(levers)

    def Prefill(
        self, request: pool_pb2.PrefillRequest, context: grpc.ServicerContext
    ) -> pool_pb2.PrefillResponse:
        """Serves one request; a client that goes away aborts it."""
        ticket = self._engine.ticket(request.request_id)
        if not context.add_callback(lambda: ticket.cancel("the client went away")):
            ticket.cancel("the client went away")
        ids = np.frombuffer(request.hash_ids[: len(request.hash_ids) // 8 * 8], "<i8")
        order = Order(
            request_id=request.request_id,
            input_length=request.input_length,
            hash_ids=ids,
            policy=request.policy,
        )
        return response_of(self._engine.serve(order, ticket))

    def Abort(
        self, request: pool_pb2.AbortRequest, context: grpc.ServicerContext
    ) -> pool_pb2.Status:
        """Calls a request off; one that is not inside is OBJECT_NOT_FOUND."""
        if self._engine.abort(request.request_id):
            return pool_pb2.Status(code=Code.OK)
        return pool_pb2.Status(code=Code.OBJECT_NOT_FOUND, detail="not inside")

    def Control(
        self, request: pool_pb2.Json, context: grpc.ServicerContext
    ) -> pool_pb2.Json:
        """One operation for a harness."""
        if not self._guard.admits(context):
            return context.abort(grpc.StatusCode.UNAUTHENTICATED, _NO_ENTRY)
        try:
            asked = json.loads(request.text)
            answer = self._ops[asked["op"]](asked)
        except Exception as error:  # told to the caller, whose mistake it mostly is
            answer = {"error": f"{type(error).__name__}: {error}", "ops": [*self._ops]}
        return pool_pb2.Json(text=json.dumps(answer, default=str))


def response_of(served: Served) -> pool_pb2.PrefillResponse:
    """The message of what became of a request."""
    reused = served.reused
    page_tokens = served.page_tokens
    return pool_pb2.PrefillResponse(
        request_id=served.request_id,
        ok=served.ok,
        error=served.error,
        queue_s=served.queue_s,
        cache_wait_s=reused.wait_s,
        deadline_s=reused.deadline_s,
        prefill_modelled_s=served.prefill_modelled_s,
        ttft_modelled_s=served.ttft_modelled_s,
        input_tokens=served.input_tokens,
        l1_tokens=reused.l1_pages * page_tokens,
        l2_tokens=reused.l2_pages * page_tokens,
        l3_tokens=reused.l3_pages * page_tokens,
        recomputed_tokens=served.recomputed_tokens,
        output_hash=served.output_hash,
        prefetch_outcome=reused.outcome,
        stores=reused.stores,
        touched_fault=reused.touched_fault,
    )


def _ops(levers: Levers) -> dict[str, Callable[[dict[str, Any]], dict[str, Any]]]:
    def flush(asked: dict[str, Any]) -> dict[str, Any]:
        levers.flush(asked.get("tiers", ["l1", "l2"]))
        return {"ok": True}

    def breaker(asked: dict[str, Any]) -> dict[str, Any]:
        levers.force_breaker(asked["force"])
        return {"ok": True}

    def reset(_asked: dict[str, Any]) -> dict[str, Any]:
        levers.reset()
        return {"ok": True}

    return {
        "state": lambda _asked: levers.state(),
        "settings": lambda _asked: levers.settings(),
        "flush": flush,
        "breaker": breaker,
        "reset": reset,
    }
