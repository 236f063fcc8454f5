"""Judges a finished run again from its history: `chaos analyze results/latest`."""

from __future__ import annotations

from collections import Counter
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
    from collections.abc import Mapping, Sequence

    from chaos.judge.verdict import Judgement


def analyze(path: str | os.PathLike[str]) -> Document:
    """The document of a run with every judgement made again that its history allows.

    A history holds the requests, and the facts that a test recorded; most tests judge
    more than that. What cannot be judged again is kept as it was recorded, and a note
    says so: a broken law must not disappear because its facts were not kept.
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
    names = sorted({*rows, *known})
    outcomes = [
        Outcome(
            nodeid=nodeid,
            judgements=_merged(rows.get(nodeid, ()), known.get(nodeid)),
            reproduce=_reproduce(nodeid, before.seed, meta),
            error=known[nodeid].error if nodeid in known else "",
        )
        for nodeid in names
    ]
    notes = [note for name in names for note in _notes(name, rows, known.get(name))]
    return replace(before, outcomes=tuple(outcomes), notes=(*before.notes, *notes))


def _merged(
    again: Sequence[Judgement], before: Outcome | None
) -> tuple[Judgement, ...]:
    """What was judged again, and what was recorded and could not be."""
    return (*again, *_kept(again, before))


def _kept(again: Sequence[Judgement], before: Outcome | None) -> list[Judgement]:
    """Recorded judgements that no new one replaces: the same oracle and claim.

    Judgements of samples are made again for each arm and have its name in their claim,
    so the recorded ones, which looked at samples of a choice, stand beside them. Of a
    claim that was recorded more often than it was judged again the worst are kept.
    """
    new = Counter((row.oracle, row.claim) for row in again)
    recorded = before.judgements if before is not None else ()
    replaced: set[int] = set()
    for at in sorted(range(len(recorded)), key=lambda i: recorded[i].verdict.severity):
        claim = recorded[at].oracle, recorded[at].claim
        if new[claim] > 0:
            new[claim] -= 1
            replaced.add(at)
    return [row for at, row in enumerate(recorded) if at not in replaced]


def _notes(
    nodeid: str, rows: Mapping[str, Sequence[Judgement]], before: Outcome | None
) -> list[str]:
    if nodeid not in rows:
        return [f"not judged again, no history: {nodeid}"]
    kept = len(_kept(rows[nodeid], before))
    return [f"{kept} judgements kept as recorded: {nodeid}"] if kept else []


def _reproduce(nodeid: str, seed: int, meta: Mapping[str, Sequence[str]]) -> str:
    command = meta.get("command", ("pytest",))
    return reproduce(nodeid, seed=seed, options=meta["options"], command=command)
