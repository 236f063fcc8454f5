"""The docket of one test: judgements are laid on it, and the worst one decides."""

from __future__ import annotations

from typing import TYPE_CHECKING

from chaos.judge.verdict import Judgement, Verdict, worst

if TYPE_CHECKING:
    from collections.abc import Iterable

    from chaos.faults.base import Receipt


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


def no_effect(receipt: Receipt) -> Judgement:
    """A fault without evidence: whatever was measured, it was not under this fault."""
    evidence = receipt.evidence
    return Judgement(
        oracle="evidence",
        claim=f"{receipt.kind}({receipt.target}) had effect",
        verdict=Verdict.INCONCLUSIVE,
        observed=f"{evidence.effect:g} {evidence.measure}" if evidence else "nothing",
        threshold="> 0",
        samples=0,
        reason=evidence.detail if evidence else "no evidence was taken",
        kind="counter",
    )


def not_recovered(receipt: Receipt) -> Judgement:
    """A fault that could not be undone: a failure of its own, and the end of a run."""
    return Judgement(
        oracle="recovery",
        claim=f"{receipt.kind}({receipt.target}) was undone",
        verdict=Verdict.FAIL,
        observed=receipt.residual,
        threshold="nothing left",
        samples=1,
        reason="not recovered",
        kind="counter",
    )
