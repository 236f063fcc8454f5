"""Everything that the reports of a run are made of, read once."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from chaos.report.moments import Moments
from chaos.report.story import Story, story_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from chaos.report.document import Document, Outcome
    from chaos.report.html.drawing import Plot
    from chaos.report.traces import Traces

    Plots = Mapping[str, Sequence[Plot]]


@dataclass(frozen=True, slots=True, kw_only=True)
class RunFacts:
    """Everything that a page of a run is made of."""

    document: Document
    meta: Mapping[str, Any]
    traces: Traces
    plots: Plots = field(default_factory=dict)
    """Plots by node id."""
    left_out: Mapping[str, str] = field(default_factory=dict)
    """Why a test has no plots, by node id."""

    @property
    def moments(self) -> Moments:
        return Moments.of(self.meta)

    @property
    def defects(self) -> list[str]:
        """Defects of the system under test that this run was asked to plant."""
        words = [str(word) for word in self.meta.get("options") or ()]
        return [value for option, value in pairwise(words) if option == "--defect"]

    @property
    def story(self) -> Story:
        return story_of(self.document, self.traces, self.moments, defects=self.defects)

    @property
    def outcomes(self) -> list[Outcome]:
        """Worst first."""
        return sorted(self.document.outcomes, key=lambda one: -one.verdict.severity)
