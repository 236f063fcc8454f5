"""A saved baseline: what the nodes held when they were last good.

The majority of peers cannot see what changed on all nodes together (a CNI upgrade, a
GID that moved everywhere); a baseline can. It holds the values of compared checks only.
"""

from __future__ import annotations

import json
from pathlib import Path  # noqa: TC003 - part of the public signature
from typing import TYPE_CHECKING, Any

from checks.errors import UsageError

if TYPE_CHECKING:
    from checks.report import Report

SCHEMA = "preflight.baseline/1"


def to_baseline(report: Report) -> dict[str, Any]:
    """The document to be saved."""
    rows = [
        [finding.node, finding.id, finding.key, finding.value]
        for finding in report.findings
        if finding.value is not None
    ]
    return {"schema": SCHEMA, "values": sorted(rows)}


def load_baseline(path: Path) -> dict[tuple[str, str, str], str]:
    """Values by (node, check, key).

    Raises:
        UsageError: the file is no baseline.
    """
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise UsageError(f"{path} cannot be read: {error}") from None
    if not isinstance(document, dict) or document.get("schema") != SCHEMA:
        raise UsageError(f"{path}: schema is not {SCHEMA}", "see --save-baseline")
    try:
        return {
            (str(node), str(check), str(key)): str(value)
            for node, check, key, value in document["values"]
        }
    except (KeyError, TypeError, ValueError) as error:
        raise UsageError(f"{path}: values: {error!r}", "save it again") from None
