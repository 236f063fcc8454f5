"""Reads a `verdict.json` back."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from chaos.canary.result import GateResult
from chaos.errors import UsageError

if TYPE_CHECKING:
    from pathlib import Path

MAX_BYTES = 64 << 20


def read_verdict(path: Path) -> GateResult:
    """The result of a file.

    Raises:
        UsageError: There is none, or it is no verdict of ours.
    """
    fix = "name a verdict.json that canary judge or canary run wrote"
    try:
        if path.stat().st_size > MAX_BYTES:
            raise UsageError(f"{path}: is longer than {MAX_BYTES >> 20} MiB", fix)
        document = json.loads(path.read_text(encoding="utf-8"))
        if not isinstance(document, dict):
            raise UsageError(f"{path}: is no JSON object", fix)
        return GateResult.from_document(document)
    except OSError as error:
        raise UsageError(f"{path}: {error.strerror}", fix) from None
    except (ValueError, AttributeError, RecursionError) as error:
        raise UsageError(f"{path}: {error}", fix) from None
