"""A store that is told to end, watched until it has (A8)."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING

from chaos.judge.limit import none_of
from chaos.steps.kv_laws import NOT_THERE, KvCode

if TYPE_CHECKING:
    from collections.abc import Sequence

    from chaos.judge.verdict import Judgement
    from chaos.systems.base import Cluster, KvProbe

STOP_TIMEOUT_S = 20.0
_LONGEST_WAY_S = 0.4


@dataclass(frozen=True, slots=True, kw_only=True)
class Look:
    """One look at the store: was it alive, then was it listed, then a read of all.

    `done_s` is when the read was over.
    """

    done_s: float
    alive: bool
    listed: bool
    codes: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Drained:
    """What was seen from the SIGTERM to after the end of the process.

    `sent_s` is when it was asked for, `ended_s` when the end was known.
    """

    sent_s: float
    ended_s: float
    exit_code: int
    looks: tuple[Look, ...]

    def signalled_by_s(self, grace_s: float) -> float:
        """The latest instant at which the store can have got the signal.

        The way to it may be long (an agent behind SSH, on a busy machine), but a store
        that keeps its grace got it so long before its end. One that ends late has no
        more time for that.
        """
        got_s = max(self.sent_s, self.ended_s - grace_s)
        return min(got_s, self.sent_s + _LONGEST_WAY_S)


def drain(
    cluster: Cluster, store: str, probe: KvProbe, names: Sequence[str]
) -> Drained:
    """Sends SIGTERM and reads the names, all on this store, until it has ended."""
    with ThreadPoolExecutor(1, thread_name_prefix="stop") as pool:
        sent_s = time.monotonic()
        ending = pool.submit(_stop, cluster, store)
        looks = []
        while not ending.done():
            looks.append(_look(cluster, store, probe, names))
        looks.append(_look(cluster, store, probe, names))
        exit_code, ended_s = ending.result()
    return Drained(
        sent_s=sent_s, ended_s=ended_s, exit_code=exit_code, looks=tuple(looks)
    )


def judge_served(drained: Drained, grace_s: float) -> list[Judgement]:
    """A8: all is read during the grace; afterwards it is not there, never broken.

    The grace cannot end earlier than its length after the signal, so whatever was read
    by then had to be served; a read that took longer may have met the end.
    """
    ends_s = drained.sent_s + grace_s
    during = [code for x in drained.looks if x.done_s <= ends_s for code in x.codes]
    after = [code for x in drained.looks if x.done_s > ends_s for code in x.codes]
    broken = sum(code not in (KvCode.OK, *NOT_THERE) for code in after)
    failed = sum(code != KvCode.OK for code in during)
    return [
        none_of(
            "A8",
            "all reads are served during the grace",
            failed,
            of=len(during),
            what="reads failed",
        ),
        none_of(
            "A8",
            "and miss afterwards, they never break",
            broken,
            of=len(after),
            what="reads broke",
        ),
    ]


def judge_gone_before_exit(drained: Drained) -> Judgement:
    """A8: the pool forgets a store before its process ends."""
    dead = [look for look in drained.looks if not look.alive]
    return none_of(
        "A8",
        "the segment is gone before the process",
        sum(look.listed for look in dead),
        of=len(dead),
        what="looks found a dead store listed",
    )


def _stop(cluster: Cluster, store: str) -> tuple[int, float]:
    exit_code = cluster.stop_role(store, timeout_s=STOP_TIMEOUT_S)
    return exit_code, time.monotonic()


def _look(cluster: Cluster, store: str, probe: KvProbe, names: Sequence[str]) -> Look:
    alive = cluster.process(store) is not None
    listed = any(store in one for one in probe.owners(names))
    codes, wrong = probe.read(names)
    codes += [KvCode.OK - 1] * wrong
    done_s = time.monotonic()
    return Look(done_s=done_s, alive=alive, listed=listed, codes=tuple(codes))
