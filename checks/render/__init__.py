"""Shapes of a report: one format a file, all from the same `Report`."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from checks.render.junit import junit
from checks.render.markdown import markdown
from checks.render.nagios import nagios
from checks.render.openmetrics import openmetrics
from checks.render.terminal import terminal

if TYPE_CHECKING:
    from collections.abc import Callable

    from checks.report import Report


def as_json(report: Report, *, strict: bool = False) -> str:
    """`preflight.report/1`."""
    return json.dumps(report.to_json(strict=strict), indent=1) + "\n"


def _plain(report: Report, *, strict: bool = False) -> str:
    return terminal(report, strict=strict)


FORMATS: dict[str, Callable[..., str]] = {
    "terminal": _plain,
    "json": as_json,
    "junit": junit,
    "nagios": nagios,
    "markdown": markdown,
    "openmetrics": openmetrics,
}
"""By the name of `--format`."""
