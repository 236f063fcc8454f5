"""Latencies as HdrHistogram interval logs (`*.hlog`), readable by the standard tools.

Microseconds from 1 us to 600 s, three digits, one histogram a second. The library
drops a value out of range without a word; here drops are counted and reported.
Histograms merge; percentiles must never be averaged.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from hdrh.histogram import HdrHistogram
from hdrh.log import HistogramLogReader, HistogramLogWriter

if TYPE_CHECKING:
    from pathlib import Path

LOWEST_US, HIGHEST_US, DIGITS = 1, 600_000_000, 3
INTERVAL_S = 1
MAX_VALUES = 2_000_000


@dataclass(slots=True)
class Series:
    """Values of one metric, arm and class, by the second they belong to."""

    seconds: dict[int, list[int]] = field(default_factory=dict)
    recorded: int = 0
    dropped: int = 0

    def add(self, at_s: float, value_s: float) -> None:
        """Records a latency; `at_s` is seconds since the epoch or the run's start."""
        in_range = 0 <= value_s * 1e6 <= HIGHEST_US  # false for NaN as well
        if not in_range or self.recorded >= MAX_VALUES:
            self.dropped += 1
            return
        value_us = max(LOWEST_US, round(value_s * 1e6))
        self.seconds.setdefault(int(at_s), []).append(value_us)
        self.recorded += 1

    def write(self, path: Path, *, comment: str = "") -> None:
        """Writes the interval log."""
        histogram = HdrHistogram(LOWEST_US, HIGHEST_US, DIGITS)
        with path.open("w", encoding="utf-8") as out:
            writer = HistogramLogWriter(out)
            writer.output_log_format_version()
            writer.output_comment(f"[{comment}; values in us; dropped {self.dropped}]")
            writer.output_legend()
            for second in sorted(self.seconds):
                histogram.reset()
                for value in self.seconds[second]:
                    self.dropped += not histogram.record_value(value)
                start_s = max(second, 1e-6)  # the writer takes 0 for "not given"
                writer.output_interval_histogram(
                    histogram, start_s, start_s + INTERVAL_S
                )


def read_hlog(path: Path) -> HdrHistogram:
    """All intervals of a log merged into one histogram (microseconds)."""
    total = HdrHistogram(LOWEST_US, HIGHEST_US, DIGITS)
    reader = HistogramLogReader(str(path), total)
    try:
        while reader.add_next_interval_histogram() is not None:
            continue
    finally:
        reader.close()
    return total
