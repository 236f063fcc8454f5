"""What all network faults of the local target share: toxics on the proxies of links.

A toxic acts on live connections as well as on new ones. Evidence are the counters of
the embedded proxy (bytes, chunks, connections that the toxic really had in hand); the
real Toxiproxy counts nothing, there one bare connection a link is the probe.
"""

from __future__ import annotations

import itertools
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from chaos.errors import NotHere, UsageError
from chaos.faults.base import Evidence
from chaos.faults.touch import NONSENSE, touch

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from chaos.faults.touch import Touch
    from chaos.systems.base import Link

BOTH_STREAMS = ("upstream", "downstream")
TOUCH_TIMEOUT_S = 0.5
_TOUCHES_AT_ONCE = 16
_numbers = itertools.count(1)


class ToxicControl(Protocol):
    """The part of the proxy client that faults use."""

    def add_toxic(
        self,
        proxy: str,
        type: str,  # noqa: A002 - Toxiproxy's own name for it
        *,
        name: str | None = None,
        stream: str = "downstream",
        toxicity: float = 1.0,
        attributes: Mapping[str, Any] = ...,
        ttl_ms: int | None = None,
    ) -> Any: ...
    def remove_toxics(self, placed: Iterable[tuple[str, str]]) -> Any: ...
    def toxics(self, proxy: str) -> Mapping[str, Any]: ...
    def counters(self, proxy: str) -> Mapping[str, Mapping[str, int]] | None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Toxic:
    """One toxic to add to every link: its type, direction and attributes."""

    type: str
    stream: str
    attributes: Mapping[str, int] = field(default_factory=dict)


class ToxicFault:
    """Toxics on some links; the named network faults say which and why.

    `counter` names what is counted as effect: "bytes" for silence, delay and limits,
    "connections" for resets. `touched` judges the bare connection on a proxy without
    counters.
    """

    kind = "toxic"
    counter = "bytes"
    touches = 1

    def __init__(
        self,
        control: ToxicControl,
        links: Sequence[Link],
        toxics: Sequence[Toxic],
        *,
        target: str,
    ) -> None:
        if not links:
            message = f"{self.kind}({target}): no link of the cluster matches"
            raise UsageError(message)
        _refuse_without_proxy(self.kind, links)
        self.target = target
        self.links = tuple(links)
        self._control = control
        self._toxics = tuple(toxics)
        self._prefix = f"mq-{self.kind}-{next(_numbers)}"
        self.undone = ""

    def plan(self) -> list[str]:
        return [
            f"add {toxic.type} {dict(toxic.attributes)} to the {toxic.stream} of"
            f" {link.name} ({link.listen})"
            for link, _, toxic in self._placed()
        ]

    def inject(self) -> None:
        for link, name, toxic in self._placed():
            self._control.add_toxic(
                link.proxy,
                toxic.type,
                name=name,
                stream=toxic.stream,
                toxicity=1.0,
                attributes=dict(toxic.attributes),
            )

    def probe(self) -> Evidence:
        counted = [self._control.counters(link.proxy) for link in self.links]
        if any(counters is None for counters in counted):
            return self._probe_by_touch()
        return self._probe_by_counters([counters or {} for counters in counted])

    def revert(self) -> None:
        """Removes what was added, newest first; a toxic that is gone is fine.

        `undone` tells how: a server that hangs on its toxics needs more than a removal.
        """
        placed = [(link.proxy, name) for link, name, _ in reversed(self._placed())]
        self.undone = str(self._control.remove_toxics(placed))

    def verify_reverted(self) -> str:
        present = {link.proxy: self._present(link) for link in self.links}
        left = [
            f"{name} on {link.name}"
            for link, name, _ in self._placed()
            if name in present[link.proxy]
        ]
        return ", ".join(left)

    def touched(self, reaction: Touch) -> bool:
        """Whether a bare connection's fate shows the fault: silence, by default."""
        return reaction.outcome == "silent"

    def words(self, link: Link) -> bytes:
        """What a bare connection says: what is answered with data, else nonsense."""
        return link.greeting or NONSENSE

    def _placed(self) -> list[tuple[Link, str, Toxic]]:
        return [
            (link, f"{self._prefix}-{number}-{toxic.stream}", toxic)
            for link in self.links
            for number, toxic in enumerate(self._toxics)
        ]

    def _present(self, link: Link) -> set[str]:
        return set(self._control.toxics(link.proxy))

    def _probe_by_counters(
        self, counted: Sequence[Mapping[str, Mapping[str, int]]]
    ) -> Evidence:
        ours = [
            counter
            for counters in counted
            for name, counter in counters.items()
            if name.startswith(f"{self._prefix}-")
        ]
        total = {
            unit: sum(int(counter.get(unit, 0)) for counter in ours)
            for unit in ("bytes", "chunks", "connections")
        }
        return Evidence(
            measure=f"{self.counter} in the hands of the toxics",
            effect=float(total[self.counter]),
            detail=(
                f"{total['bytes']} bytes, {total['chunks']} chunks,"
                f" {total['connections']} connections on {len(self.links)} links"
            ),
        )

    def _probe_by_touch(self) -> Evidence:
        with ThreadPoolExecutor(_TOUCHES_AT_ONCE) as helpers:
            reactions = list(helpers.map(self._touch, self.links))
        hit = sum(self.touched(reaction) for reaction in reactions)
        seen = ", ".join(sorted({reaction.outcome for reaction in reactions}))
        return Evidence(
            measure="bare connections that met the fault",
            effect=float(hit),
            detail=f"{hit} of {len(reactions)}: {seen}",
        )

    def _touch(self, link: Link) -> Touch:
        """The fastest reaction of several: a busy host must not look like a fault."""
        words = self.words(link)
        reactions = [
            touch(link.listen, timeout_s=TOUCH_TIMEOUT_S, words=words)
            for _ in range(self.touches)
        ]
        return min(reactions, key=lambda reaction: reaction.elapsed_s)


def _refuse_without_proxy(kind: str, links: Sequence[Link]) -> None:
    """Some systems tell their peers the very address that they bind.

    Raises:
        NotHere: Nothing stands in one of the links.
    """
    bare = [link.name for link in links if not link.proxy]
    if bare:
        reason = f"no proxy can stand in {bare[0]}; try --target netns"
        raise NotHere(capability=kind, target="local", reason=reason)


def silence() -> tuple[Toxic, ...]:
    """Both directions dropped and never closed: Toxiproxy's timeout of 0."""
    return tuple(
        Toxic(type="timeout", stream=stream, attributes={"timeout": 0})
        for stream in BOTH_STREAMS
    )
