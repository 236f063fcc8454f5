"""An hour in the life of a healthy pool, as events: everything elapses many times.

Requests of sessions, values written and read and evicted, writers that die, callers
that give up; and the whole time the memory of every role is watched.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from chaos.errors import NotHere
from chaos.judge.conservation import judge_baseline, judge_conservation, judge_growth
from chaos.judge.limit import at_least, none_of
from chaos.load.generate import GeneratorSettings, generate
from chaos.steps import again, ask_and_abort, judge_equal, wait_for, wait_idle
from chaos.steps.footprint import MemoryWatch, counts, footprints

if TYPE_CHECKING:
    import random
    from collections.abc import Callable, Mapping, Sequence

    from chaos.driver import LoadDriver
    from chaos.judge.verdict import Judgement
    from chaos.load.sample import Sample
    from chaos.systems.base import Cluster, KvProbe, Request

HOUR_S = 3600.0
GROWTH_BYTES = 4 << 20
"""What the memory of a role may grow by in an hour, by its median slope."""
POOL_SLACK = 4
"""Pools of threads are bounded and grow with the load at one time, so that late peaks
may add a few. A leak by any event of the life would add dozens."""
IDLE_SLACK = 32
"""Idle connections of an engine: four for each of two rails of four stores."""
_WARM_SHARE = 0.15
_WARM_FACTOR = 4.0
"""How much busier the warm-up is than the rest."""
_DEATHS_SHARE = 0.75
"""Their places are free again after the release time: most of it is over at the end."""
_QUIET_S = 30.0
_IDLE = " idle connections"
_CHURN_BATCH = 32
_VALUE_BYTES = 16 << 10


@dataclass(slots=True)
class Life:
    """What was seen of a life of some seconds."""

    samples: list[Sample] = field(default_factory=list)
    reads: int = 0
    wrong: int = 0
    dead_writes: int = 0
    aborted: int = 0
    series: Mapping[str, Sequence[tuple[float, float]]] = field(default_factory=dict)
    before: Mapping[str, int] = field(default_factory=dict)
    after: Mapping[str, int] = field(default_factory=dict)


def live(
    cluster: Cluster,
    load: LoadDriver,
    rng: random.Random,
    seconds: float,
    *,
    rate_per_s: float = 8.0,
    clock: Callable[[], float] = time.monotonic,
) -> Life:
    """Lives for so long, then lets everything end and counts again.

    The first part warms up and is busier: pools of threads and connections grow to what
    the load needs. From its quiet end on nothing may grow.
    """
    life = Life()
    warm, rest = seconds * _WARM_SHARE, seconds * (1 - _WARM_SHARE)
    busy = _WARM_FACTOR * rate_per_s
    _live(cluster, load, rng, life, warm, busy, clock, deaths_s=0.0)
    life.before = held(cluster)
    with MemoryWatch(cluster) as memory:
        deaths_s = rest * _DEATHS_SHARE
        _live(cluster, load, rng, life, rest, rate_per_s, clock, deaths_s=deaths_s)
    life.series = memory.series
    life.after = held(cluster)
    return life


def judge_life(cluster: Cluster, life: Life) -> list[Judgement]:
    """O1 for direct reads, and O11: ledger, threads, files and memory."""
    scale = cluster.spec.time_scale
    pages = [
        f"{engine} {name}: {tier['used'] + tier['in_flight']} pages"
        for engine in cluster.engines
        for name, tier in cluster.engine_state(engine)["hicache"]["pages"].items()
        if tier["free"] != tier["total"]
    ]
    occupancy = sum(
        cluster.engine_state(engine)["hicache"]["occupancy"]["tokens"]
        for engine in cluster.engines
    )
    return [
        none_of(
            "O1",
            "no direct read returns wrong bytes",
            life.wrong,
            of=life.reads,
            what="wrong reads",
        ),
        judge_conservation(cluster.conservation()),
        judge_equal("O11", "bytes in the pool", sum(cluster.owned_bytes().values()), 0),
        none_of(
            "O11",
            "every page of L1 and L2 is free",
            len(pages),
            of=2 * len(cluster.engines),
            what="tiers with pages",
            reason="; ".join(pages),
        ),
        judge_equal("O11", "occupancy", occupancy, 0, unit="tokens"),
        judge_baseline(
            life.before,
            life.after,
            slack={name: slack_of(name) for name in life.before},
        ),
        judge_growth(life.series, horizon_s=HOUR_S * scale, limit_bytes=GROWTH_BYTES),
        _enough("writers died", life.dead_writes),
        _enough("callers gave up", life.aborted),
    ]


def slack_of(name: str) -> int:
    """By how much a count may grow in a life."""
    return IDLE_SLACK if name.endswith(_IDLE) else POOL_SLACK


def held(cluster: Cluster) -> dict[str, int]:
    """Threads and files of every role, without those of connections that it tells of.

    Connections that an engine keeps for the next call come and go with the load of one
    moment, each with a thread in its store. They are counted by themselves, and so are
    connections that stores serve and no engine keeps.
    """
    found = counts(footprints(cluster))
    nobodys = 0
    for engine in cluster.engines:
        client = cluster.engine_state(engine)["client"]
        idle = client.get("transfer", {}).get("idle_connections", 0)
        found[f"{engine}{_IDLE}"] = idle
        nobodys -= idle
        _take(found, f"{engine} files", idle)
    for store in cluster.stores:
        served = _served(cluster, store)
        nobodys += served
        _take(found, f"{store} files", served)
        _take(found, f"{store} threads", served)
    found["connections that no engine keeps"] = nobodys
    return found


def _take(found: dict[str, int], name: str, count: int) -> None:
    """Less of a count that is known; of a role that is gone none is."""
    if name in found:
        found[name] -= count


def _served(cluster: Cluster, store: str) -> int:
    """Connections that a store serves; none are told of where stores have no door."""
    try:
        return int(cluster.role_state(store)["connections"])
    except NotHere:
        return 0


def _enough(what: str, count: int) -> Judgement:
    """A life in which too little happened tells nothing: INCONCLUSIVE, no failure."""
    return at_least("evidence", what, count, 1, samples=count, needed=30)


def _live(
    cluster: Cluster,
    load: LoadDriver,
    rng: random.Random,
    life: Life,
    seconds: float,
    rate_per_s: float,
    clock: Callable[[], float],
    *,
    deaths_s: float,
) -> None:
    """One stretch of life, until all of it has ended; writers die in its beginning."""
    begin, stretch = clock(), len(life.samples)
    requests = _requests(rng, seconds, rate_per_s, stretch)
    probe = cluster.kv()
    with load.running(requests, arm="healthy") as running:
        turn = 0
        while not running.done:
            name = f"{stretch}-{turn}"
            _churn(cluster, probe, rng, life, requests, name)
            if clock() - begin < deaths_s:
                code, _ = probe.start_write(f"dead-{name}", size_bytes=_VALUE_BYTES)
                life.dead_writes += code == 0
            turn += 1
            pause_s = begin + turn - clock()
            running.join(max(0.0, pause_s))
    life.samples += running.run.samples
    probe.close()
    _come_to_rest(cluster)


def _requests(
    rng: random.Random, seconds: float, rate_per_s: float, stretch: int
) -> list[Request]:
    settings = GeneratorSettings(
        requests=max(1, round(seconds * rate_per_s)),
        rate_per_s=rate_per_s,
        sessions=24,
        max_input_tokens=6_144,
        first_block_id=(stretch + 1) << 24,
        request_prefix=f"life-{stretch}-",
    )
    return generate(settings, rng)


def _churn(
    cluster: Cluster,
    probe: KvProbe,
    rng: random.Random,
    life: Life,
    requests: Sequence[Request],
    turn: str,
) -> None:
    """Once a second: values are written and read, and two callers give up."""
    names = [f"churn-{turn}-{i}" for i in range(_CHURN_BATCH)]
    probe.write(names, size_bytes=_VALUE_BYTES)
    codes, wrong = probe.read(names, size_bytes=_VALUE_BYTES)
    life.reads += sum(code == 0 for code in codes)
    life.wrong += wrong
    engine = rng.choice(cluster.engines)
    left = [again(rng.choice(requests), f"left-{turn}-{i}") for i in range(2)]
    delays_s = [rng.uniform(0.0, 0.004) for _ in left]
    life.aborted += ask_and_abort(cluster, engine, left, delays_s, workers=2)


def _come_to_rest(cluster: Cluster) -> None:
    """Waits until no work is under way and every dead write has been released."""
    for engine in cluster.engines:
        wait_idle(cluster, engine)
    wait_for(lambda: not _unfinished(cluster), "dead writes to end", timeout_s=_QUIET_S)
    cluster.reset()


def _unfinished(cluster: Cluster) -> int:
    """Writes that began and neither ended nor were given up."""
    gauges = cluster.role_state(cluster.masters[0])["gauges"]
    return int(
        gauges["master_processing_key_count"]
        + gauges["master_put_start_discarded_staging_size"]
    )
