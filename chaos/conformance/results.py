"""Measured properties in the results of runs: written by suites, read for tables."""

from __future__ import annotations

from typing import TYPE_CHECKING

from chaos.conformance.measured import OPERATION, Measured
from chaos.errors import UsageError
from chaos.history.history import HistoryError, read_history

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from chaos.history.history import History


def record(history: History, measured: Iterable[Measured]) -> None:
    """Writes rows into the history of a run."""
    for one in measured:
        history.info(OPERATION, **one.to_row())


def measured_in(results: Path) -> list[Measured]:
    """What a run measured, in its order.

    Raises:
        UsageError: It is no run, or its history cannot be read.
    """
    path = results / "history.jsonl"
    if not path.is_file():
        raise UsageError(
            f"{results} is not the directory of a run", "try results/latest"
        )
    try:
        return [
            Measured.from_row(event.value)
            for event in read_history(path)
            if event.operation == OPERATION
        ]
    except (HistoryError, ValueError) as error:
        raise UsageError(f"{path}: {error}", "measure again") from error
