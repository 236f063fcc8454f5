"""Drills: small trials in both arms of laws that no load shows on a good day.

A late read that is taken although its lease is over, a stale end of a write that is
accepted, the pages of a late read that are given to somebody else: such builds serve
good numbers until a bad day. Each drill makes the bad moment on purpose and counts what
must be 0. A drill that could not make its moment counts nothing: an absent counter is
INCONCLUSIVE, a 0 would be a lie.
"""

from __future__ import annotations

from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING

from chaos.errors import FaultNotInjected, HarnessError, NotHere
from chaos.safety.identity import wait_until
from chaos.steps.kv_laws import KvCode, start_when_allowed
from chaos.steps.prompts import (
    again,
    ask,
    ask_together,
    data_links,
    keep,
    prompt,
    whole_pages,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from chaos.faults.injector import Injector
    from chaos.load.sample import Sample
    from chaos.systems.base import Cluster, Limits, Request

    Drill = Callable[["DrillSite"], "Drilled"]

STALE_ENDS, LATE_READS = "stale_ends", "late_reads"
LATE_REUSE, LATE_PAGES = "late_reuse", "late_pages"
DISCARD_S, RELEASE_S = 10.0, 20.0
"""Patience of the master with dead writers in a canary's cluster, at factor 1."""
_KEY_BYTES = 16 << 10
_KEYS = 16
_TOKENS = 4096
_SLOW = 1.5
"""A late read takes that many leases."""
_ROUNDS = 8
_CANNOT = (NotHere, FaultNotInjected, HarnessError)


@dataclass(frozen=True, slots=True, kw_only=True)
class DrillSite:
    """Where drills happen: a running cluster, and what can break it.

    `round` makes keys and prompts new, so that a drill may be repeated.
    """

    cluster: Cluster
    inject: Injector
    round: int = 0

    def name(self, what: str) -> str:
        return f"drill-{what}-{self.round}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Drilled:
    """What a drill counted; `why_not` says why it could not be done, "" if it was."""

    name: str
    broken: int = 0
    why_not: str = ""

    @property
    def counters(self) -> Mapping[str, int]:
        return {} if self.why_not else {self.name: self.broken}


def stale_end(site: DrillSite) -> Drilled:
    """The end of a write that was given up meets the next write of its key."""
    writer, reader = site.cluster.kv(), site.cluster.kv()
    name, patience_s = site.name("stale"), 3 * DISCARD_S * site.cluster.spec.time_scale
    first, stale = writer.start_write(name, size_bytes=_KEY_BYTES)
    second, token = start_when_allowed(
        writer, name, size_bytes=_KEY_BYTES, timeout_s=patience_s
    )
    if first or second:
        return Drilled(name=STALE_ENDS, why_not=f"writes began with {first}, {second}")
    ended = writer.end_write(name, stale)
    (code,), wrong = reader.read([name], size_bytes=_KEY_BYTES)
    writer.end_write(name, token)
    broken = int(ended >= 0) + int(code == KvCode.OK) + wrong
    return Drilled(name=STALE_ENDS, broken=broken)


def late_read(site: DrillSite) -> Drilled:
    """Bytes that come when their lease is over: they may be another's by then."""
    cluster = site.cluster
    store, lease_s = cluster.stores[0], cluster.limits.lease_ttl_s
    host, links = cluster.host_of(store), data_links(cluster, store)
    probe = cluster.kv(host)
    names = [f"{site.name('late')}-{i}" for i in range(_KEYS)]
    written = probe.write(names, size_bytes=_KEY_BYTES, host=host)
    in_time, wrong = probe.read(names, size_bytes=_KEY_BYTES)
    if any([*written, *in_time]):
        return Drilled(name=LATE_READS, why_not="the keys were not there in time")
    speed_kb = _KEYS * _KEY_BYTES / 1024 / (_SLOW * lease_s) / len(links)
    with site.inject.bandwidth(links, max(1, int(speed_kb))):
        codes, torn = probe.read(
            names, size_bytes=_KEY_BYTES, timeout_s=10 * _SLOW * lease_s
        )
    taken = sum(code == KvCode.OK for code in codes)
    if not taken and KvCode.LEASE_EXPIRED not in codes:
        return Drilled(name=LATE_READS, why_not=f"the read gave {sorted(set(codes))}")
    return Drilled(name=LATE_READS, broken=taken + wrong + torn)


def late_reuse(site: DrillSite) -> Drilled:
    """The same as an engine of the arm does it: with its own build's client.

    The keys of `late_read` are read by a client of ours, which says nothing of a build
    from elsewhere. The engine is told to wait for everything, so that only the lease
    can end the read.
    """
    cluster = site.cluster
    engine, other = cluster.engines[:2]
    lease_s = cluster.limits.lease_ttl_s
    asked = prompt(cluster, site.name("late-reuse"), _TOKENS)
    keep(cluster, other, asked)
    links = data_links(cluster, cluster.owners_of(asked)[0][0])
    total_kb = whole_pages(cluster, asked) * cluster.spec.page_bytes / 1024
    speed_kb = total_kb / (2 * _SLOW * lease_s) / len(links)
    with site.inject.bandwidth(links, max(1, int(speed_kb))):
        late = ask(cluster, engine, again(asked, "late", policy="wait_complete"))
    answer = late.answer
    if answer is None or not answer.ok or answer.cache_wait_s <= lease_s:
        waited_s = answer.cache_wait_s if answer is not None else 0.0
        why = f"the read took {waited_s:.2f} s, the lease lasts {lease_s:g} s"
        return Drilled(name=LATE_REUSE, why_not=why)
    broken = int(answer.l3_tokens > 0) + wrong_outputs(cluster, [late])
    return Drilled(name=LATE_REUSE, broken=broken)


def late_pages(site: DrillSite) -> Drilled:
    """A read comes too slowly for its deadline; meanwhile others take all of L2."""
    cluster = site.cluster
    engine, other = cluster.engines[:2]
    asked = prompt(cluster, site.name("too-slow"), 2 * _TOKENS)
    keep(cluster, other, asked)
    fresh = [prompt(cluster, f"{site.name('fresh')}-{i}", _TOKENS) for i in range(4)]
    links = data_links(cluster, cluster.owners_of(asked)[0][0])
    total_kb = whole_pages(cluster, asked) * cluster.spec.page_bytes / 1024
    slow_s = _outlasting_s(cluster.limits, asked.input_length)
    with site.inject.bandwidth(links, max(1, int(total_kb / slow_s / len(links)))):
        late = ask(cluster, engine, again(asked, "late"))
        first = ask_together(cluster, [(engine, each) for each in fresh])
    rest = _asked_again(cluster, engine, fresh, slow_s)
    if late.answer is None or late.answer.prefetch_outcome != "timeout":
        return Drilled(name=LATE_PAGES, why_not="the slow read was not late")
    samples = [late, *first, *rest]
    return Drilled(name=LATE_PAGES, broken=wrong_outputs(cluster, samples))


DRILLS: Mapping[str, Drill] = MappingProxyType(
    {
        STALE_ENDS: stale_end,
        LATE_READS: late_read,
        LATE_REUSE: late_reuse,
        LATE_PAGES: late_pages,
    }
)
"""By the counter that each of them fills."""


def run_drill(name: str, site: DrillSite) -> Drilled:
    """Runs one drill; one that cannot be done says why, whatever was in its way.

    Raises:
        ExceptionGroup: A fault was left behind (by the injector, in the end).
    """
    try:
        return DRILLS[name](site)
    except _CANNOT as error:
        return Drilled(name=name, why_not=str(error) or type(error).__name__)
    finally:
        site.inject.revert_all()


def wrong_outputs(cluster: Cluster, samples: list[Sample]) -> int:
    """Answers whose output is not that of a run without a cache."""
    return sum(
        sample.answer.output_hash != cluster.expected_output(sample.request)
        for sample in samples
        if sample.answer is not None and sample.answer.ok
    )


def _outlasting_s(limits: Limits, tokens: int) -> float:
    """How slow a read must be to be under way when others have taken its pages.

    Until then pass its deadline, what its own request computes, and what the others
    compute; no read of an engine lasts longer than the longest deadline.
    """
    computing_s = (tokens + 2 * _TOKENS) / limits.prefill_tokens_per_s
    return min(
        1.5 * (limits.deadline_s(tokens) + computing_s), 0.9 * limits.deadline_max_s
    )


def _asked_again(
    cluster: Cluster, engine: str, fresh: list[Request], slow_s: float
) -> list[Sample]:
    """The other prompts again and again, while late bytes may still come."""
    samples: list[Sample] = []

    def asked_enough() -> bool:
        turn = len(samples)
        samples.extend(ask(cluster, engine, again(p, f"{turn}")) for p in fresh)
        return len(samples) >= _ROUNDS * len(fresh)

    wait_until(asked_enough, timeout_s=max(slow_s, 1.0) + 5.0, poll_s=0.0)
    return samples
