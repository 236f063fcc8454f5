"""The master's admin HTTP: health, role, segments, metrics; bounded and direct."""

from __future__ import annotations

import http.client
import json
import urllib.error
import urllib.request
from dataclasses import dataclass
from typing import Any, Final

from chaos.errors import HarnessError

#: What is read into the history; names end where their labels begin.
METRICS: Final = (
    "master_key_count",
    "master_allocated_bytes",
    "master_total_capacity_bytes",
    "master_active_clients",
    "master_evicted_key_count",
)
_DIRECT: Final = urllib.request.build_opener(urllib.request.ProxyHandler({}))
_MOST_BYTES: Final = 8 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Admin:
    """One master's admin door, HOST:PORT."""

    address: str
    timeout_s: float = 1.0

    def text(self, path: str) -> str:
        """What a path answers.

        Raises:
            HarnessError: Nothing, or an error.
        """
        url = f"http://{self.address}{path}"
        try:
            with _DIRECT.open(url, timeout=self.timeout_s) as answer:
                found = answer.read(_MOST_BYTES)
                if answer.length and len(found) < _MOST_BYTES:
                    raise http.client.IncompleteRead(found, answer.length)
                return str(found.decode(errors="replace"))
        except urllib.error.HTTPError as error:
            error.close()
            message = f"the master at {self.address} answers {error.code} to {path}"
            raise HarnessError(message) from error
        except (OSError, ValueError, http.client.HTTPException) as error:
            message = f"the master at {self.address} does not answer {path}: {error}"
            raise HarnessError(message) from error

    def role(self) -> str:
        """leader, standby or follower; a plain master is its own leader."""
        return self.text("/role").strip().strip('"')

    def segments(self) -> list[str]:
        """The names of mounted segments."""
        return [line.strip() for line in self.text("/get_all_segments").split() if line]

    def keys(self) -> list[str]:
        """The names of all objects; they hold no space when they are ours."""
        return self.text("/get_all_keys").split()

    def used_bytes(self, segment: str) -> int:
        """Bytes allocated on a segment.

        Raises:
            HarnessError: The master does not know it, or answers in other words.
        """
        return used_of(self.text(f"/query_segment?segment={segment}"))

    def metrics(self) -> dict[str, float]:
        """The master's numbers by name; labels are summed up."""
        return numbers_of(self.text("/metrics"))

    def state(self) -> dict[str, Any]:
        """What is worth keeping of now.

        Raises:
            HarnessError: The master does not answer.
        """
        found = self.metrics()
        kept: dict[str, Any] = {name: found[name] for name in METRICS if name in found}
        return kept | {"role": self.role(), "segments": self.segments()}

    def snapshot(self) -> dict[str, Any]:
        """The same; "error" where the master does not answer."""
        try:
            return self.state()
        except HarnessError as error:
            return {"error": str(error)}


def numbers_of(text: str) -> dict[str, float]:
    """Prometheus text as numbers by name; what is no number is left out."""
    found: dict[str, float] = {}
    for line in text.splitlines():
        name, _, value = line.rpartition(" ")
        if not name or line.startswith("#"):
            continue
        try:
            number = float(value)
        except ValueError:
            continue
        key = name.partition("{")[0]
        found[key] = found.get(key, 0.0) + number
    return found


def used_of(text: str) -> int:
    """The used bytes in the answer to a question about a segment.

    Raises:
        HarnessError: It has none.
    """
    try:
        document = json.loads(text)
    except ValueError:
        document = _pairs(text)
    for key in ("used", "used_bytes", "Used(bytes)", "allocated_bytes"):
        if isinstance(document, dict) and key in document:
            return int(document[key])
    message = f"no used bytes in {text[:200]!r}"
    raise HarnessError(message)


def _pairs(text: str) -> dict[str, str]:
    """`name: value` lines."""
    lines = [line.partition(":") for line in text.splitlines() if ":" in line]
    return {name.strip(): value.strip() for name, _, value in lines}
