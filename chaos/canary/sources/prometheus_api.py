"""Asks a Prometheus server for raw samples, with a deadline and a bound on the answer.

Raw samples and not `rate()`: extrapolation makes requests that never were, and hides a
counter that began again.
"""

from __future__ import annotations

import base64
import json
import math
import urllib.error
import urllib.request
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlencode, urlsplit, urlunsplit

import numpy as np

from chaos.errors import UsageError
from chaos.report.redaction import know

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

TIMEOUT_S: Final = 60.0
MAX_BYTES: Final = 256 << 20
MAX_SERIES: Final = 20_000
_NAME: Final = "__name__"


@dataclass(frozen=True, slots=True, kw_only=True)
class Series:
    """One time series in the window: instants (s since the epoch) and values."""

    labels: Mapping[str, str]
    times: NDArray[np.float64]
    values: NDArray[np.float64]

    @property
    def key(self) -> tuple[tuple[str, str], ...]:
        return tuple(sorted(self.labels.items()))


class PrometheusServer:
    """A server by its address; `token` is sent as a bearer token.

    Raises:
        UsageError: The address is none.
    """

    def __init__(
        self, url: str, *, token: str = "", timeout_s: float = TIMEOUT_S
    ) -> None:
        try:
            parts = urlsplit(url)
            host, _ = parts.hostname, parts.port
        except ValueError:
            host = None
        if not host or parts.scheme not in ("http", "https"):
            raise UsageError(f"{url}: is no address", "say http://HOST:9090")
        self._authorization = f"Bearer {token}" if token else ""
        if parts.username is not None:
            pair = f"{parts.username}:{parts.password or ''}"
            self._authorization = f"Basic {base64.b64encode(pair.encode()).decode()}"
            know(parts.password or "")
        know(token)
        netloc = parts.netloc.rpartition("@")[2]
        path = parts.path.rstrip("/")
        self.url = urlunsplit((parts.scheme, netloc, path, "", ""))
        self._timeout_s = timeout_s

    def samples(self, name: str, inside: str, start: float, end: float) -> list[Series]:
        """Every raw sample of `name{inside}` between two instants, both included.

        Raises:
            UsageError: No answer, or not the one of a Prometheus server.
        """
        seconds = max(1, math.ceil(end - start))
        query = f"{selector(name, inside)}[{seconds}s]"
        data = self._ask({"query": query, "time": f"{end:.3f}"})
        if data.get("resultType") != "matrix":
            raise self._odd(f"a {data.get('resultType')!r:.40}")
        rows = data.get("result")
        if not isinstance(rows, list) or len(rows) > MAX_SERIES:
            many = len(rows) if isinstance(rows, list) else "no"
            told = f"{self.url}: {many} series match {selector(name, inside)}"
            raise UsageError(told, f"narrow the selector to {MAX_SERIES} at most")
        try:
            return [_series(row, start, end) for row in rows]
        except (KeyError, IndexError, TypeError, ValueError):
            raise self._odd("samples of another shape") from None

    def _ask(self, query: Mapping[str, str]) -> dict[str, Any]:
        request = urllib.request.Request(  # noqa: S310 - http or https, checked above
            f"{self.url}/api/v1/query",
            data=urlencode(query).encode(),
            headers={"Accept": "application/json"},
        )
        if self._authorization:  # not to whom the server may redirect us
            request.add_unredirected_header("Authorization", self._authorization)
        try:
            with urllib.request.urlopen(request, timeout=self._timeout_s) as answer:  # noqa: S310
                body = answer.read(MAX_BYTES + 1)
        except urllib.error.HTTPError as error:
            with error:
                raise self._refused(error.code, error.read(4096)) from None
        except (OSError, ValueError) as error:
            reason = getattr(error, "reason", None) or error
            told = f"{self.url}: no answer: {reason}"
            raise UsageError(told, "is it a Prometheus server, and up?") from None
        if len(body) > MAX_BYTES:
            told = f"{self.url}: the answer is longer than {MAX_BYTES >> 20} MiB"
            raise UsageError(told, "take a shorter time or a narrower selector")
        return self._data(body)

    def _data(self, body: bytes) -> dict[str, Any]:
        try:
            document = json.loads(body)
            if document["status"] == "success" and isinstance(document["data"], dict):
                if document.get("warnings"):
                    raise self._odd(f"a warning: {document['warnings']!r:.200}")
                return dict(document["data"])
        except (ValueError, KeyError, TypeError, RecursionError):
            raise self._odd("no JSON of its kind") from None
        raise self._odd("no success")

    def _refused(self, status: int, body: bytes) -> UsageError:
        try:
            why = str(json.loads(body)["error"])
        except (ValueError, KeyError, TypeError):
            why = "no reason given"
        fix = "mend the selector" if status in (400, 422) else "ask its administrator"
        return UsageError(f"{self.url}: answered {status}: {why[:300]}", fix)

    def _odd(self, what: str) -> UsageError:
        fix = "name the root of a Prometheus server"
        return UsageError(f"{self.url}: answered with {what}", fix)


def selector(name: str, inside: str) -> str:
    """`name{a="b"}` and `c="d"` as one selector."""
    base, brace, own = name.partition("{")
    parts = [own.rstrip("}").strip().strip(",") if brace else "", bare(inside)]
    return f"{base}{{{','.join(part for part in parts if part)}}}"


def bare(inside: str) -> str:
    """What stands in the braces of a selector, with or without them."""
    text = inside.strip()
    if text.startswith("{") and text.endswith("}"):
        text = text[1:-1]
    return text.strip().strip(",")


def _series(row: Mapping[str, Any], start: float, end: float) -> Series:
    labels = {str(k): str(v) for k, v in row["metric"].items() if k != _NAME}
    times = np.array([float(pair[0]) for pair in row["values"]], dtype=np.float64)
    values = np.array([float(pair[1]) for pair in row["values"]], dtype=np.float64)
    inside = (times >= start) & (times <= end)
    return Series(labels=labels, times=times[inside], values=values[inside])


def same_times(series: Sequence[Series]) -> bool:
    """Whether all were scraped at the same instants."""
    first = series[0].times
    return all(np.array_equal(first, each.times) for each in series)
