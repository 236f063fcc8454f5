"""Shapes of a verdict: one format a file, all from the same `GateResult`."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from chaos.canary.render.github import github
from chaos.canary.render.junit import junit
from chaos.canary.render.markdown import markdown
from chaos.canary.render.openmetrics import openmetrics
from chaos.canary.render.table import table
from chaos.report.redaction import clean

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from chaos.canary.result import GateResult


def as_json(result: GateResult, *, command: str = "") -> str:
    """`canary.verdict/1`."""
    document = result.to_document()
    if command:
        document["command"] = command
    return json.dumps(clean(document), indent=2, allow_nan=False) + "\n"


FORMATS: Mapping[str, Callable[..., str]] = {
    "table": table,
    "json": as_json,
    "junit": junit,
    "markdown": markdown,
    "github": github,
    "openmetrics": openmetrics,
}
"""By the name of `--format`; each takes the result and the command to repeat it."""
