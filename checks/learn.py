"""Writes a profile from good nodes: every value that a compared check saw on them."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import yaml

from checks.profile import SCHEMA

if TYPE_CHECKING:
    from checks.report import Report

_HEAD = """\
# Learned by `preflight learn` from {nodes} nodes: {names}.
# A list allows any of its values. Edit it: what is not named here is compared with the
# peers instead; /regular expressions/, >=N and <=N are understood.
"""


def learned(report: Report) -> str:
    """A YAML profile that the judged nodes satisfy."""
    values: dict[str, dict[str, set[str]]] = {}
    for finding in report.findings:
        if finding.value is not None:
            by_key = values.setdefault(finding.id, {})
            by_key.setdefault(finding.key, set()).add(finding.value)
    expect = {name: _compact(by_key) for name, by_key in sorted(values.items())}
    names = ", ".join(report.nodes[:8]) + (", ..." if len(report.nodes) > 8 else "")
    head = _HEAD.format(nodes=len(report.nodes), names=names)
    body = {"schema": SCHEMA, "expect": expect}
    return head + yaml.safe_dump(body, sort_keys=False, width=88)


def _compact(by_key: dict[str, set[str]]) -> list[str] | dict[str, list[str]]:
    """One list where all subjects hold the same; else a list by key."""
    lists = {key: [_literal(v) for v in sorted(by_key[key])] for key in sorted(by_key)}
    first = next(iter(lists.values()))
    same = all(each == first for each in lists.values())
    return first if same else lists


def _literal(value: str) -> str:
    """A value as `expect` takes it for itself and not for a pattern."""
    return f"/{re.escape(value)}/" if value.startswith(("/", ">=", "<=")) else value
