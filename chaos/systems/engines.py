"""The engines of the reference system, over whichever pool they have.

They are asked the same things whatever L3 is: the reference pool or Mooncake. Beside
`refimpl.py` the only file of `chaos` that imports `refimpl`.
"""

from __future__ import annotations

import dataclasses
import json
from typing import TYPE_CHECKING, Any, Final, TypeVar

import grpc
import numpy as np

from chaos.errors import HarnessError, UsageError
from chaos.systems.base import Answer, Limits
from chaos.systems.doors import ask
from refimpl.core.hashing import KEY_BYTES
from refimpl.engine.model import BLOCK_TOKENS, expected_output, prompt_of
from refimpl.engine.settings import EngineSettings, hicache_settings
from refimpl.hicache.layout import layout_of
from refimpl.proto import pool_pb2, pool_pb2_grpc
from refimpl.role import GRPC_OPTIONS
from refimpl.settings import options_of

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from chaos.systems.base import ClusterSpec, Request

T = TypeVar("T")

CALL_TIMEOUT_S: Final = 5.0
RECONNECT: Final = (
    ("grpc.initial_reconnect_backoff_ms", 50),
    ("grpc.min_reconnect_backoff_ms", 50),
    ("grpc.max_reconnect_backoff_ms", 250),
    ("grpc.enable_http_proxy", 0),
)


class Engines:
    """The harness's end of all engines of a cluster, on a way that no fault touches.

    Args:
        service: the address of an engine's gRPC service.
        admin: that of its admin door.
        settings: what all engines have in common.
        token: what their doors ask for, "" for nothing.
    """

    def __init__(
        self,
        *,
        service: Callable[[str], str],
        admin: Callable[[str], str],
        settings: EngineSettings,
        token: str = "",
    ) -> None:
        self.settings = settings
        self._service = service
        self._admin = admin
        self._token = token
        self._channels: dict[str, grpc.Channel] = {}

    def prefill(self, engine: str, request: Request, *, timeout_s: float) -> Answer:
        """One request; whatever fails becomes an answer with ok=False."""
        ids = np.asarray(request.hash_ids, "<i8").tobytes()
        message = pool_pb2.PrefillRequest(
            request_id=request.request_id,
            session=request.session,
            input_length=request.input_length,
            hash_ids=ids,
            policy=request.policy,
        )
        try:
            response = self._stub(engine).Prefill(message, timeout=timeout_s)
        except grpc.RpcError as error:
            return _failed(request, error)
        return _answer(response)

    def abort(self, engine: str, request_id: str) -> None:
        message = pool_pb2.AbortRequest(request_id=request_id)
        self._stub(engine).Abort(message, timeout=CALL_TIMEOUT_S)

    def expected_output(self, request: Request) -> str:
        """The output hash of a run without any cache."""
        settings = self.settings
        return expected_output(
            request.hash_ids,
            request.input_length,
            settings.fingerprint,
            settings.page_bytes,
        )

    def page_keys(self, request: Request) -> bytes:
        """The keys of a prompt's whole pages, packed."""
        ids = np.asarray(request.hash_ids, np.int64)
        return prompt_of(ids, request.input_length, self.settings.fingerprint).keys

    def objects(self, keys: bytes, component: str | None = None) -> list[list[bytes]]:
        """The keys of the objects that each page is made of.

        Raises:
            UsageError: A page has no component of that name.
        """
        parts = [
            part
            for part in layout_of(hicache_settings(self.settings)).components
            if component is None or part.name == component
        ]
        if not parts:
            raise UsageError(f"a page has no component {component!r}")
        packed = [part.keys(keys) for part in parts]
        return [
            [text[at * KEY_BYTES : (at + 1) * KEY_BYTES] for text in packed]
            for at in range(len(keys) // KEY_BYTES)
        ]

    def mooncake_names(self, key: bytes) -> list[str]:
        """The names in Mooncake of one object: its ranks write parts of their own."""
        from refimpl.hicache.storage.mooncake import object_name

        ranks = self.settings.ranks
        return [object_name(key, rank, ranks) for rank in range(ranks)]

    def control(self, engine: str, **asked: Any) -> dict[str, Any]:
        """One operation of an engine's `Control`.

        Raises:
            HarnessError: It answered with an error.
        """
        message = pool_pb2.Json(text=json.dumps(asked))
        answer = self._stub(engine).Control(
            message,
            timeout=CALL_TIMEOUT_S,
            wait_for_ready=True,
            metadata=[("authorization", f"Bearer {self._token}")] * bool(self._token),
        )
        document: dict[str, Any] = json.loads(answer.text)
        if "error" in document:
            message_ = f"{engine} answered {asked['op']}: {document['error']}"
            raise HarnessError(message_)
        return document

    def now_s(self, engine: str) -> float:
        """What the clock of an engine's cache says."""
        return float(self.control(engine, op="state")["hicache"]["now"])

    def local_only(self, engine: str, on: bool) -> None:
        self.control(engine, op="breaker", force="open" if on else "none")

    def flush_local(self, engine: str) -> None:
        self.control(engine, op="flush", tiers=["l1", "l2"])

    def reset(self, engine: str) -> None:
        self.control(engine, op="breaker", force="none")
        self.control(engine, op="reset")

    def ask(self, engine: str, method: str, path: str, body: str = "") -> Any:
        """What an engine's admin door answers."""
        address = self._admin(engine)
        return ask(engine, address, method, path, body=body, token=self._token)

    def broken_laws(self, engine: str) -> list[str]:
        """What an engine says of its own pages, in words."""
        state = self.ask(engine, "GET", "/state")
        return list(state.get("hicache", {}).get("broken_laws", []))

    def close(self) -> None:
        """Closes all channels. Safe to call twice."""
        while self._channels:
            self._channels.popitem()[1].close()

    def _stub(self, engine: str) -> pool_pb2_grpc.EngineStub:
        channel = self._channels.get(engine)
        if channel is None:
            options = [*GRPC_OPTIONS, *RECONNECT]
            channel = grpc.insecure_channel(self._service(engine), options)
            self._channels[engine] = channel
        return pool_pb2_grpc.EngineStub(channel)  # type: ignore[no-untyped-call]


def engine_settings(spec: ClusterSpec, **own: Any) -> EngineSettings:
    """What all engines of a spec have in common, at factor 1.

    Raises:
        UsageError: An override names no setting, or a bad value.
    """
    return built(
        EngineSettings,
        spec.overrides.get("engine", {}),
        page_tokens=spec.page_tokens,
        page_bytes=spec.page_bytes,
        time_scale=spec.time_scale,
        seed=spec.seed,
        **own,
    )


def engine_limits(
    engine: EngineSettings,
    *,
    client_ttl_s: float,
    ping_interval_s: float,
    lease_ttl_s: float,
) -> Limits:
    """The promises of engines in real seconds, beside those of their pool."""
    cache, scale = hicache_settings(engine), engine.time_scale
    return Limits(
        deadline_base_s=engine.prefetch_base_s * scale,
        deadline_per_ki_token_s=engine.prefetch_per_ki_token_s * scale,
        deadline_max_s=engine.prefetch_max_s * scale,
        poll_s=engine.poll_s,
        client_ttl_s=client_ttl_s,
        ping_interval_s=ping_interval_s,
        lease_ttl_s=lease_ttl_s,
        breaker_window_s=engine.breaker_window_s * scale,
        breaker_open_for_s=engine.breaker_open_for_s * scale,
        breaker_probes_to_close=engine.breaker_probes_to_close,
        prefill_tokens_per_s=engine.prefill_rate,
        block_tokens=BLOCK_TOKENS,
        page_tokens=engine.page_tokens,
        breaker_min_samples=engine.breaker_min_samples,
        breaker_fault_ratio=engine.breaker_fault_ratio,
        breaker_consecutive_deadlines=engine.breaker_consecutive_deadlines,
        breaker_probe_deadline_s=cache.breaker.probe_deadline_s,
        quarantine_probe_interval_s=cache.quarantine.probe_interval_s,
    )


def built(cls: type[T], overrides: Mapping[str, Any], **own: Any) -> T:
    """Settings of a role from what the harness says and what overrides it.

    Raises:
        UsageError: An override names no setting, or a bad value.
    """
    try:
        return cls(**{**own, **overrides})
    except (TypeError, ValueError) as error:
        raise UsageError(f"{cls.__name__}: {error}") from error


def flags_of(settings: object) -> list[str]:
    """A settings object as command line flags; defaults are left out."""
    flags: list[str] = []
    for option in options_of(type(settings)):
        value = getattr(settings, option.name)
        if value == option.default:
            continue
        values = value if isinstance(value, tuple) else (value,)
        for each in values:
            text = str(each).lower() if isinstance(each, bool) else str(each)
            flags += [option.flag, text]
    return flags


def _answer(response: pool_pb2.PrefillResponse) -> Answer:
    names = [item.name for item in dataclasses.fields(Answer) if item.name != "stores"]
    values = {name: getattr(response, name) for name in names}
    return Answer(**values, stores=tuple(response.stores))


def _failed(request: Request, error: grpc.RpcError) -> Answer:
    """An answer for a request that the engine never answered."""
    call: Any = error  # grpcio raises what is a Call as well
    what = f"{call.code().name}: {call.details()}"
    failed = pool_pb2.PrefillResponse(
        request_id=request.request_id, input_tokens=request.input_length, error=what
    )
    return _answer(failed)
