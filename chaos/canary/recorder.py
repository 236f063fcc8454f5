"""The measurement directory of one arm, written while it happens.

`requests.jsonl` only ever grows, one whole line a request. `meta.json` says from the
first second on that the arm is not complete; only `complete()` says that it is, after
every row is on disk. An arm that dies half-way, or is interrupted, leaves a directory
that no judge takes for a whole one.

A number that was not measured is null, a counter that was not observed is absent: 0
would be a claim.
"""

from __future__ import annotations

import json
import math
import os
import threading
import time
from dataclasses import dataclass, field
from typing import IO, TYPE_CHECKING, Any

from chaos.errors import UsageError
from chaos.report.files import write_json
from chaos.report.redaction import clean_line

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

SCHEMA = "canary.samples/1"
META, ROWS = "meta.json", "requests.jsonl"
MAX_ROWS = 5_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One request of one arm. Seconds; `start_s` counts from the start of the run.

    `metrics` are further columns; what is not finite is written as null.
    """

    request: int
    session: str
    host: str
    klass: str
    arm_turn: int
    start_s: float
    ok: bool
    cause: str = ""
    ttft_s: float | None = None
    tpot_s: float | None = None
    e2e_s: float | None = None
    cache_wait_s: float | None = None
    prompt_tokens: int | None = None
    hit_tokens: int | None = None
    lag_s: float | None = None
    metrics: Mapping[str, float | None] = field(default_factory=dict)

    def to_json(self) -> str:
        """One line, without its end."""
        row: dict[str, Any] = {
            "request": self.request,
            "session": self.session,
            "host": self.host,
            "class": self.klass,
            "arm_turn": self.arm_turn,
            "start_s": _rounded(self.start_s),
            "ok": self.ok,
            "cause": self.cause,
            "ttft_s": _rounded(self.ttft_s),
            "tpot_s": _rounded(self.tpot_s),
            "e2e_s": _rounded(self.e2e_s),
            "cache_wait_s": _rounded(self.cache_wait_s),
            "prompt_tokens": self.prompt_tokens,
            "hit_tokens": self.hit_tokens,
            "lag_s": _rounded(self.lag_s),
        }
        taken = row.keys() & self.metrics.keys()
        if taken:
            msg = f"{', '.join(sorted(taken))} are columns already"
            raise ValueError(msg)
        row |= {name: _rounded(value) for name, value in self.metrics.items()}
        return clean_line(json.dumps(row, separators=(",", ":"), allow_nan=False))


@dataclass(frozen=True, slots=True, kw_only=True)
class About:
    """What a directory says of its arm, known before the first request."""

    arm: str
    system: str
    build: str
    seed: int
    time_scale: float
    facts: Mapping[str, Any] = field(default_factory=dict)


class Recorder:
    """Writes one directory; rows may come from any thread.

    Args:
        directory: made here; one that holds a measurement already is refused.
        about: the arm.
        wall: seconds since the epoch, for `started_at` and `ended_at` only.

    Raises:
        UsageError: Somebody's measurement is there already, or it cannot be written.
    """

    def __init__(
        self, directory: Path, about: About, *, wall: Callable[[], float] = time.time
    ) -> None:
        self.directory = directory
        self.rows = 0
        self.counters: dict[str, int] = {}
        self._so_far: dict[str, int] = {}
        self._about = about
        self._wall = wall
        self._lock = threading.Lock()
        self._reason = "the run did not come to its end"
        self._ended = False
        self._file: IO[str] | None = _open(directory)
        self._started_at = wall()
        self._write_meta(complete=False)

    def row(self, row: Row) -> None:
        """Appends one row.

        Raises:
            ValueError: The directory is closed, or full.
        """
        line = row.to_json() + "\n"
        with self._lock:
            if self._file is None or self.rows >= MAX_ROWS:
                msg = f"{self.directory} takes no more rows"
                raise ValueError(msg)
            self._file.write(line)
            self.rows += 1

    def count(self, counters: Mapping[str, int]) -> None:
        """Adds to counters; naming one with 0 says that it was looked at."""
        with self._lock:
            for name, number in counters.items():
                self.counters[name] = self.counters.get(name, 0) + int(number)

    def checkpoint(self, counters: Mapping[str, int]) -> None:
        """What can be judged so far, for a look before the end; still not complete."""
        with self._lock:
            if self._ended or self._file is None:
                return
            self._file.flush()
            self._so_far = dict(counters)
        self._write_meta(complete=False)

    def complete(self) -> None:
        """The arm really came to its end: rows on disk first, then the word."""
        self._end(complete=True)

    def broken(self, reason: str) -> None:
        """Closes the directory as incomplete, and says why; after `complete` nothing.

        Safe to call at any time: what an interrupted run calls on its way out.
        """
        self._reason = reason or self._reason
        self._end(complete=False)

    def _end(self, *, complete: bool) -> None:
        with self._lock:
            if self._ended:
                return
            self._ended = True
            file, self._file = self._file, None
            if file is not None:
                file.flush()
                os.fsync(file.fileno())
                file.close()
        self._write_meta(complete=complete)

    def _write_meta(self, *, complete: bool) -> None:
        """Of an arm that was not measured to its end, what was counted until then."""
        about = self._about
        counters = dict(self.counters) if complete else self._so_far | self.counters
        document: dict[str, Any] = {
            "schema": SCHEMA,
            "arm": about.arm,
            "system": about.system,
            "build": about.build,
            "time_scale": about.time_scale,
            "seed": about.seed,
            "complete": complete,
            "requests": self.rows,
            "started_at": self._started_at,
            "ended_at": self._wall(),
            "counters": dict(sorted(counters.items())),
            **about.facts,
        }
        if not complete:
            document["incomplete_because"] = self._reason
        write_json(self.directory / META, document)


def _open(directory: Path) -> IO[str]:
    try:
        directory.mkdir(parents=True, exist_ok=True)
        return (directory / ROWS).open("x", encoding="utf-8", buffering=1)
    except FileExistsError:
        problem = f"{directory} holds a measurement already"
        raise UsageError(problem, "choose another --out, or move it away") from None
    except OSError as error:
        problem = f"{directory} cannot be written: {error.strerror}"
        raise UsageError(problem, "choose another --out") from error


def _rounded(value: float | None) -> float | None:
    """Microseconds are enough; what is not finite was not measured."""
    if value is None or not math.isfinite(value):
        return None
    return round(float(value), 6)
