"""One OpenAI-compatible server, asked as a client would: streamed, timed, counted.

`POST /v1/completions` (or chat) with `stream` and `stream_options.include_usage`: the
time to the first piece of text is TTFT, the pace of the rest is TPOT, and
`usage.prompt_tokens_details.cached_tokens` is what the prefix cache gave (vLLM, SGLang,
OpenAI). A server that does not report one of them has it as not measured.

Every request opens its own connection: a connection that the server has closed
meanwhile must not be taken for a failed request. Nothing is ever sent twice.
"""

from __future__ import annotations

import http.client
import json
import random
import socket
import ssl
import time
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Literal
from urllib.parse import urlsplit

from chaos.errors import UsageError
from chaos.load.trace import BLOCK_TOKENS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from chaos.systems.base import Request

Api = Literal["completions", "chat"]
MAX_LINE_BYTES = 1 << 20
MAX_EVENTS = 100_000
_WORDS = (
    "the", "of", "and", "to", "in", "is", "you", "that", "it", "he", "was", "for",
    "on", "are", "as", "with", "his", "they", "at", "be", "this", "have", "from", "or",
    "one", "had", "by", "word", "but", "not", "what", "all",
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Streamed:
    """What one request gave. None is what the server did not tell, or never came."""

    ok: bool
    error: str = ""
    ttft_s: float | None = None
    tpot_s: float | None = None
    e2e_s: float = 0.0
    prompt_tokens: int | None = None
    cached_tokens: int | None = None
    completion_tokens: int | None = None
    text: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Endpoint:
    """Where and how to ask.

    `url` is the base, with or without `/v1`. `key` is sent as a bearer token; it is
    never shown. `max_tokens` bounds what a request generates.
    """

    url: str
    model: str
    api: Api = "completions"
    key: str = ""
    max_tokens: int = 16

    def __repr__(self) -> str:
        return f"Endpoint({self.url!r}, model={self.model!r}, api={self.api!r})"

    def ask(
        self,
        request: Request,
        *,
        timeout_s: float,
        clock: Callable[[], float] = time.perf_counter,
        on_open: Callable[[http.client.HTTPConnection], None] | None = None,
    ) -> Streamed:
        """Sends one request and reads its stream to the end; never raises for it.

        `on_open` gets the connection, so that somebody else can close it.
        """
        begin_s = clock()
        stream = _Stream(begin_s, clock)
        connection = _connect(self.url, timeout_s)
        try:
            if on_open is not None:
                on_open(connection)
            self._post(connection, self._body(request))
            response = connection.getresponse()
            if response.status != http.client.OK:
                return _refused(response, clock() - begin_s)
            stream.read(response, begin_s + timeout_s)
        except (OSError, http.client.HTTPException, ValueError) as error:
            words = f"{type(error).__name__}: {error}"
            return Streamed(ok=False, error=words, e2e_s=clock() - begin_s)
        finally:
            connection.close()
        return stream.result()

    def _body(self, request: Request) -> dict[str, Any]:
        text = prompt_text(request)
        body: dict[str, Any] = {
            "model": self.model,
            "stream": True,
            "stream_options": {"include_usage": True},
            "max_tokens": max(1, min(self.max_tokens, request.output_length or 1)),
            "temperature": 0,
        }
        if self.api == "chat":
            return {**body, "messages": [{"role": "user", "content": text}]}
        return {**body, "prompt": text}

    def _post(
        self, connection: http.client.HTTPConnection, body: dict[str, Any]
    ) -> None:
        path = "chat/completions" if self.api == "chat" else "completions"
        connection.request(
            "POST",
            f"{_base(self.url)}/v1/{path}",
            body=json.dumps(body).encode(),
            headers={"Content-Type": "application/json", **_headers(self.key)},
        )


def check_url(url: str) -> str:
    """The URL of an endpoint, as it is used.

    Raises:
        UsageError: It is no http(s) URL of a server.
    """
    try:
        parts = urlsplit(url)
        port_is_good = parts.port is None or parts.port > 0
    except ValueError:
        parts, port_is_good = urlsplit(""), False
    good = parts.scheme in ("http", "https") and parts.hostname and port_is_good
    if not good or parts.query or parts.fragment:
        raise UsageError(
            f"{url!r} is no URL of an endpoint", "write http://HOST:PORT or https://..."
        )
    if parts.username or parts.password:
        problem = "a URL of an endpoint holds a password"
        raise UsageError(problem, "put the key into an environment variable")
    return url.rstrip("/")


def model_of(url: str, key: str, *, timeout_s: float = 10.0) -> str:
    """The first model that a server offers.

    Raises:
        UsageError: It does not answer, or offers none.
    """
    connection = _connect(url, timeout_s)
    try:
        connection.request("GET", f"{_base(url)}/v1/models", headers=_headers(key))
        response = connection.getresponse()
        text = response.read(MAX_LINE_BYTES)
        if response.status != http.client.OK:
            raise UsageError(
                f"{url}/v1/models answers {response.status}", "use --model"
            )
        return str(json.loads(text)["data"][0]["id"])
    except (OSError, http.client.HTTPException) as error:
        problem = f"{url} does not answer: {type(error).__name__}: {error}"
        raise UsageError(problem, "is the server up?") from error
    except (ValueError, KeyError, IndexError, TypeError) as error:
        raise UsageError(f"{url}/v1/models names no model", "use --model") from error
    finally:
        connection.close()


def prompt_text(request: Request) -> str:
    """A text whose blocks depend on the block ids alone: equal ids, equal text.

    About one token a word; how many tokens it really has the server says.
    """
    words: list[str] = []
    left = request.input_length
    for block in request.hash_ids:
        words.append(_block_text(block, min(left, BLOCK_TOKENS)))
        left -= BLOCK_TOKENS
    return " ".join(words)


@lru_cache(maxsize=4096)
def _block_text(block: int, tokens: int) -> str:
    """A block cut short has the beginning of the whole one, as a prefix cache wants."""
    dice = random.Random(f"block:{block}")
    return " ".join(dice.choice(_WORDS) for _ in range(tokens))


class _Stream:
    """Reads server-sent events and keeps when the text came."""

    def __init__(self, begin_s: float, clock: Callable[[], float]) -> None:
        self._begin_s = begin_s
        self._clock = clock
        self._first_s: float | None = None
        self._last_s = begin_s
        self._pieces: list[str] = []
        self._usage: dict[str, Any] = {}
        self._finished = False

    def read(self, response: http.client.HTTPResponse, until_s: float) -> None:
        """Takes every event until the end of the stream.

        Raises:
            ValueError: An event is no JSON, an error, or there are too many.
            TimeoutError: The stream goes on too long.
        """
        for number, event in enumerate(_events(response)):
            if number >= MAX_EVENTS:
                msg = f"more than {MAX_EVENTS} events"
                raise ValueError(msg)
            now_s = self._clock()
            if now_s > until_s:
                msg = "the stream did not end in time"
                raise TimeoutError(msg)
            if event == "[DONE]":
                self._finished = True
                return
            self._take(json.loads(event), now_s)

    def result(self) -> Streamed:
        e2e_s = self._clock() - self._begin_s
        if self._first_s is None:
            return Streamed(
                ok=False, error="no text: the stream was empty", e2e_s=e2e_s
            )
        if not self._finished:
            return Streamed(ok=False, error="cut: the stream has no end", e2e_s=e2e_s)
        made = _count(self._usage.get("completion_tokens"))
        details = self._usage.get("prompt_tokens_details") or {}
        return Streamed(
            ok=True,
            ttft_s=self._first_s - self._begin_s,
            tpot_s=_pace_s(self._first_s, self._last_s, made),
            e2e_s=e2e_s,
            prompt_tokens=_count(self._usage.get("prompt_tokens")),
            cached_tokens=_count(details.get("cached_tokens")),
            completion_tokens=made,
            text="".join(self._pieces),
        )

    def _take(self, event: Any, now_s: float) -> None:
        if not isinstance(event, dict):
            msg = "an event is no object"
            raise ValueError(msg)
        if "error" in event:
            msg = f"the server says {str(event['error'])[:200]}"
            raise ValueError(msg)
        self._usage = event.get("usage") or self._usage
        for choice in event.get("choices") or ():
            text = _text_of(choice)
            self._finished = self._finished or bool(choice.get("finish_reason"))
            if text:
                self._first_s = now_s if self._first_s is None else self._first_s
                self._last_s = now_s
                self._pieces.append(text)


def _text_of(choice: dict[str, Any]) -> str:
    delta = choice.get("delta") or {}
    text = choice.get("text") or delta.get("content") or delta.get("reasoning_content")
    return str(text) if text else ""


def _pace_s(first_s: float, last_s: float, tokens: int | None) -> float | None:
    """Seconds a token after the first one; None where one token is all there is."""
    if tokens is None or tokens < 2:
        return None
    return (last_s - first_s) / (tokens - 1)


def _events(response: http.client.HTTPResponse) -> Iterator[str]:
    """The data of each event; comments and other fields are none of ours."""
    while line := response.readline(MAX_LINE_BYTES + 1):
        if len(line) > MAX_LINE_BYTES:
            msg = f"a line of more than {MAX_LINE_BYTES} bytes"
            raise ValueError(msg)
        if line.startswith(b"data:"):
            yield line[5:].strip().decode("utf-8", errors="replace")


def _connect(url: str, timeout_s: float) -> http.client.HTTPConnection:
    parts = urlsplit(url)
    assert parts.hostname is not None
    patience_s = max(timeout_s, 0.001)
    if parts.scheme == "https":
        context = ssl.create_default_context()
        return http.client.HTTPSConnection(
            parts.hostname, parts.port, timeout=patience_s, context=context
        )
    return http.client.HTTPConnection(parts.hostname, parts.port, timeout=patience_s)


def _base(url: str) -> str:
    return urlsplit(url).path.rstrip("/").removesuffix("/v1")


def _headers(key: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {key}"} if key else {}


def _refused(response: http.client.HTTPResponse, e2e_s: float) -> Streamed:
    detail = response.read(300).decode("utf-8", errors="replace").strip()
    error = f"HTTP {response.status}: {detail}"
    return Streamed(ok=False, error=error, e2e_s=e2e_s)


def _count(value: object) -> int | None:
    good = isinstance(value, int) and not isinstance(value, bool) and value >= 0
    return int(str(value)) if good else None


def close_quietly(connection: http.client.HTTPConnection) -> None:
    """Wakes whoever reads from a connection; it may be gone already."""
    sock = connection.sock
    if sock is None:
        return
    try:
        sock.shutdown(socket.SHUT_RDWR)
    except OSError:  # closed by the other side in this moment: what was wanted
        return
