"""The docket of one test: judgements are laid on it, and the worst one decides."""

from __future__ import annotations

from typing import TYPE_CHECKING

from chaos.judge.verdict import Judgement, Verdict, worst

if TYPE_CHECKING:
    from collections.abc import Iterable


class Docket:
    """What the `judge` fixture gives: call it with judgements."""

    def __init__(self) -> None:
        self.judgements: list[Judgement] = []

    def __call__(self, *judged: Judgement | Iterable[Judgement]) -> Verdict:
        """Adds judgements, single ones or groups; returns the worst of these."""
        added: list[Judgement] = []
        for entry in judged:
            added += [entry] if isinstance(entry, Judgement) else list(entry)
        self.judgements += added
        return worst(added)

    @property
    def verdict(self) -> Verdict:
        return worst(self.judgements)

    @property
    def reason(self) -> str:
        """One line: what a person needs to know of the worst judgement."""
        if not self.judgements:
            return "INCONCLUSIVE: nothing was judged"
        first = next(
            judgement
            for judgement in self.judgements
            if judgement.verdict is self.verdict
        )
        line = (
            f"{first.verdict.value} {first.oracle}: {first.claim}:"
            f" observed {first.observed}, threshold {first.threshold},"
            f" n={first.samples}"
        )
        return f"{line} ({first.reason})" if first.reason else line
