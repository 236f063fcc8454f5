"""Drives a fault proxy server, ours or Toxiproxy, and believes nothing it says.

Built on `toxiproxy-python`, whose calls have no timeout, whose host and port are global
to the process, and which returns None when the server answers 500, so that a fault is
silently missing. Here every call has a deadline and its own server, every status is
checked, and every change is read back: what is not there raises `FaultNotInjected`,
what cannot be taken back raises `ResidualFault`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal
from urllib.parse import quote, urlsplit

from toxiproxy.api import APIConsumer
from toxiproxy.exceptions import InvalidToxic, NotFound, ProxyExists
from toxiproxy.proxy import Proxy as WireProxy
from toxiproxy.toxic import Toxic as WireToxic

from chaos.errors import (
    ChaosError,
    FaultNotInjected,
    ProxyError,
    ProxyRefused,
    ProxyUnreachable,
    ResidualFault,
    UsageError,
)
from chaos.proxy.known import KnownProxies
from chaos.proxy.undo import READ_S, REMOVE_S, Removal, Undo, Undone

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    Flavour = Literal["embedded", "toxiproxy"]

#: Deadline of one call, seconds: the server is on this host and never waits for data.
CALL_TIMEOUT_S = 2.0
#: No way around an HTTP proxy of the environment: the server is on this host.
_DIRECT = {"http": None, "https": None, "all": None}
_EMBEDDED_MARK = "+moonquake"


@dataclass(frozen=True, slots=True, kw_only=True)
class ToxicInfo:
    """A toxic: to be created, or as it was read back.

    `name` "" becomes `<type>_<stream>`. `ttl_ms` is how long it lives by itself; None
    in what was read back means that nobody but the harness removes it (Toxiproxy).
    """

    type: str
    name: str = ""
    stream: str = "downstream"
    toxicity: float = 1.0
    attributes: Mapping[str, int] = field(default_factory=dict)
    ttl_ms: int | None = None

    @property
    def full_name(self) -> str:
        return self.name or f"{self.type}_{self.stream}"


@dataclass(frozen=True, slots=True, kw_only=True)
class ProxyInfo:
    """A proxy as it was read back; `listen` holds the real port."""

    name: str
    listen: str
    upstream: str
    enabled: bool
    toxics: tuple[ToxicInfo, ...] = ()

    @property
    def address(self) -> tuple[str, int]:
        """Host and port to connect to."""
        host, _, port = self.listen.rpartition(":")
        return host.strip("[]"), int(port)


class ProxyClient:
    """One fault proxy server. Keeps no connection; safe to use from several threads.

    Args:
        url: of its API.
        token: for an API that asks for one.
        timeout_s: deadline of a call that names none.
        restart: kills the server and starts it on the same address, when it is ours to
            do so: the last way to take a fault back from a server that hangs.
    """

    def __init__(
        self,
        url: str,
        *,
        token: str = "",
        timeout_s: float = CALL_TIMEOUT_S,
        restart: Callable[[], None] | None = None,
    ) -> None:
        self.url = url.rstrip("/")
        self._timeout_s = timeout_s
        self._consumer = _consumer_for(self.url)
        self._headers = {"Authorization": f"Bearer {token}"} if token else {}
        self._flavour: Flavour | None = None
        self._known = KnownProxies()
        self._undo = Undo(self, self._known, restart)

    # The server.

    def version(self) -> str:
        """The version the server says it has; a Toxiproxy built bare says "git"."""
        answer = self.call("get", "/version")
        version = answer.get("version") if isinstance(answer, dict) else None
        if not isinstance(version, str):
            raise ProxyRefused(
                url=self.url, call="GET /version", status=200, message=repr(answer)
            )
        return version

    @property
    def flavour(self) -> Flavour:
        """Which server answers; asked once."""
        if self._flavour is None:
            ours = self.version().endswith(_EMBEDDED_MARK)
            self._flavour = "embedded" if ours else "toxiproxy"
        return self._flavour

    @property
    def heals_itself(self) -> bool:
        """Whether `ttl_ms` is kept by the server, also when the harness is dead."""
        return self.flavour == "embedded"

    def reset(self) -> None:
        """Enables every proxy and removes every toxic, verified.

        Raises:
            ResidualFault: naming the first proxy that is still disturbed.
        """
        try:
            self.call("post", "/reset")
        except ProxyError:
            self.heal()
        for info in self.proxies().values():
            self._known.seen(info)
            names = [toxic.full_name for toxic in info.toxics]
            if info.toxics or not info.enabled:
                left = ", ".join(names) or "disabled"
                raise ResidualFault(fault=left, target=info.name, reason="after reset")

    def heal(self, names: Iterable[str] | None = None) -> None:
        """Takes every toxic off these proxies (all) and enables them, verified.

        One proxy that hangs keeps the whole list from being read; what this client
        made is then made again, with the server when it is ours.

        Raises:
            ResidualFault: a toxic cannot be taken back, or a proxy stays disabled.
            ProxyUnreachable: the server died, or somebody else's hangs for good.
        """
        wanted = None if names is None else frozenset(names)
        try:
            found = self.proxies(timeout_s=self._undo.patience_s(READ_S))
        except ProxyUnreachable as error:
            if not error.hung:
                raise
            self._undo.everything(wanted)
            found = self.proxies()
        seen = [
            info for name, info in found.items() if wanted is None or name in wanted
        ]
        placed = [(info.name, toxic.name) for info in seen for toxic in info.toxics]
        if placed:
            self.remove_toxics(placed)
        for info in seen:
            if not info.enabled:
                self.set_enabled(info.name, True)

    # Proxies.

    def proxies(self, *, timeout_s: float | None = None) -> dict[str, ProxyInfo]:
        answer = self.call("get", "/proxies", timeout_s=timeout_s)
        return {name: _proxy_info(document) for name, document in answer.items()}

    def proxy(self, name: str, *, timeout_s: float | None = None) -> ProxyInfo:
        path = f"/proxies/{quote(name, safe='')}"
        return _proxy_info(self.call("get", path, timeout_s=timeout_s))

    def create(
        self,
        name: str,
        listen: str,
        upstream: str,
        toxics: Iterable[ToxicInfo] = (),
        *,
        timeout_s: float | None = None,
    ) -> ProxyInfo:
        """Makes a proxy with its toxics on before the first connection can come.

        On ours this is one call; on Toxiproxy it is made disabled, armed, then enabled.
        Nothing is left of it when any part fails.
        """
        wanted = tuple(toxics)
        document: dict[str, Any] = {
            "name": name,
            "listen": listen,
            "upstream": upstream,
        }
        if self.flavour == "embedded":
            document["toxics"] = [_toxic_document(toxic) for toxic in wanted]
        else:
            document["enabled"] = not wanted
        self.call("post", "/proxies", document, timeout_s=timeout_s)
        try:
            if self.flavour != "embedded" and wanted:
                for toxic in wanted:
                    self._arm(name, toxic)
                self.set_enabled(name, True)
            info = self._verified(name, upstream, wanted, timeout_s)
        except ChaosError:
            self._discard(name)
            raise
        self._known.made(info)
        return info

    def delete(self, name: str) -> None:
        """Deletes a proxy and closes its connections; one that is gone is no error.

        A server of ours that hangs on it is restarted without it.
        """
        generation = self._undo.generation
        self._known.gone(name)
        try:
            self._delete(name)
        except ProxyUnreachable as error:
            if not self._undo.restarted_since(generation, hung=error.hung):
                raise
            self._delete(name)

    def set_enabled(self, name: str, enabled: bool) -> ProxyInfo:
        """Disables (refuse, close live connections) or enables a proxy, read back.

        Raises:
            FaultNotInjected: it is still enabled.
            ResidualFault: it is still disabled.
        """
        path = f"/proxies/{quote(name, safe='')}"
        reason = "read back otherwise"
        try:
            self.call("post", path, {"enabled": enabled})
        except ProxyRefused as error:
            reason = str(error)
        info = self.proxy(name)
        if info.enabled == enabled:
            self._known.switched(name, enabled)
            return info
        if enabled:
            raise ResidualFault(fault="disabled", target=name, reason=reason)
        raise FaultNotInjected(fault="disabled", target=name, reason=reason)

    # Toxics.

    def toxics(
        self, proxy: str, *, timeout_s: float | None = None
    ) -> dict[str, ToxicInfo]:
        path = f"/proxies/{quote(proxy, safe='')}/toxics"
        if timeout_s is None:
            timeout_s = self._undo.patience_s(READ_S)
        answer = self.call("get", path, timeout_s=timeout_s)
        infos = [_toxic_info(document) for document in answer]
        return {info.name: info for info in infos}

    def add_toxic(
        self,
        proxy: str,
        type: str,  # noqa: A002 - the name on the wire
        *,
        name: str | None = None,
        stream: str = "downstream",
        toxicity: float = 1.0,
        attributes: Mapping[str, int] = {},
        ttl_ms: int | None = None,
    ) -> ToxicInfo:
        """Adds a toxic to live and new connections, reads it back and compares.

        `ttl_ms` on Toxiproxy cannot be kept: the toxic read back has `ttl_ms` None.

        Raises:
            FaultNotInjected: it is not there, or not as it was ordered.
        """
        wanted = ToxicInfo(
            type=type,
            name=name or "",
            stream=stream,
            toxicity=toxicity,
            attributes=dict(attributes),
            ttl_ms=ttl_ms,
        )
        return self._arm(proxy, wanted)

    def remove_toxic(
        self, proxy: str, name: str, deadline_s: float | None = None
    ) -> Removal:
        """Removes a toxic, verified, even from a server that hangs on it.

        The answer says how far it had to go; see `chaos.proxy.undo`. `deadline_s` is
        that of the plain removal.

        Raises:
            ResidualFault: nothing helped.
        """
        return self.remove_toxics([(proxy, name)], deadline_s).removal

    def remove_toxics(
        self, placed: Iterable[tuple[str, str]], deadline_s: float | None = None
    ) -> Undone:
        """Removes toxics, given as (proxy, name), from all their proxies at once.

        Raises:
            ResidualFault: nothing helped.
        """
        first_s = self._undo.patience_s(REMOVE_S) if deadline_s is None else deadline_s
        return self._undo.toxics(placed, first_s)

    @property
    def removals(self) -> Mapping[str, int]:
        """How often each step of undoing was the furthest one needed."""
        return dict(self._undo.counts)

    def connections(self, proxy: str) -> list[dict[str, Any]] | None:
        """Live connections and the toxics applied to each; None on Toxiproxy."""
        if self.flavour != "embedded":
            return None
        answer = self.call("get", f"/proxies/{quote(proxy, safe='')}/connections")
        return list(answer)

    def counters(self, proxy: str) -> dict[str, dict[str, int]] | None:
        """Hits by toxic, also of removed ones: bytes, chunks, connections.

        `down` counts connections cut by disabling. None on Toxiproxy: it counts none.
        """
        if self.flavour != "embedded":
            return None
        answer = self.call("get", f"/proxies/{quote(proxy, safe='')}/counters")
        return dict(answer)

    # Behind.

    def _arm(self, proxy: str, wanted: ToxicInfo) -> ToxicInfo:
        path = f"/proxies/{quote(proxy, safe='')}/toxics"
        document = _toxic_document(wanted)
        if self.flavour != "embedded":
            document.pop("ttl_ms", None)
        reason = "the server said yes and does not have it"
        self._known.armed(proxy, wanted)
        try:
            self.call("post", path, document)
        except ProxyError as error:
            reason = str(error)
        try:
            found = self.toxics(proxy).get(wanted.full_name)
        except ProxyError as error:
            raise FaultNotInjected(
                fault=wanted.full_name, target=proxy, reason=f"{reason}; {error}"
            ) from error
        if found is None:
            self._known.disarmed(proxy, [wanted.full_name])
        return self._same(proxy, wanted, found, reason)

    def _same(
        self, proxy: str, wanted: ToxicInfo, found: ToxicInfo | None, reason: str
    ) -> ToxicInfo:
        """The toxic as read back, if it is what was ordered."""
        if found is None:
            raise FaultNotInjected(fault=wanted.full_name, target=proxy, reason=reason)
        differences = _differences(wanted, found, ttl=self.heals_itself)
        if differences:
            raise FaultNotInjected(
                fault=wanted.full_name,
                target=proxy,
                reason=f"read back with {', '.join(differences)}",
            )
        return found

    def _verified(
        self,
        name: str,
        upstream: str,
        wanted: tuple[ToxicInfo, ...],
        timeout_s: float | None,
    ) -> ProxyInfo:
        info = self.proxy(name, timeout_s=timeout_s)
        if not info.enabled or info.upstream != upstream:
            raise ProxyRefused(
                url=self.url,
                call=f"create {name}",
                status=201,
                message=f"read back as {info}",
            )
        found = {toxic.name: toxic for toxic in info.toxics}
        for toxic in wanted:
            self._same(name, toxic, found.get(toxic.full_name), "not among its toxics")
        return info

    def _delete(self, name: str) -> None:
        try:
            self.call("delete", f"/proxies/{quote(name, safe='')}")
        except ProxyRefused as error:
            if error.status != 404:
                raise

    def _discard(self, name: str) -> None:
        """Clean-up after a failed creation; the first error is the one to tell."""
        try:
            self._delete(name)
        except ProxyError:
            return

    def call(
        self,
        method: str,
        path: str,
        document: Any = None,
        *,
        timeout_s: float | None = None,
    ) -> Any:
        """One HTTP call with a deadline; the parsed body, None where there is none.

        Raises:
            ProxyUnreachable: no answer in time.
            ProxyRefused: an error status or a body that is not JSON.
        """
        call = f"{method.upper()} {path}"
        keywords: dict[str, Any] = {
            "timeout": self._timeout_s if timeout_s is None else timeout_s,
            "headers": self._headers,
            "proxies": _DIRECT,
            "allow_redirects": False,
        }
        if method == "post":
            keywords["json"] = document
        try:
            response = getattr(self._consumer, method)(path, **keywords)
        except (ProxyExists, NotFound, InvalidToxic) as error:
            raise self._refused(call, _STATUS[type(error)], error) from error
        except OSError as error:  # requests' own errors are OSErrors
            raise ProxyUnreachable(
                url=self.url, call=call, reason=type(error).__name__
            ) from error
        return self._body(call, response)

    def _refused(self, call: str, status: int, error: Exception) -> ProxyRefused:
        content = error.args[0] if error.args else b""
        text = content.decode("utf-8", "replace") if isinstance(content, bytes) else ""
        return ProxyRefused(
            url=self.url, call=call, status=status, message=text.strip()[:300]
        )

    def _body(self, call: str, response: Any) -> Any:
        status = int(response.status_code)
        if status >= 300:
            message = str(response.text).strip()[:300]
            raise ProxyRefused(url=self.url, call=call, status=status, message=message)
        if status == 204 or not response.content:
            return None
        try:
            return response.json()
        except ValueError as error:
            raise ProxyRefused(
                url=self.url, call=call, status=status, message="not JSON"
            ) from error


_STATUS = {ProxyExists: 409, NotFound: 404, InvalidToxic: 400}


def _consumer_for(url: str) -> Any:
    """The library's API consumer with a host and port of its own.

    The library keeps them on the class, one server a process; a class a server is the
    way around that leaves the library, and its other users, alone.
    """
    parts = urlsplit(url)
    if parts.scheme != "http" or not parts.hostname:
        raise UsageError(f"{url} is not the http:// address of a fault proxy")
    host = f"[{parts.hostname}]" if ":" in parts.hostname else parts.hostname
    return type("Consumer", (APIConsumer,), {"host": host, "port": parts.port or 8474})


def _toxic_document(toxic: ToxicInfo) -> dict[str, Any]:
    document: dict[str, Any] = {
        "name": toxic.full_name,
        "type": toxic.type,
        "stream": toxic.stream,
        "toxicity": toxic.toxicity,
        "attributes": dict(toxic.attributes),
    }
    if toxic.ttl_ms is not None:
        document["ttl_ms"] = toxic.ttl_ms
    return document


def _toxic_info(document: Mapping[str, Any]) -> ToxicInfo:
    wire = WireToxic(**document)
    return ToxicInfo(
        type=wire.type,
        name=wire.name,
        stream=wire.stream,
        toxicity=float(wire.toxicity),
        attributes=dict(wire.attributes),
        ttl_ms=document.get("ttl_ms"),
    )


def _proxy_info(document: Mapping[str, Any]) -> ProxyInfo:
    wire = WireProxy(**document)
    return ProxyInfo(
        name=wire.name,
        listen=wire.listen,
        upstream=wire.upstream,
        enabled=bool(wire.enabled),
        toxics=tuple(_toxic_info(toxic) for toxic in document.get("toxics", ())),
    )


def _differences(wanted: ToxicInfo, found: ToxicInfo, *, ttl: bool) -> list[str]:
    """What was read back and is not what was ordered, in words."""
    differences = [
        f"{name}={getattr(found, name)!r} instead of {getattr(wanted, name)!r}"
        for name in ("type", "stream")
        if getattr(found, name) != getattr(wanted, name)
    ]
    if abs(found.toxicity - wanted.toxicity) > 1e-6:  # float32 on Toxiproxy's side
        differences.append(f"toxicity={found.toxicity} instead of {wanted.toxicity}")
    for name, value in wanted.attributes.items():
        if found.attributes.get(name) != value:
            got = found.attributes.get(name)
            differences.append(f"{name}={got!r} instead of {value!r}")
    if ttl and found.ttl_ms != wanted.ttl_ms:
        differences.append(f"ttl_ms={found.ttl_ms} instead of {wanted.ttl_ms}")
    return differences
