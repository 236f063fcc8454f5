"""Where samples come from: a directory of rows or histograms, or a Prometheus server.

What cannot be read at all is a `UsageError`. What can be read and is not whole goes on
as `Samples.problems`, which forbid PASS: a reader never repairs a measurement.
"""

from __future__ import annotations

from chaos.canary.sources.jsonl import read_directory

__all__ = ["read_directory"]
