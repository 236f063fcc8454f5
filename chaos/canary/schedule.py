"""Whose turn it is: one trace in short blocks, and both arms replay every block.

A machine gets slower and faster by itself. Arms that run one after the other see that
as a difference, arms that run at once disturb each other. So the trace is cut into
blocks of a second or two; each block goes to one arm and then to the other, and the
order is swapped every time (ABBA): a drift that is linear over two blocks meets both
arms alike. Order effects are swapped with it. Everything here is pure.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from chaos.systems.base import Request

BASELINE, CANARY = "baseline", "canary"
ARMS = (BASELINE, CANARY)
MAX_BLOCKS = 10_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Numbered:
    """A request of the trace with the number that both arms give it."""

    number: int
    request: Request


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """A piece of the trace; `at_s` of its requests counts from its own beginning."""

    number: int
    requests: tuple[Numbered, ...]

    @property
    def lasts_s(self) -> float:
        """When its last request is sent."""
        return self.requests[-1].request.at_s if self.requests else 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """One arm replays one block. `number` counts the turns of the whole run."""

    number: int
    arm: str
    block: Block


def blocks_of(
    requests: Sequence[Request], per_block: int, *, first: int = 0, number: int = 0
) -> tuple[Block, ...]:
    """Cuts a trace into blocks of `per_block` requests.

    Args:
        requests: sorted by `at_s`.
        per_block: at least one; the last block may be shorter.
        first: number of the first request.
        number: number of the first block.

    Raises:
        ValueError: a block without requests, or more blocks than anybody would play.
    """
    if per_block < 1 or not requests:
        msg = "a trace has requests and a block at least one of them"
        raise ValueError(msg)
    count = -(-len(requests) // per_block)
    if count > MAX_BLOCKS:
        msg = f"{count} blocks; at most {MAX_BLOCKS}"
        raise ValueError(msg)
    return tuple(
        Block(
            number=number + index,
            requests=_rebased(
                requests[index * per_block : (index + 1) * per_block],
                first + index * per_block,
            ),
        )
        for index in range(count)
    )


def turns_of(blocks: Sequence[Block], *, first: int = 0) -> tuple[Turn, ...]:
    """ABBA: block by block both arms, the order swapped from block to block."""
    turns: list[Turn] = []
    for block in blocks:
        order = ARMS if block.number % 2 == 0 else ARMS[::-1]
        for arm in order:
            turns.append(Turn(number=first + len(turns), arm=arm, block=block))
    return tuple(turns)


def members_of(
    requests: Sequence[Request], members: int, *, roam: float, seed: int
) -> dict[str, int]:
    """The place in the arm (0 to `members` - 1) that serves each request, by its id.

    A session stays where it is at home, but for the share `roam` of its requests that
    go anywhere: those find their prefix in the pool only, not in a local tier. Places,
    not names, because arms name their members differently and must get the same load.

    Raises:
        ValueError: there is nobody to serve, or `roam` is no share.
    """
    if members < 1 or not 0 <= roam <= 1:
        msg = f"{members} members and a roaming share of {roam:g}"
        raise ValueError(msg)
    dice = random.Random(f"{seed}:canary:members")
    sessions = dict.fromkeys(request.session for request in requests)
    # In turn, not drawn: a member must not be left with two sessions more than others.
    home = {session: at % members for at, session in enumerate(sessions)}
    return {
        request.request_id: dice.randrange(members)
        if dice.random() < roam
        else home[request.session]
        for request in requests
    }


def length_class(tokens: int) -> str:
    """The class of a prompt by its length: `1k`, `2k`, `4k`, ... rounded up.

    Arms are compared class by class, so that a change of mix is no change of speed.
    """
    kilo = 1
    while tokens > kilo * 1024 and kilo < 1024:
        kilo *= 2
    return f"{kilo}k"


def _rebased(requests: Sequence[Request], first: int) -> tuple[Numbered, ...]:
    begin_s = requests[0].at_s
    return tuple(
        Numbered(
            number=first + index,
            request=replace(request, at_s=request.at_s - begin_s),
        )
        for index, request in enumerate(requests)
    )
