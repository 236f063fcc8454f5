"""The experiment of O7: one store of many is lost, the same trace before and after.

Conversations are kept in the pool; then every conversation has its next turn, once
while all stores live and once without the victim. Each arm asks for fresh tokens of its
own behind the same kept prefix, so that neither arm finds what the other wrote, and
every session is asked once, so that none refills what another lost.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from chaos.judge.blast import PageMap, byte_share, measured_loss, predicted_loss
from chaos.load.generate import GeneratorSettings, generate, shared_blocks
from chaos.load.routing import SessionAffine, evenly
from chaos.load.sample import answered
from chaos.load.trace import longest_per_session
from chaos.steps import ask_together, extended, wait_for, wait_idle

if TYPE_CHECKING:
    import random
    from collections.abc import Callable, Mapping, Sequence

    from chaos.driver import LoadDriver
    from chaos.judge.blast import Loss
    from chaos.load.sample import LoadRun
    from chaos.systems.base import Cluster, Request

TURN_BLOCKS = 2
CUT_SHORT = frozenset({"timeout", "best_effort"})
"""Prefetches that ended before the pool had answered."""
_AT_ONCE = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Conversations:
    """What is kept in the pool before the fault: one long prompt a session."""

    kept: tuple[Request, ...]
    shared: frozenset[int]

    @classmethod
    def of(cls, settings: GeneratorSettings, rng: random.Random) -> Conversations:
        """The longest prompt of each session of a generated trace, in whole blocks."""
        longest = longest_per_session(generate(settings, rng))
        kept = tuple(_whole_blocks(request, settings) for request in longest)
        return cls(kept=kept, shared=shared_blocks(settings))

    @property
    def sessions(self) -> list[str]:
        return [request.session for request in self.kept]


@dataclass(frozen=True, slots=True, kw_only=True)
class Placed:
    """Where everything lies: the owner map, and how much every store holds."""

    maps: tuple[PageMap, ...]
    owned_bytes: Mapping[str, int]
    writers: Mapping[str, int]

    def private_victim(self) -> str:
        """The store whose loss leaves most shared prompts whole, then the fullest.

        Shared prompts are a case of their own: who loses one loses all behind it.
        """

        def rank(victim: str) -> tuple[int, float, str]:
            whole = sum(one.shared_survives(victim) for one in self.maps)
            return whole, byte_share(self.owned_bytes, victim), victim

        return max(self.owned_bytes, key=rank)

    def shared_victim(self) -> str:
        """The store whose shared pages most sessions need."""

        def rank(victim: str) -> tuple[int, str]:
            return sum(not one.shared_survives(victim) for one in self.maps), victim

        return max(self.owned_bytes, key=rank)


@dataclass(frozen=True, slots=True, kw_only=True)
class Lost:
    """Both arms of the experiment, and the victim between them."""

    placed: Placed
    victim: str
    healthy: LoadRun
    fault: LoadRun
    page_tokens: int

    def predicted(self, *, private: bool = False) -> Loss:
        """By the owner map, taken before the fault."""
        return predicted_loss(self.told(), self.victim, private=private)

    def measured(self, *, private: bool = False) -> Loss:
        """By what the engines reused."""
        return measured_loss(
            self.healthy.samples,
            self.fault.samples,
            self.told(),
            page_tokens=self.page_tokens,
            victim=self.victim,
            private=private,
        )

    def told(self) -> list[PageMap]:
        """The maps of requests of which something can be told.

        Where a deadline ended the read although every store lived, the machine was
        too busy to read, and the reuse before the fault is not what the map says.
        """
        cut = {
            answer.request_id
            for _, answer in answered(tuple(self.healthy.samples))
            if answer.prefetch_outcome in CUT_SHORT
        }
        return [one for one in self.placed.maps if one.request_id not in cut]


def route_evenly(cluster: Cluster, talks: Conversations) -> SessionAffine:
    """Session-affine routing that gives every engine the same number of sessions."""
    engines = tuple(cluster.engines)
    return SessionAffine(engines=engines, explicit=evenly(talks.sessions, engines))


def move_sessions(cluster: Cluster, route: SessionAffine) -> SessionAffine:
    """Every other session goes on at the next engine, as after a rebalance."""
    engines = tuple(cluster.engines)
    explicit = dict(route.explicit)
    for session in sorted(explicit)[::2]:
        at = engines.index(explicit[session])
        explicit[session] = engines[(at + 1) % len(engines)]
    return replace(route, explicit=explicit)


def sharing(cluster: Cluster, system: Request, tokens: int = 1024) -> Conversations:
    """One conversation an engine, all of them behind one system prompt."""
    kept = tuple(
        replace(
            extended(cluster, system, f"{system.request_id}/{engine}", tokens),
            session=f"session-of-{engine}",
        )
        for engine in cluster.engines
    )
    return Conversations(kept=kept, shared=frozenset(system.hash_ids))


def keep_all(cluster: Cluster, pairs: Sequence[tuple[str, Request]]) -> None:
    """Has engines compute prompts and keep them in the pool; empties their tiers.

    A few at a time: a burst on a busy machine may itself look like a fault. A breaker
    that opened all the same is waited for.
    """
    lacking = list(pairs)

    def kept() -> bool:
        ask_together(cluster, lacking, at_once=_AT_ONCE)
        settle(cluster)
        lacking[:] = [pair for pair in lacking if not all(cluster.owners_of(pair[1]))]
        return not lacking

    wait_for(kept, "the pool to hold all prompts")
    wait_for(lambda: _all_closed(cluster), "the breakers to be closed")
    flush(cluster)


def keep_conversations(
    cluster: Cluster, load: LoadDriver, talks: Conversations, route: SessionAffine
) -> None:
    """Has every conversation computed by its engine and kept in the pool.

    A write-back that failed on a busy machine left a hole behind: whoever lacks a page
    is asked again. Waits for the state, bounded.
    """
    lacking = list(talks.kept)

    def kept() -> bool:
        load(lacking, arm="keep", route=route)
        settle(cluster)
        lacking[:] = [one for one in lacking if not all(cluster.owners_of(one))]
        return not lacking

    wait_for(kept, "the pool to hold all conversations")
    wait_for(lambda: _all_closed(cluster), "the breakers to be closed")


def placed(
    cluster: Cluster,
    talks: Conversations,
    *,
    domain: Callable[[str], str] = str,
) -> Placed:
    """The owner map of this instant.

    `domain` names what fails together: a store by itself, or `cluster.host_of`.
    """
    pages = cluster.limits.block_tokens // cluster.limits.page_tokens
    hosts = [cluster.host_of(engine) for engine in cluster.engines]
    owned: dict[str, int] = {}
    writers: dict[str, int] = {}
    for store, size in cluster.owned_bytes().items():
        name = domain(store)
        owned[name] = owned.get(name, 0) + size
        writers[name] = hosts.count(cluster.host_of(store))
    return Placed(
        maps=tuple(
            PageMap(
                request_id=request.request_id,
                owners=tuple(
                    tuple(sorted({domain(name) for name in page}))
                    for page in cluster.owners_of(request)
                ),
                shared_pages=pages * sum(b in talks.shared for b in request.hash_ids),
            )
            for request in talks.kept
        ),
        owned_bytes=owned,
        writers=writers,
    )


def next_turns(cluster: Cluster, talks: Conversations, arm: str) -> list[Request]:
    """The next turn of every conversation: its kept prefix and fresh tokens."""
    tokens = TURN_BLOCKS * cluster.limits.block_tokens
    return [
        replace(
            extended(cluster, request, f"{request.request_id}/{arm}", tokens),
            request_id=request.request_id,
        )
        for request in talks.kept
    ]


def ask_next_turns(
    cluster: Cluster,
    load: LoadDriver,
    talks: Conversations,
    route: SessionAffine,
    *,
    arm: str,
    name: str = "",
) -> LoadRun:
    """Every conversation's next turn, from the pool: L1 and L2 are empty before."""
    flush(cluster)
    turns = next_turns(cluster, talks, name or arm)
    return load(turns, arm=arm, route=route)


def flush(cluster: Cluster) -> None:
    """Empties L1 and L2 of every engine: the next hit must come from the pool."""
    settle(cluster)
    for engine in cluster.engines:
        cluster.flush_local(engine)


def settle(cluster: Cluster) -> None:
    """Waits until no engine has anything under way or left to write back."""
    for engine in cluster.engines:
        wait_idle(cluster, engine)


def expect_gone(cluster: Cluster, store: str) -> None:
    """Waits until the cluster has taken a dead store out of the pool."""
    wait_for(lambda: store not in cluster.owned_bytes(), f"{store} to be expired")


def _whole_blocks(request: Request, settings: GeneratorSettings) -> Request:
    """The prompt cut to whole blocks, its session's own part not empty."""
    least = settings.system_blocks + 1
    blocks = request.hash_ids[: max(least, request.input_length // 512)]
    return replace(request, input_length=512 * len(blocks), hash_ids=tuple(blocks))


def _all_closed(cluster: Cluster) -> bool:
    states = (cluster.engine_state(engine) for engine in cluster.engines)
    return all(state["breaker"] == "closed" for state in states)
