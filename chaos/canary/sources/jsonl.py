"""The measurement directory of one arm: rows if there are any, else histogram logs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from chaos.canary.sources import rows
from chaos.canary.sources.flaws import Flaws
from chaos.canary.sources.hdr import read_logs
from chaos.canary.sources.meta import read_meta, regular
from chaos.errors import UsageError

if TYPE_CHECKING:
    from pathlib import Path

    from chaos.canary.samples import Samples

MAX_LOGS = 64


def read_directory(path: Path, arm: str) -> Samples:
    """The samples of one arm, "baseline" or "canary".

    Raises:
        UsageError: It cannot be read, or is not what it was given as.
    """
    flaws = Flaws()
    meta = read_meta(path, arm, flaws)
    try:
        recorded = path / rows.NAME
        if regular(recorded):
            return rows.read_rows(recorded, meta, flaws)
        _refuse_odd(path)
        logs = sorted(each for each in path.glob("*.hlog") if regular(each))
        if not logs:
            told = f"{path}: holds neither {rows.NAME} nor *.hlog"
            raise UsageError(told, "name a directory that canary run wrote")
        if len(logs) > MAX_LOGS:
            raise UsageError(
                f"{path}: holds more than {MAX_LOGS} *.hlog", "sort them out"
            )
        return read_logs(logs, meta, flaws)
    except OSError as error:
        told = f"{error.filename or path}: cannot be read: {error.strerror}"
        raise UsageError(told, "name a directory that you may read") from None


def _refuse_odd(path: Path) -> None:
    """A packed file, or a pipe in place of a file, is not silently passed over."""
    if (path / rows.NAME).exists():
        raise UsageError(f"{path / rows.NAME}: is no plain file", "write one there")
    for packed in sorted(path.glob("*.gz")):
        raise UsageError(f"{packed}: is packed", f"unpack it: gunzip {packed}")
