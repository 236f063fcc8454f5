"""A seeded generator of traces: shared prompts, session trees, bursts.

What the Mooncake conversation trace shows, in small: every session begins with one of
a few system prompts (chosen by Zipf), turns extend an earlier turn of the session (most
often the last one; sometimes an older one: a branch), lengths are lognormal, arrivals
come in bursts. Only the passed `random.Random` decides, so one seed is one trace.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from chaos.load.trace import BLOCK_TOKENS
from chaos.systems.base import Request

if TYPE_CHECKING:
    import random

    from numpy.typing import NDArray


@dataclass(frozen=True, slots=True, kw_only=True)
class GeneratorSettings:
    """The shape of a trace.

    Lengths are tokens. `turn_median` and `turn_sigma` describe what a turn adds to its
    parent. `burstiness` is the squared coefficient of variation of the gaps between
    arrivals: 0 constant, 1 Poisson, above 1 bursts (gamma). `fixed_input_tokens` gives
    every prompt the same length. `first_block_id` keeps traces of several tests apart.
    """

    requests: int = 200
    rate_per_s: float = 20.0
    sessions: int = 32
    system_prompts: int = 4
    system_blocks: int = 2
    zipf: float = 1.1
    branching: float = 0.15
    turn_median: float = 1_200.0
    turn_sigma: float = 0.6
    output_median: float = 350.0
    output_sigma: float = 0.6
    max_input_tokens: int = 8_192
    fixed_input_tokens: int = 0
    burstiness: float = 1.0
    first_block_id: int = 0
    request_prefix: str = "g"

    def __post_init__(self) -> None:
        """Refuses shapes that no trace can have."""
        floor = (self.system_blocks + 1) * BLOCK_TOKENS
        longest = self.fixed_input_tokens or self.max_input_tokens
        if longest < floor:
            msg = (
                f"prompts of {longest} tokens do not hold the system prompt: >= {floor}"
            )
            raise ValueError(msg)
        if min(self.requests, self.sessions, self.system_prompts) < 1:
            msg = "requests, sessions and system_prompts must be at least 1"
            raise ValueError(msg)
        if self.rate_per_s <= 0 or self.burstiness < 0 or not 0 <= self.branching <= 1:
            msg = "need rate_per_s > 0, burstiness >= 0, branching between 0 and 1"
            raise ValueError(msg)


def generate(settings: GeneratorSettings, rng: random.Random) -> list[Request]:
    """Makes `settings.requests` requests in order of arrival."""
    dice = np.random.default_rng(rng.getrandbits(128))
    at = _arrivals(settings, dice)
    forest = _Forest(settings, dice)
    order = _session_order(settings, dice)
    return [
        forest.request(index, session, float(at[index]))
        for index, session in enumerate(order)
    ]


def shared_blocks(settings: GeneratorSettings) -> frozenset[int]:
    """The ids of all system-prompt blocks: what more than one session shares."""
    first = settings.first_block_id
    return frozenset(
        range(first, first + settings.system_prompts * settings.system_blocks)
    )


def _arrivals(
    settings: GeneratorSettings, dice: np.random.Generator
) -> NDArray[np.float64]:
    mean = 1 / settings.rate_per_s
    if settings.burstiness == 0:
        gaps = np.full(settings.requests, mean)
    else:
        shape = 1 / settings.burstiness
        gaps = dice.gamma(shape, mean / shape, settings.requests)
    gaps[0] = 0.0
    return np.asarray(np.cumsum(gaps), dtype=np.float64)


def _session_order(settings: GeneratorSettings, dice: np.random.Generator) -> list[int]:
    """Every session has its turn in every round, each round in an order of its own."""
    rounds = -(-settings.requests // settings.sessions)
    order = [dice.permutation(settings.sessions) for _ in range(rounds)]
    return [int(session) for session in np.concatenate(order)[: settings.requests]]


@dataclass(slots=True)
class _Turn:
    """A node of a session's tree: the prompt up to here and what was answered."""

    tokens: int
    blocks: tuple[int, ...]
    output: int = 0


@dataclass(slots=True)
class _Forest:
    """The trees of all sessions, grown turn by turn."""

    settings: GeneratorSettings
    dice: np.random.Generator
    turns: dict[int, list[_Turn]] = field(default_factory=dict)
    next_block: int = 0

    def __post_init__(self) -> None:
        settings = self.settings
        shared = settings.system_prompts * settings.system_blocks
        self.next_block = settings.first_block_id + shared
        weights = np.arange(1, settings.system_prompts + 1) ** -settings.zipf
        prompts = self.dice.choice(
            settings.system_prompts, settings.sessions, p=weights / weights.sum()
        )
        for session, prompt in enumerate(prompts):
            first = settings.first_block_id + int(prompt) * settings.system_blocks
            blocks = tuple(range(first, first + settings.system_blocks))
            self.turns[session] = [_Turn(len(blocks) * BLOCK_TOKENS, blocks)]

    def request(self, index: int, session: int, at_s: float) -> Request:
        turn = self._grow(session)
        return Request(
            request_id=f"{self.settings.request_prefix}{index}",
            session=f"{self.settings.request_prefix}-session-{session}",
            at_s=at_s,
            input_length=turn.tokens,
            output_length=turn.output,
            hash_ids=turn.blocks,
        )

    def _grow(self, session: int) -> _Turn:
        turns = self.turns[session]
        parent = turns[-1]
        if len(turns) > 2 and self.dice.random() < self.settings.branching:
            parent = turns[int(self.dice.integers(1, len(turns) - 1))]
        tokens = self._input_tokens(parent)
        if tokens <= 0:  # the conversation is full: a new one under the same prompt
            parent = turns[0]
            tokens = self._input_tokens(parent)
        turn = self._child(parent, tokens)
        turns.append(turn)
        return turn

    def _input_tokens(self, parent: _Turn) -> int:
        """Length of the next prompt, 0 when the parent leaves no room for a turn."""
        settings = self.settings
        if settings.fixed_input_tokens:
            return settings.fixed_input_tokens
        added = self._lognormal(settings.turn_median, settings.turn_sigma)
        total = parent.tokens + parent.output + added
        if total <= settings.max_input_tokens:
            return total
        root = settings.system_blocks * BLOCK_TOKENS
        return settings.max_input_tokens if parent.tokens == root else 0

    def _child(self, parent: _Turn, tokens: int) -> _Turn:
        whole = min(parent.tokens, tokens - 1) // BLOCK_TOKENS
        if self.settings.fixed_input_tokens:  # replace the last quarter, keep the rest
            keep = max(self.settings.system_blocks, len(parent.blocks) * 3 // 4)
            whole = min(whole, keep)
        want = -(-tokens // BLOCK_TOKENS)
        fresh = range(self.next_block, self.next_block + want - whole)
        self.next_block = fresh.stop
        output = self._lognormal(
            self.settings.output_median, self.settings.output_sigma
        )
        return _Turn(tokens, (*parent.blocks[:whole], *fresh), output)

    def _lognormal(self, median: float, sigma: float) -> int:
        return max(1, round(float(self.dice.lognormal(math.log(median), sigma))))
