"""Counters of RDMA ports and NICs, each sampled at least twice.

`ports/N/{counters,hw_counters}/NAME` in sysfs, `ethtool -S NETDEV` for the rest. They
count since the driver was loaded, so only their change tells anything; a value of all
ones (255, 65535, 2^32-1) is saturated and its change means nothing (gpud#943). One that
went back was reset. mlx5 and soft-RoCE name the same things differently.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from checks.facts import Facts, Unread, derived

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

SATURATED = frozenset({255, 65535, 4294967295})
_KINDS = ("hw_counters", "counters")
_STATISTIC = re.compile(r"^\s*([\w.\[\]-]+):\s*(\d+)\s*$", re.MULTILINE)

Samples = tuple[tuple[float | None, int], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """How one counter moved between its first and its last sample."""

    name: str
    before: int
    after: int
    seconds: float | None
    """None where the samples have no times."""

    @property
    def delta(self) -> int:
        return self.after - self.before

    @property
    def saturated(self) -> bool:
        return self.after in SATURATED and self.before == self.after

    @property
    def reset(self) -> bool:
        return self.after < self.before

    @property
    def per_second(self) -> float | None:
        return self.delta / self.seconds if self.seconds else None

    def __str__(self) -> str:
        over = f" in {self.seconds:.0f} s" if self.seconds else ""
        return f"{self.name} +{self.delta}{over}"


@derived
def port_counters(facts: Facts, base: str) -> dict[str, tuple[int, Change | Unread]]:
    """Newest value and change of every counter below `ports/N`, by name.

    A change is an `Unread` where there is only one sample; a counter that cannot be
    read at all has the value -1. `hw_counters` wins over `counters`.
    """
    found: dict[str, tuple[int, Change | Unread]] = {}
    for kind in _KINDS:
        for name in _names(facts, f"{base}/{kind}"):
            if name not in found:
                found[name] = _counter(facts, name, f"{base}/{kind}/{name}")
    return found


def _names(facts: Facts, path: str) -> tuple[str, ...]:
    try:
        return facts.names(path)
    except Unread:
        return ()


def _counter(facts: Facts, name: str, path: str) -> tuple[int, Change | Unread]:
    samples: Samples = ()
    try:
        samples = facts.numbers(path)
        return samples[-1][1], change(name, samples, path)
    except Unread as error:
        return (samples[-1][1] if samples else -1), error


def change(
    name: str, samples: Sequence[tuple[float | None, int]], where: str
) -> Change:
    """The change between the first and the last sample."""
    if len(samples) < 2:
        raise Unread("missing", where, "sampled once: no change can be told")
    (began, before), (ended, after) = samples[0], samples[-1]
    timed = began is not None and ended is not None and ended > began
    return Change(
        name=name,
        before=before,
        after=after,
        seconds=ended - began if timed else None,  # type: ignore[operator]
    )


def statistics(facts: Facts, netdev: str) -> Mapping[str, Change]:
    """Changes of `ethtool -S`, by name; Unread unless it was sampled twice."""
    samples = facts.samples("ethtool", "statistics", netdev)
    if len(samples) < 2:
        raise Unread("missing", samples[0].line, "sampled once: no change can be told")
    old, new = (_parsed(each.text()) for each in (samples[0], samples[-1]))
    times = samples[0].t, samples[-1].t
    return {
        name: change(name, ((times[0], old[name]), (times[1], new[name])), name)
        for name in sorted(old.keys() & new.keys())
    }


def _parsed(text: str) -> dict[str, int]:
    whole = text[: text.rfind("\n") + 1]
    return {name: int(value) for name, value in _STATISTIC.findall(whole)}
