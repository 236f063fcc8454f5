"""Judges a finished run again from its history: `chaos analyze results/latest`."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from chaos.history.history import read_history
from chaos.history.rejudge import rejudge
from chaos.report.document import Document, Outcome, reproduce
from chaos.report.files import read_json
from chaos.report.run import document_at

if TYPE_CHECKING:
    import os

    from chaos.judge.verdict import Judgement


def analyze(path: str | os.PathLike[str]) -> Document:
    """The document of a run with every judgement made again from its history.

    Tests whose history says nothing keep the judgements that were recorded, and their
    note says so.
    """
    run = Path(path)
    before = document_at(run)
    meta = read_json(run / "run.json")
    rows: dict[str, list[Judgement]] = {}
    for test, judgement in rejudge(
        read_history(run / "history.jsonl"), seed=before.seed
    ):
        if test:
            rows.setdefault(test, []).append(judgement)
    known = {outcome.nodeid: outcome for outcome in before.outcomes}
    outcomes = [
        Outcome(
            nodeid=nodeid,
            judgements=tuple(rows.get(nodeid, ()))
            or (known[nodeid].judgements if nodeid in known else ()),
            reproduce=reproduce(nodeid, seed=before.seed, options=meta["options"]),
            error=known[nodeid].error if nodeid in known else "",
        )
        for nodeid in sorted({*rows, *known})
    ]
    kept = sorted(set(known) - set(rows))
    notes = [f"not judged again, no history: {nodeid}" for nodeid in kept]
    return replace(before, outcomes=tuple(outcomes), notes=(*before.notes, *notes))
