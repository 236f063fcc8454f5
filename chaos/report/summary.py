"""The Markdown summary of a run, for a pull request or a CI step.

GitHub drops a whole step summary above 1 MiB, so ours has a budget: sections are cut,
passing tests first, and it says what was cut.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from chaos.judge.verdict import Judgement, Verdict

if TYPE_CHECKING:
    from collections.abc import Sequence

    from chaos.report.document import Document, Outcome

BUDGET_BYTES = 900_000
_CUT_ROOM = 400
_TAG = re.compile(r"<(?=[A-Za-z/!?])")


def render_summary(document: Document, *, budget_bytes: int = BUDGET_BYTES) -> str:
    """The summary, never longer than its budget in bytes."""
    outcomes = sorted(document.outcomes, key=lambda one: -one.verdict.severity)
    bad = [one for one in outcomes if one.verdict is not Verdict.PASS]
    good = [one for one in outcomes if one.verdict is Verdict.PASS]
    paper = _Paper(budget_bytes)
    paper.add([_head(document)])
    paper.add([_failure(one) for one in bad], "failed or inconclusive tests")
    paper.add(_fault_rows(document), "faults")
    paper.add([_table(one) for one in (*bad, *good)], "tables of tests")
    return paper.text


class _Paper:
    """Text under a budget; what does not fit is counted by section."""

    def __init__(self, budget_bytes: int) -> None:
        self.text = ""
        self._left = budget_bytes - _CUT_ROOM

    def add(self, parts: Sequence[str], name: str = "") -> None:
        for index, part in enumerate(parts):
            size = len(part.encode("utf-8", "replace"))
            if size > self._left:
                self.text += f"\n_Cut: {len(parts) - index} {name or 'parts'}._\n"
                return
            self.text += part
            self._left -= size


def _head(document: Document) -> str:
    counts = document.counts
    numbers = ", ".join(f"{counts[one]} {one.value}" for one in Verdict)
    words = [
        f"# {document.suite}: {document.verdict.value}\n",
        f"{numbers}. Seed {document.seed}, time scale {document.time_scale:g} "
        f"({_scale(document.time_scale)}), {document.duration_s:.0f} s, "
        f"system {document.system or '?'} on {document.target or '?'}.\n",
        "TTFT is modelled: waits are real, prefill is computed.\n",
    ]
    if document.aborted:
        words.append(f"**Aborted**: {document.aborted}\n")
    words += [f"**Fault left behind**: {one}\n" for one in document.residual]
    words += [f"{note}\n" for note in document.notes]
    return "\n".join(words)


def _scale(factor: float) -> str:
    return "real time" if factor == 1 else "every time constant multiplied by it"


def _failure(outcome: Outcome) -> str:
    words = [f"\n## {outcome.verdict.value} `{outcome.nodeid}`\n"]
    if outcome.error:
        words.append(f"- {cell(outcome.error)}")
    words += [
        f"- **{row.oracle}** {cell(row.claim)}: {cell(row.observed)} of "
        f"{cell(row.threshold)} (n={row.samples}) **{row.verdict.value}**"
        + (f": {cell(row.reason)}" if row.reason else "")
        for row in outcome.broken
    ]
    words.append(f"\n```\n{outcome.reproduce}\n```\n")
    return "\n".join(words)


def _fault_rows(document: Document) -> list[str]:
    if not document.faults:
        return []
    head = "\n## Faults\n\n| fault | target | held | evidence |\n|---|---|---|---|\n"
    rows = []
    for row in document.faults:
        start, end = row.get("injected_at_s"), row.get("reverted_at_s")
        held = "?" if start is None or end is None else f"{end - start:.2f} s"
        proof = row.get("evidence") or {}
        effect = f"{proof.get('effect', 0):g} {proof.get('measure', 'none')}"
        rows.append(
            f"| {cell(row.get('kind'))} | {cell(row.get('target'))} | {held} "
            f"| {cell(effect)} |\n"
        )
    return [head, *rows]


def _table(outcome: Outcome) -> str:
    head = (
        f"\n### {outcome.verdict.value} `{outcome.nodeid}`\n\n"
        "| oracle | claim | observed | threshold | n | verdict | note |\n"
        "|---|---|---|---|---|---|---|\n"
    )
    return head + "".join(_row(row) for row in outcome.judgements)


def _row(row: Judgement) -> str:
    cells = (
        row.oracle,
        row.claim,
        row.observed,
        row.threshold,
        row.samples,
        row.verdict.value,
        row.reason,
    )
    return "| " + " | ".join(cell(one) for one in cells) + " |\n"


def cell(value: object) -> str:
    """A text that breaks no table and starts no HTML."""
    text = str(value).replace("|", "\\|").replace("\n", " ")
    return _TAG.sub(r"\\<", text)
