"""Which engine serves a session: always the same one, unless the session is moved.

Rendezvous hashing (Thaler and Ravishankar, 1998): every engine scores every session,
the best score wins. An engine that goes away moves only its own sessions.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import xxhash

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from chaos.systems.base import Request


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionAffine:
    """Session-affine engine choice.

    `moved` sessions go to their second choice, as after a rebalance or an engine loss.
    `explicit` names the engine of single sessions and wins over everything.
    """

    engines: tuple[str, ...]
    moved: frozenset[str] = frozenset()
    explicit: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Refuses routes to nowhere."""
        if not self.engines:
            msg = "routing needs at least one engine"
            raise ValueError(msg)
        unknown = sorted(set(self.explicit.values()) - set(self.engines))
        if unknown:
            msg = f"explicit routes name unknown engines: {', '.join(unknown)}"
            raise ValueError(msg)
        if self.moved and len(self.engines) < 2:
            msg = "a session can be moved only where there are two engines"
            raise ValueError(msg)

    def __call__(self, request: Request) -> str:
        """The engine for this request."""
        chosen = self.explicit.get(request.session)
        if chosen is not None:
            return chosen
        ranked = preference(request.session, self.engines)
        return ranked[1] if request.session in self.moved else ranked[0]

    def move(self, sessions: Iterable[str]) -> SessionAffine:
        """The same routing with these sessions moved as well."""
        return replace(self, moved=self.moved | frozenset(sessions))


def preference(session: str, engines: Iterable[str]) -> list[str]:
    """All engines, best first for a session; deterministic on every machine."""

    def score(engine: str) -> tuple[int, str]:
        return (xxhash.xxh3_64_intdigest(f"{engine}\0{session}".encode()), engine)

    return sorted(engines, key=score, reverse=True)


def evenly(sessions: Iterable[str], engines: tuple[str, ...]) -> dict[str, str]:
    """An explicit map that gives every engine the same number of sessions (+/- 1).

    For few sessions, where hashing would leave an engine without any.
    """
    ordered = sorted(set(sessions))
    return {name: engines[i % len(engines)] for i, name in enumerate(ordered)}
