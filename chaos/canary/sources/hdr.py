"""HdrHistogram interval logs (`ttft_us.hlog`): values without their requests.

The library's log reader skips lines that it cannot parse and ends quietly at a broken
one, so lines are taken apart here and only the histograms are left to it. Values come
back as the upper end of their bucket, at three digits at most 0.1 % above what was
recorded. They cannot be paired, and say nothing of requests that failed: the number of
those must stand in `meta.json` as the counter `failed_requests`.
"""

from __future__ import annotations

import re
from typing import IO, TYPE_CHECKING

import numpy as np
from hdrh.histogram import HdrHistogram

from chaos.canary.samples import Columns, Samples
from chaos.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from numpy.typing import NDArray

    from chaos.canary.sources.flaws import Flaws
    from chaos.canary.sources.meta import Meta

MAX_VALUES = 5_000_000
MAX_LINE = 1 << 20
MAX_INTERVALS = 1_000_000
FAILED = "failed_requests"
_UNIT = "_us"
_PER_S = 1e6
_LEGEND = '"StartTimestamp"'
_INTERVAL = re.compile(
    r"(?:Tag=[^,]*,)?([\d.]+),([\d.]+),([\d.]+),(HIST[A-Za-z0-9+/=]+)"
)
_DROPPED = re.compile(r"dropped (\d+)")


def read_logs(paths: Sequence[Path], meta: Meta, flaws: Flaws) -> Samples:
    """The samples of an arm, from one log a metric; unpaired.

    Raises:
        UsageError: A file's name does not say its unit.
        OSError: A file cannot be read.
    """
    logs = {_metric(path): _values(path, flaws) for path in paths}
    rows = max((len(values) for values, _ in logs.values()), default=0)
    if not rows:
        flaws.add("empty", "the histogram logs hold no value")
    if meta.requests is not None and rows > meta.requests:
        flaws.add("count", f"{rows} values of {meta.requests} requests")
    failed = _failed(meta, flaws)
    if meta.requests is not None and rows + failed < meta.requests:
        told = f"{rows} values and {failed} failed of {meta.requests} requests"
        flaws.add("count", told)
    columns = {
        name: _padded(values, rows + failed) for name, (values, _) in logs.items()
    }
    starts = max((begins for _, begins in logs.values()), key=len, default=np.empty(0))
    return Columns(
        arm=meta.arm,
        ok=np.arange(rows + failed) < rows,
        lag_s=columns.pop("lag_s", None),
        metrics=columns,
        start_s=_padded(starts, rows + failed),
        counters=meta.counters,
        complete=meta.complete,
        problems=flaws.told(),
        meta=meta.rest,
    ).samples()


def _metric(path: Path) -> str:
    if not path.stem.endswith(_UNIT):
        told = f"{path}: its name does not say that it holds microseconds"
        raise UsageError(told, "call it like ttft_us.hlog")
    return path.stem.removesuffix(_UNIT) + "_s"


def _failed(meta: Meta, flaws: Flaws) -> int:
    failed = meta.counters.get(FAILED)
    if failed is None:
        told = (
            f"histogram logs do not hold requests that failed; count them as {FAILED}"
        )
        flaws.add("failed", told)
        return 0
    if failed > MAX_VALUES:
        flaws.add("failed", f"{FAILED} {failed} is too many to be judged")
        return 0
    return failed


def _values(
    path: Path, flaws: Flaws
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Values and the beginnings of their intervals, both in seconds."""
    values, begins, total = [], [], 0
    with path.open("rb") as file:
        for where, start_s, payload in _intervals(file, path.name, flaws):
            counted = _decoded(payload)
            if counted is None:
                flaws.add(f"hlog {path.name}", f"{where}: is no histogram")
                continue
            total += int(counted[1].sum())
            if total > MAX_VALUES:
                flaws.add("long", f"{where}: only {MAX_VALUES} values are read")
                break
            values.append(np.repeat(counted[0], counted[1]))
            begins.append(np.full(len(values[-1]), start_s))
    if not values:
        flaws.add(f"empty {path.name}", f"{path.name}: holds no value")
        return np.empty(0), np.empty(0)
    first = begins[0][0] if len(begins[0]) else 0.0
    return np.concatenate(values) / _PER_S, np.concatenate(begins) - first


def _intervals(
    file: IO[bytes], name: str, flaws: Flaws
) -> Iterator[tuple[str, float, str]]:
    number, headed = 0, False
    while line := file.readline(MAX_LINE + 1):
        number += 1
        where = f"{name}:{number}"
        if number > MAX_INTERVALS or len(line) > MAX_LINE:
            flaws.add("long", f"{where}: is too long to be read")
            return
        if not line.endswith(b"\n"):
            flaws.add(f"cut {name}", f"{where}: is cut off in the middle of a line")
            return
        text = line.decode("utf-8", errors="replace").rstrip()
        headed = headed or text.startswith("#[Histogram log format")
        if text.startswith(("#", _LEGEND)):
            _check_comment(text, where, flaws)
            continue
        match = _INTERVAL.fullmatch(text)
        if match is None or not headed:
            flaws.add(f"hlog {name}", f"{where}: is no line of a histogram log")
            if not headed:
                return
            continue
        yield where, _start(match[1]), match[4]


def _check_comment(text: str, where: str, flaws: Flaws) -> None:
    """Our writer says how many values did not fit into its range."""
    dropped = _DROPPED.search(text)
    if dropped and int(dropped[1]):
        flaws.add("dropped", f"{where}: {dropped[1]} values were out of its range")


def _start(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return 0.0


def _decoded(payload: str) -> tuple[NDArray[np.float64], NDArray[np.int64]] | None:
    """Values and how often; None for a payload that is broken in whatever way.

    The decoder raises half a dozen kinds of errors, depending on where the bytes are
    wrong, `struct.error` and `zlib.error` among them.
    """
    try:
        return _counts(HdrHistogram.decode(payload))
    except Exception:  # not ours to tell apart: the caller says that it is broken
        return None


def _counts(histogram: HdrHistogram) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """Values and how often, from the array of counts: the library's own iterator
    takes a hundred times as long.
    """
    counts = np.ctypeslib.as_array(histogram.counts).astype(np.int64)
    places = np.flatnonzero(counts)
    if (counts < 0).any() or int(counts.sum()) != histogram.get_total_count():
        message = "counts do not add up"
        raise ValueError(message)
    values = [
        histogram.get_highest_equivalent_value(histogram.get_value_from_index(int(at)))
        for at in places
    ]
    return np.array(values, dtype=np.float64), counts[places]


def _padded(values: NDArray[np.float64], rows: int) -> NDArray[np.float64]:
    column = np.full(rows, np.nan)
    column[: len(values)] = values
    return column
