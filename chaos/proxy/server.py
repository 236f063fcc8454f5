"""The embedded fault proxy server: Toxiproxy's HTTP API, and what we add to it.

Routes, status codes and bodies are those of Toxiproxy 2.12 (api.go). Ours are
`GET /proxies/{p}/connections`, `GET /proxies/{p}/counters`, `ttl_ms` on a toxic, and
`"toxics": [...]` in POST /proxies and /populate: a proxy that is born sick, without an
instant in which a connection could slip by (Toxiproxy#148).
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

from chaos.proxy.fault_proxy import FaultProxy
from chaos.proxy.http import HttpRequest, HttpResponse
from chaos.proxy.pipes import PipePool
from chaos.proxy.token import admits, is_loopback
from chaos.proxy.toxics import BadToxic, Stream, parse_change, parse_toxic

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from chaos.proxy.loop import Loop
    from chaos.proxy.toxics import Toxic

#: The Toxiproxy release whose API this is, with our mark as build metadata.
VERSION = "2.12.0+moonquake"
MAX_PROXIES = 1024
MAX_NAME = 512
#: Characters of a value that an answer repeats.
_TOLD = 100


class ApiError(Exception):
    """An answer other than success, in Toxiproxy's words."""

    def __init__(self, message: str, status: int) -> None:
        super().__init__(message)
        self.message = message
        self.status = status

    def wire(self) -> dict[str, Any]:
        return {"error": self.message, "status": self.status}


class ProxyServer:
    """All proxies of one process and the API over them; `handle` answers a request."""

    def __init__(
        self,
        loop: Loop,
        *,
        seed: int = 0,
        token: str = "",
        pipes: PipePool | None = None,
    ) -> None:
        self.proxies: dict[str, FaultProxy] = {}
        self._loop = loop
        self._seed = seed
        self._token = token
        self._pipes = pipes or PipePool()

    def close(self) -> None:
        for proxy in self.proxies.values():
            proxy.destroy()
        self.proxies.clear()
        self._pipes.close()

    def handle(self, request: HttpRequest) -> HttpResponse:
        """Answers one request; nothing in here waits."""
        if request.headers.get("user-agent", "").startswith("Mozilla/"):
            return _plain(403, "User agent not allowed")  # Toxiproxy's browser guard
        if not self._authorized(request):
            return _error(ApiError("missing or wrong bearer token", 401))
        try:
            return self._route(request)
        except ApiError as error:
            return _error(error)
        except BadToxic as error:
            return _error(ApiError(error.message, error.status))
        except OSError as error:
            return _error(ApiError(error.strerror or str(error), 500))
        except Exception as error:  # one request must not end every link of the run
            return _error(ApiError(f"{type(error).__name__} in the server", 500))

    def _authorized(self, request: HttpRequest) -> bool:
        if not self._token:
            return True
        return admits(self._token, request.headers.get("authorization", ""))

    # Routing.

    def _route(self, request: HttpRequest) -> HttpResponse:
        parts = [unquote(part) for part in request.path.split("/")[1:]]
        match parts:
            case ["reset" | "populate" | "version" | "metrics"]:
                return self._route_top(request, parts[0])
            case ["proxies"]:
                return self._route_proxies(request)
            case ["proxies", name] if name:
                return self._route_proxy(request, name)
            case ["proxies", name, "toxics"]:
                return self._route_toxics(request, name)
            case ["proxies", name, "toxics", toxic] if toxic:
                return self._route_toxic(request, name, toxic)
            case ["proxies", name, "connections" | "counters" as what]:
                _only(request, "GET")
                proxy = self._proxy(name)
                return _json(
                    proxy.live() if what == "connections" else proxy.counters()
                )
        return _plain(404, "404 page not found")

    def _route_top(self, request: HttpRequest, name: str) -> HttpResponse:
        if name == "reset":
            _only(request, "POST")
            for proxy in self.proxies.values():
                proxy.reset()
            return HttpResponse(status=204)
        if name == "populate":
            _only(request, "POST")
            return self._populate(request)
        _only(request, "GET")
        if name == "version":
            return _json({"version": VERSION})
        return _plain(200, self._metrics(), "text/plain; version=0.0.4; charset=utf-8")

    def _route_proxies(self, request: HttpRequest) -> HttpResponse:
        _only(request, "GET", "POST")
        if request.method == "GET":
            return _json({name: proxy.wire() for name, proxy in self.proxies.items()})
        return _json(self._create(_document(request)).wire(), 201)

    def _route_proxy(self, request: HttpRequest, name: str) -> HttpResponse:
        _only(request, "GET", "POST", "PATCH", "DELETE")
        proxy = self._proxy(name)
        if request.method == "DELETE":
            del self.proxies[name]
            proxy.destroy()
            return HttpResponse(status=204)
        if request.method != "GET":
            document = _document(request)
            proxy.update(
                self._listen(document, proxy.listen),
                _field(document, "upstream", proxy.upstream),
                enabled=_flag(document, "enabled", default=proxy.enabled),
            )
        return _json(proxy.wire())

    def _route_toxics(self, request: HttpRequest, name: str) -> HttpResponse:
        _only(request, "GET", "POST")
        proxy = self._proxy(name)
        if request.method == "GET":
            return _json([toxic.wire() for toxic in proxy.in_order()])
        toxic = parse_toxic(_document(request))
        proxy.add(toxic)
        return _json(toxic.wire())

    def _route_toxic(
        self, request: HttpRequest, name: str, toxic_name: str
    ) -> HttpResponse:
        _only(request, "GET", "POST", "PATCH", "DELETE")
        proxy = self._proxy(name)
        toxic = proxy.find(toxic_name)
        if toxic is None:
            raise ApiError("toxic not found", 404)
        if request.method == "DELETE":
            proxy.remove(toxic)
            return HttpResponse(status=204)
        if request.method != "GET":
            proxy.change(toxic, parse_change(toxic, _document(request)))
        return _json(toxic.wire())

    # Acting.

    def _proxy(self, name: str) -> FaultProxy:
        proxy = self.proxies.get(name)
        if proxy is None:
            raise ApiError("proxy not found", 404)
        return proxy

    def _create(self, document: Mapping[str, Any]) -> FaultProxy:
        name = _field(document, "name", "")
        upstream = _field(document, "upstream", "")
        _flag(document, "enabled", default=True)
        for field, value in (("name", name), ("upstream", upstream)):
            if not value:
                raise ApiError(f"missing required field: {field}", 400)
        toxics = _toxics(document)
        if name in self.proxies:
            raise ApiError("proxy already exists", 409)
        return self._open(document, name, upstream, toxics)

    def _listen(self, document: Mapping[str, Any], default: str) -> str:
        """Where a proxy shall listen: an API without a token opens nothing wider.

        A door that any user of the host may use must not open the way to what only
        listens on loopback.
        """
        listen = _field(document, "listen", default)
        host = listen.rpartition(":")[0]
        if host and not self._token and not is_loopback(host):
            problem = (
                f"listen {listen[:_TOLD]!r} is not loopback and needs an API token"
            )
            raise ApiError(problem, 403)
        return listen

    def _open(
        self,
        document: Mapping[str, Any],
        name: str,
        upstream: str,
        toxics: Iterable[Toxic],
    ) -> FaultProxy:
        """Makes a proxy with its toxics on before its listener opens."""
        if len(name) > MAX_NAME:
            raise ApiError(f"name has more than {MAX_NAME} characters", 400)
        if len(self.proxies) >= MAX_PROXIES:
            raise ApiError(f"more than {MAX_PROXIES} proxies", 500)
        proxy = FaultProxy(
            loop=self._loop,
            pipes=self._pipes,
            seed=self._seed,
            name=name,
            listen=self._listen(document, ""),
            upstream=upstream,
        )
        try:
            for toxic in toxics:
                proxy.add(toxic)
            if _flag(document, "enabled", default=True):
                proxy.start()
        except BaseException:
            proxy.destroy()
            raise
        self.proxies[name] = proxy
        return proxy

    def _populate(self, request: HttpRequest) -> HttpResponse:
        made: list[dict[str, Any]] | None = None
        try:
            documents = _populate_documents(request)
            made = []
            for document in documents:
                made.append(self._create_or_replace(document).wire())
        except (ApiError, BadToxic) as error:
            answer = ApiError(error.message, error.status).wire()
        except OSError as error:
            answer = ApiError(error.strerror or str(error), 500).wire()
        else:
            return _json({"proxies": made}, 201)
        return _json(answer | {"proxies": made}, int(answer["status"]))

    def _create_or_replace(self, document: Mapping[str, Any]) -> FaultProxy:
        """An equal proxy stays as it is, toxics too; another one takes its place."""
        name, upstream = str(document["name"]), str(document["upstream"])
        toxics = _toxics(document)
        existing = self.proxies.get(name)
        if existing is not None:
            listen = _field(document, "listen", "")
            if upstream == existing.upstream and listen == existing.listen:
                return existing
            del self.proxies[name]
            existing.destroy()
        return self._open(document, name, upstream, toxics)

    # Metrics.

    def _metrics(self) -> str:
        """Prometheus text; the names of proxy bytes are Toxiproxy's (METRICS.md)."""
        lines = []
        for name, way in (("received", "in"), ("sent", "out")):
            metric = f"toxiproxy_proxy_{name}_bytes_total"
            lines.append(f"# TYPE {metric} counter")
            for proxy in self.proxies.values():
                lines += [
                    f"{metric}{_labels(proxy, stream)} {proxy.carried(way, stream)}"
                    for stream in Stream
                ]
        for part in ("bytes", "chunks", "connections"):
            metric = f"toxiproxy_toxic_{part}_total"
            lines.append(f"# TYPE {metric} counter")
            for proxy in self.proxies.values():
                lines += [
                    f"{metric}{{proxy={_quote(proxy.name)},toxic={_quote(toxic)}}} "
                    f"{counter[part]}"
                    for toxic, counter in proxy.counters().items()
                ]
        lines.append("# TYPE toxiproxy_proxy_live_connections gauge")
        lines += [
            f"toxiproxy_proxy_live_connections{{proxy={_quote(proxy.name)}}} "
            f"{len(proxy.connections)}"
            for proxy in self.proxies.values()
        ]
        return "\n".join(lines) + "\n"


def _labels(proxy: FaultProxy, stream: Stream) -> str:
    return (
        f"{{direction={_quote(stream.value)},listener={_quote(proxy.listen)},"
        f"proxy={_quote(proxy.name)},upstream={_quote(proxy.upstream)}}}"
    )


def _quote(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)


def _only(request: HttpRequest, *methods: str) -> None:
    if request.method not in methods:
        raise ApiError("", 405)


def _decode(request: HttpRequest) -> Any:
    if not request.body.strip():
        raise ApiError("bad request body: EOF", 400)
    try:
        return json.loads(request.body, parse_constant=_no_constant)
    except (ValueError, RecursionError) as error:
        raise ApiError(f"bad request body: {error}", 400) from error


def _no_constant(text: str) -> Any:
    raise ValueError(f"{text} is not JSON")


def _document(request: HttpRequest) -> Mapping[str, Any]:
    document = _decode(request)
    if not isinstance(document, dict):
        raise ApiError("bad request body: not an object", 400)
    return document


def _populate_documents(request: HttpRequest) -> list[Mapping[str, Any]]:
    """Checks all of /populate before anything is made, as Toxiproxy does."""
    documents = _decode(request)
    if not isinstance(documents, list):
        raise ApiError("bad request body: not an array", 400)
    for place, document in enumerate(documents, start=1):
        if not isinstance(document, dict):
            raise ApiError("bad request body: not an object", 400)
        for field in ("name", "upstream"):
            if not _field(document, field, ""):
                raise ApiError(f"missing required field: {field} at proxy {place}", 400)
    return documents


def _toxics(document: Mapping[str, Any]) -> list[Toxic]:
    toxics = document.get("toxics")
    if toxics is None:
        return []
    if not isinstance(toxics, list) or not all(isinstance(one, dict) for one in toxics):
        raise ApiError("bad request body: toxics must be an array of objects", 400)
    return [parse_toxic(one) for one in toxics]


def _field(document: Mapping[str, Any], name: str, default: str) -> str:
    value = document.get(name)
    if value is None:
        return default
    if not isinstance(value, str):
        raise ApiError(f"bad request body: {name} must be a string", 400)
    return value


def _flag(document: Mapping[str, Any], name: str, *, default: bool) -> bool:
    value = document.get(name)
    if value is None:
        return default
    if not isinstance(value, bool):
        raise ApiError(f"bad request body: {name} must be a boolean", 400)
    return value


def _json(document: Any, status: int = 200) -> HttpResponse:
    body = json.dumps(document, separators=(",", ":")).encode()
    return HttpResponse(status=status, body=body)


def _plain(status: int, text: str, content_type: str = "text/plain") -> HttpResponse:
    # JSON can name a proxy by half a character, which UTF-8 cannot write.
    body = text.encode("utf-8", "backslashreplace")
    return HttpResponse(status=status, body=body, content_type=content_type)


def _error(error: ApiError) -> HttpResponse:
    if error.status == 405:
        return HttpResponse(status=405)
    return _json(error.wire(), error.status)
