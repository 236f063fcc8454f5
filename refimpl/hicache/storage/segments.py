"""Which segments Mooncake has: asked of the master's admin HTTP by a thread of its own.

Mooncake's client has no "anywhere but there". Who knows the segments chooses one for
every put, so that a sick store is avoided, and blamed when a put to it hangs.
"""

from __future__ import annotations

import http.client
import json
import threading
import time
from typing import TYPE_CHECKING

from refimpl.role import parse_address

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

_PATH = "/get_segments_detail"
_MOST_BYTES = 4 << 20
_GONE = ("UNMOUNT", "GRACEFUL", "DRAIN")
"""Words in the status of a segment that takes no new objects."""


class Segments:
    """A snapshot of endpoint -> segment name; None while it is not known.

    Args:
        fetch: asks once; raises when it cannot be told.
        every_s: pause between two questions.
        stale_s: an answer older than this is no answer.
        clock: monotonic seconds.
    """

    def __init__(
        self,
        fetch: Callable[[], Mapping[str, str]],
        *,
        every_s: float = 1.0,
        stale_s: float = 5.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._fetch = fetch
        self._every_s = every_s
        self._stale_s = stale_s
        self._clock = clock
        self._found: Mapping[str, str] | None = None
        self._found_at = 0.0
        self.failures = 0
        self._stop = threading.Event()
        self._thread = threading.Thread(
            target=self._loop, name="mooncake-segments", daemon=True
        )
        self._thread.start()

    def known(self) -> Mapping[str, str] | None:
        """Endpoint -> segment name, as last heard."""
        found = self._found
        if found is None or self._clock() - self._found_at > self._stale_s:
            return None
        return found

    def close(self, timeout_s: float = 2.0) -> None:
        """Ends the thread."""
        self._stop.set()
        self._thread.join(timeout_s)

    def _loop(self) -> None:
        while not self._stop.is_set():
            try:
                found = self._fetch()
            except (OSError, ValueError, http.client.HTTPException):
                # A master that does not answer is known by its silence: `known`.
                self.failures += 1
            else:
                self._found_at = self._clock()
                self._found = found
            self._stop.wait(self._every_s)


def fetch_from(admin: str, timeout_s: float = 1.0) -> Callable[[], Mapping[str, str]]:
    """Asks the admin HTTP of `mooncake_master` at HOST:PORT.

    Raises:
        UsageError: it is not HOST:PORT.
    """
    host, port = parse_address(admin, "the admin of Mooncake (--mooncake-admin)")

    def fetch() -> Mapping[str, str]:
        connection = http.client.HTTPConnection(host, port, timeout=timeout_s)
        try:
            connection.request("GET", _PATH)
            answer = connection.getresponse()
            text = answer.read(_MOST_BYTES)
        finally:
            connection.close()
        if answer.status != http.client.OK:
            raise ValueError(f"{_PATH} answered {answer.status}")
        return segments_of(json.loads(text))

    return fetch


def segments_of(document: object) -> Mapping[str, str]:
    """Endpoint -> name of every segment that takes objects.

    Raises:
        ValueError: it is no such document.
    """
    rows = document.get("segments") if isinstance(document, dict) else None
    if not isinstance(rows, list):
        raise ValueError(f"{_PATH} has no list of segments")
    found: dict[str, str] = {}
    for row in rows:
        if not isinstance(row, dict):
            raise ValueError(f"{_PATH} has a segment that is no object")
        status = str(row.get("status", "")).upper()
        name, endpoint = row.get("segment_name"), row.get("te_endpoint")
        if name and endpoint and not any(word in status for word in _GONE):
            found[str(endpoint)] = str(name)
    return found
