"""Traces in the schema of Mooncake's FAST'25 release, one JSON object a line.

`{"timestamp": ms, "input_length": tokens, "output_length": tokens, "hash_ids": [...]}`:
a block is 512 tokens, `len(hash_ids) == ceil(input_length / 512)`, equal ids are equal
prefix blocks. The optional fields of NVIDIA AIPerf (`session_id`, `delay`,
`text_input`) are accepted beside them; with a `delay` (ms after the previous turn of
the same session) the timestamp may be left out.

The published traces quantise their timestamps to about 3 s: replayed as they are, they
offer a burst every 3 s that no user made. `spread` undoes that, seeded.
"""

from __future__ import annotations

import json
import os
import statistics
from collections import OrderedDict
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING

from chaos.systems.base import Request

if TYPE_CHECKING:
    import random
    from collections.abc import Iterable, Sequence

BLOCK_TOKENS = 512
MAX_LINES = 1_000_000
# A block followed by more different blocks than this is a shared prompt, no session.
SHARED_FANOUT = 8

_REQUIRED = ("timestamp", "input_length", "output_length", "hash_ids")
_OPTIONAL = ("session_id", "delay", "text_input")


class TraceError(ValueError):
    """A line of a trace does not keep the schema: the trace's fault, fix that line."""

    def __init__(
        self, path: str, line: int, field: str, value: object, remedy: str
    ) -> None:
        self.path, self.line, self.field = path, line, field
        self.value, self.remedy = value, remedy
        shown = repr(value)
        if len(shown) > 80:
            shown = shown[:77] + "..."
        super().__init__(f"{path}:{line}: {field} = {shown}: {remedy}")


def load_trace(
    path: str | os.PathLike[str], *, limit: int = MAX_LINES
) -> list[Request]:
    """Reads at most `limit` requests of a trace, in file order.

    Sessions are those of `session_id`; without one, found from shared prefixes.

    Raises:
        TraceError: the first line that does not keep the schema.
    """
    source = os.fspath(path)
    rows: list[Request] = []
    clocks: dict[str, float] = {}
    with Path(source).open(encoding="utf-8") as lines:
        for number, text in enumerate(lines, start=1):
            if len(rows) >= limit:
                break
            if text.strip():
                rows.append(_Line(source, number, text).request(clocks))
    if not rows:
        raise TraceError(source, 1, "file", "", "has no request; check the path")
    return with_sessions(rows)


def dump_trace(path: str | os.PathLike[str], requests: Iterable[Request]) -> None:
    """Writes requests in the same schema, `session_id` included."""
    with Path(path).open("w", encoding="utf-8") as out:
        for request in requests:
            row = {
                "timestamp": round(request.at_s * 1000),
                "input_length": request.input_length,
                "output_length": request.output_length,
                "hash_ids": list(request.hash_ids),
                "session_id": request.session,
            }
            out.write(json.dumps(row) + "\n")


def spread(
    requests: Sequence[Request], rng: random.Random, mode: str = "uniform"
) -> list[Request]:
    """Spreads requests of one quantised timestamp uniformly inside its tick.

    The tick is the median gap between different timestamps, cut at the next one. Order
    is kept, so reuse is that of the file. `mode` "none" changes nothing.
    """
    if mode not in ("none", "uniform"):
        msg = f"spread mode {mode!r}: use 'none' or 'uniform'"
        raise ValueError(msg)
    ticks = sorted({request.at_s for request in requests})
    if mode == "none" or len(ticks) < 2:
        return list(requests)
    width = statistics.median(after - before for before, after in pairwise(ticks))
    ends = {at: min(width, nxt - at) for at, nxt in pairwise(ticks)} | {
        ticks[-1]: width
    }
    groups: dict[float, list[Request]] = {at: [] for at in ticks}
    for request in requests:
        groups[request.at_s].append(request)
    out: list[Request] = []
    for at, group in groups.items():
        offsets = sorted(rng.uniform(0, ends[at]) for _ in group)
        out += [
            replace(request, at_s=at + offset)
            for request, offset in zip(group, offsets, strict=True)
        ]
    return out


def with_sessions(requests: Sequence[Request]) -> list[Request]:
    """Names the sessions of requests that have none, from their shared prefixes.

    A request joins the session of its deepest known block. Blocks that many different
    blocks follow are shared prompts and join nobody.
    """
    followers: dict[int, set[int]] = {}
    for request in requests:
        for block, after in pairwise(request.hash_ids):
            followers.setdefault(block, set()).add(after)
    shared = {b for b, after in followers.items() if len(after) > SHARED_FANOUT}
    owner: dict[int, str] = {}
    out: list[Request] = []
    for request in requests:
        own = [block for block in request.hash_ids if block not in shared]
        known = (owner[block] for block in reversed(own) if block in owner)
        session = request.session or next(known, f"s{len(out)}")
        for block in own:
            owner.setdefault(block, session)
        out.append(replace(request, session=session))
    return out


def longest_per_session(requests: Iterable[Request]) -> list[Request]:
    """The longest prompt of each session, in order of arrival.

    These share only what sessions share, so one does not refill what another lost.
    """
    longest: dict[str, Request] = {}
    for request in requests:
        known = longest.get(request.session)
        if known is None or request.input_length > known.input_length:
            longest[request.session] = request
    return sorted(longest.values(), key=lambda request: request.at_s)


def prefix_hit_share(
    requests: Iterable[Request], capacity_blocks: int | None = None
) -> float:
    """The share of blocks that an LRU cache of `capacity_blocks` answers (None: all).

    A block hits only when it and every earlier block of its request are present; then
    every block of the request is refreshed or inserted. This is what a trace can give,
    for the zero-effect check and as a golden number for caches.
    """
    cache: OrderedDict[int, None] = OrderedDict()
    hits = total = 0
    for request in requests:
        total += len(request.hash_ids)
        for block in request.hash_ids:
            if block not in cache:
                break
            hits += 1
        for block in request.hash_ids:
            cache.pop(block, None)
            cache[block] = None
            if capacity_blocks is not None and len(cache) > capacity_blocks:
                cache.popitem(last=False)
    return hits / total if total else 0.0


class _Line:
    """One line of a trace on its way to a request."""

    def __init__(self, path: str, number: int, text: str) -> None:
        self._path, self._number = path, number
        try:
            row = json.loads(text)
        except ValueError as error:
            raise self._error("line", text.strip(), f"is no JSON ({error})") from None
        if not isinstance(row, dict):
            raise self._error("line", row, "must be a JSON object")
        self._row: dict[str, object] = row
        for name in row:
            if name not in _REQUIRED + _OPTIONAL:
                known = ", ".join(_REQUIRED + _OPTIONAL)
                raise self._error(name, row[name], f"is unknown; fields are {known}")

    def request(self, clocks: dict[str, float]) -> Request:
        """Checks every field; `clocks` has the last instant of each session, in s."""
        session = self._session()
        at_s = self._at_s(session, clocks)
        if session:
            clocks[session] = at_s
        length = self._count("input_length", least=1)
        return Request(
            request_id=f"r{self._number}",
            session=session,
            at_s=at_s,
            input_length=length,
            output_length=self._count("output_length", least=0),
            hash_ids=self._blocks(length),
        )

    def _session(self) -> str:
        session = self._row.get("session_id", "")
        if not isinstance(session, str | int) or isinstance(session, bool):
            raise self._error("session_id", session, "must be a string")
        text = self._row.get("text_input", "")
        if text is not None and not isinstance(text, str):
            raise self._error("text_input", text, "must be a string")
        return str(session)

    def _at_s(self, session: str, clocks: dict[str, float]) -> float:
        if "timestamp" in self._row:
            return self._milliseconds("timestamp") / 1000
        if "delay" in self._row and session in clocks:
            return clocks[session] + self._milliseconds("delay") / 1000
        remedy = "is missing; give ms, or a delay after an earlier turn of the session"
        raise self._error("timestamp", None, remedy)

    def _milliseconds(self, name: str) -> float:
        value = self._row[name]
        good = isinstance(value, int | float) and not isinstance(value, bool)
        if not good or not 0 <= float(str(value)) < float("inf"):
            raise self._error(name, value, "must be milliseconds, 0 or more")
        return float(str(value))

    def _count(self, name: str, *, least: int) -> int:
        if name not in self._row:
            raise self._error(name, None, "is missing; give a number of tokens")
        value = self._row[name]
        if not isinstance(value, int) or isinstance(value, bool) or value < least:
            raise self._error(name, value, f"must be an integer, {least} or more")
        return value

    def _blocks(self, input_length: int) -> tuple[int, ...]:
        value = self._row.get("hash_ids")
        if not isinstance(value, list):
            raise self._error("hash_ids", value, "must be a list of block ids")
        for block in value:
            if not isinstance(block, int) or isinstance(block, bool) or block < 0:
                raise self._error("hash_ids", block, "must be integers, 0 or more")
        want = -(-input_length // BLOCK_TOKENS)
        if len(value) != want:
            remedy = (
                f"has {len(value)} ids; input_length {input_length} is {want} blocks "
                f"of {BLOCK_TOKENS} tokens, so give {want}"
            )
            raise self._error("hash_ids", value, remedy)
        return tuple(value)

    def _error(self, field: str, value: object, remedy: str) -> TraceError:
        return TraceError(self._path, self._number, field, value, remedy)
