"""`report.md`: the story of a run, its plots, then the summary of all tests.

For a ticket or a pull request: the same first screen as `report.html`, in plain text.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from chaos.judge.verdict import Verdict
from chaos.report.summary import BUDGET_BYTES, cell, render_summary

if TYPE_CHECKING:
    from collections.abc import Sequence

    from chaos.report.document import Document
    from chaos.report.story import Story

MOST_LINES = 12


def render_markdown(
    document: Document,
    story: Story,
    plots: Sequence[tuple[str, str]] = (),
    *,
    budget_bytes: int = BUDGET_BYTES,
) -> str:
    """The report as Markdown, never longer than its budget in bytes.

    Args:
        document: the verdicts.
        story: the first screen.
        plots: (title, path of a picture relative to the report).
        budget_bytes: GitHub drops a step summary above 1 MiB.
    """
    head = _story(story) + _pictures(plots)
    left = budget_bytes - len(head.encode("utf-8", "replace"))
    return head + render_summary(document, budget_bytes=max(0, left))


def _story(story: Story) -> str:
    rows = [
        ("Broken", "; ".join(story.broken)),
        ("Expected", story.expected),
        ("Happened", story.happened),
        ("Since", story.since),
    ]
    if story.verdict is Verdict.INCONCLUSIVE:
        rows.insert(0, rows.pop(2))
    lines = [f"**{story.verdict.value}** {cell(story.headline)}\n"]
    lines += [f"- **{name}**: {cell(words)}" for name, words in rows if words]
    lines += [f"- **Also**: {cell(line)}" for line in story.also[:MOST_LINES]]
    lines += [f"- **And**: {cell(line)}" for line in story.others]
    if story.repeat:
        fenced = story.repeat.replace("```", "'''")
        lines.append(f"\n```\n{fenced}\n```")
    return "\n".join(lines) + "\n\n"


def _pictures(plots: Sequence[tuple[str, str]]) -> str:
    return "".join(f"![{cell(title)}]({path})\n\n" for title, path in plots)
