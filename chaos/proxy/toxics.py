"""What a toxic is: its wire form, its types and attributes, and its hit counters.

Names, defaults and shapes are those of Toxiproxy 2.12 (api.go, toxics/*.go); the types
`corrupt`, `stall_after` and `drop_first_n` and the field `ttl_ms` are ours.
What a type does to a stream stands in `stages.py`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum, unique
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

    from chaos.proxy.loop import Timer

#: Attributes of each type with their defaults; all are integers on the wire.
ATTRIBUTES: Mapping[str, Mapping[str, int]] = {
    "latency": {"latency": 0, "jitter": 0},
    "bandwidth": {"rate": 0},
    "slow_close": {"delay": 0},
    "timeout": {"timeout": 0},
    "reset_peer": {"timeout": 0},
    "slicer": {"average_size": 0, "size_variation": 0, "delay": 0},
    "limit_data": {"bytes": 0},
    "stall_after": {"bytes": 0},
    "corrupt": {"skip_bytes": 0, "every_bytes": 65_536, "count": 0},
    "drop_first_n": {"connections": 0},
}
#: Types that Toxiproxy does not have.
OURS = frozenset({"stall_after", "corrupt", "drop_first_n"})
MAX_TOXICS = 64
MAX_TTL_MS = 24 * 3600 * 1000


class BadToxic(ValueError):
    """A toxic that cannot be; `status` is the HTTP status Toxiproxy answers."""

    def __init__(self, message: str, status: int = 400) -> None:
        super().__init__(message)
        self.message = message
        self.status = status


@unique
class Stream(Enum):
    """Which way data flows: up is client to server, down is server to client."""

    UP = "upstream"
    DOWN = "downstream"


@dataclass(slots=True, kw_only=True)
class Counter:
    """How often a toxic struck: evidence that a fault had effect.

    `connections` were subjected to it, `chunks` pieces of data were delayed, dropped,
    cut, held or changed by it, `bytes` in all.
    """

    bytes: int = 0
    chunks: int = 0
    connections: int = 0

    def hit(self, size: int) -> None:
        self.bytes += size
        self.chunks += 1

    def wire(self) -> dict[str, int]:
        return {
            "bytes": self.bytes,
            "chunks": self.chunks,
            "connections": self.connections,
        }


@dataclass(slots=True, kw_only=True)
class Toxic:
    """One toxic of one proxy; attributes change in place when it is updated."""

    name: str
    type: str
    stream: Stream
    stream_text: str
    toxicity: float
    attributes: dict[str, int]
    ttl_ms: int | None = None
    counter: Counter = field(default_factory=Counter)
    expiry: Timer | None = None

    def wire(self) -> dict[str, Any]:
        """The JSON form in Toxiproxy's order; `ttl_ms` only where one is set."""
        document: dict[str, Any] = {
            "attributes": dict(self.attributes),
            "name": self.name,
            "type": self.type,
            "stream": self.stream_text,
            "toxicity": self.toxicity,
        }
        if self.ttl_ms is not None:
            document["ttl_ms"] = self.ttl_ms
        return document


def parse_toxic(document: Mapping[str, Any]) -> Toxic:
    """Reads the body of POST /proxies/{proxy}/toxics, checks in Toxiproxy's order.

    Raises:
        BadToxic: with the message and status that Toxiproxy gives.
    """
    kind = _text(document, "type")
    stream_text = _text(document, "stream") or Stream.DOWN.value
    name = _text(document, "name")
    toxicity = _number(document, "toxicity", 1.0)
    try:
        stream = Stream(stream_text.lower())
    except ValueError:
        raise BadToxic(
            "stream was invalid, can be either upstream or downstream"
        ) from None
    if kind not in ATTRIBUTES:
        raise BadToxic("invalid toxic type")
    return Toxic(
        name=name or f"{kind}_{stream_text}",
        type=kind,
        stream=stream,
        stream_text=stream_text,
        toxicity=toxicity,
        attributes=_attributes(document, ATTRIBUTES[kind]),
        ttl_ms=_ttl(document),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class ToxicChange:
    """What an update makes of a toxic, parsed in full before anything is touched."""

    toxicity: float
    attributes: dict[str, int]
    ttl_ms: int | None
    renews: bool


def parse_change(toxic: Toxic, document: Mapping[str, Any]) -> ToxicChange:
    """Reads the body of a toxic update; what it does not name stays as it was."""
    renews = document.get("ttl_ms") is not None
    return ToxicChange(
        toxicity=_number(document, "toxicity", toxic.toxicity),
        attributes=_attributes(document, toxic.attributes),
        ttl_ms=_ttl(document) if renews else toxic.ttl_ms,
        renews=renews,
    )


def _attributes(
    document: Mapping[str, Any], defaults: Mapping[str, int]
) -> dict[str, int]:
    given = document.get("attributes")
    attributes = dict(defaults)
    if given is None:
        return attributes
    if not isinstance(given, dict):
        raise BadToxic("bad request body: attributes must be an object")
    for name in attributes:
        value = given.get(name)
        if value is None:
            continue
        if isinstance(value, bool) or not isinstance(value, int):
            raise BadToxic(f"bad request body: attributes.{name} must be an integer")
        if not -(1 << 63) <= value < 1 << 63:
            raise BadToxic(f"bad request body: attributes.{name} is out of range")
        attributes[name] = value
    return attributes


def _text(document: Mapping[str, Any], name: str) -> str:
    value = document.get(name)
    if value is None:
        return ""
    if not isinstance(value, str):
        raise BadToxic(f"bad request body: {name} must be a string")
    return value


def _number(document: Mapping[str, Any], name: str, default: float) -> float:
    value = document.get(name)
    if value is None:
        return default
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise BadToxic(f"bad request body: {name} must be a number")
    return value


def _ttl(document: Mapping[str, Any]) -> int | None:
    value = document.get("ttl_ms")
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int):
        raise BadToxic("bad request body: ttl_ms must be an integer")
    if not 0 < value <= MAX_TTL_MS:
        raise BadToxic(f"bad request body: ttl_ms must be within 1..{MAX_TTL_MS}")
    return value
