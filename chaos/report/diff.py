"""Two runs side by side: `chaos diff RUN_A RUN_B`.

Verdicts are compared test by test; counters, which must not depend on the machine, are
compared exactly; times are shown as ratios and judged by nobody: two single runs are
no statistics, that is what `canary judge` is for.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from chaos.judge.verdict import Judgement, Verdict
from chaos.report.files import read_json
from chaos.report.run import document_at
from chaos.report.traces import SET_UP, read_traces

if TYPE_CHECKING:
    import os
    from collections.abc import Iterator, Mapping, Sequence

    from chaos.report.document import Document, Outcome
    from chaos.report.traces import Arm, Traces

PASS, FAIL, INCONCLUSIVE = 0, 1, 3
_TOLD: Final = 0.05
"""Ratios of times nearer to 1 than this are not worth a line of text."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """Something that is not the same in both runs. `what` says of what kind."""

    what: str
    test: str
    name: str
    before: str
    after: str
    worse: bool = False

    @property
    def line(self) -> str:
        where = f" {self.test}" if self.test else ""
        return f"{self.what}{where} {self.name}: {self.before} -> {self.after}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Diff:
    """What differs between two runs."""

    before: str
    after: str
    changes: tuple[Change, ...]
    common: int
    """Tests that are in both."""

    @property
    def verdict(self) -> Verdict:
        """FAIL: a test fails that did not, or a fault was left behind; INCONCLUSIVE: a
        test can no longer be told, or the run was stopped.

        Runs without a common test cannot be compared.
        """
        worse = [one for one in self.changes if one.worse]
        if any(one.after == Verdict.FAIL.value for one in worse):
            return Verdict.FAIL
        return Verdict.INCONCLUSIVE if worse or not self.common else Verdict.PASS

    @property
    def exit_code(self) -> int:
        codes = {Verdict.PASS: PASS, Verdict.FAIL: FAIL}
        return codes.get(self.verdict, INCONCLUSIVE)

    def to_json(self) -> dict[str, Any]:
        return {
            "before": self.before,
            "after": self.after,
            "verdict": self.verdict.value,
            "common_tests": self.common,
            "changes": [
                {
                    "what": one.what,
                    "test": one.test,
                    "name": one.name,
                    "before": one.before,
                    "after": one.after,
                    "worse": one.worse,
                }
                for one in self.changes
            ],
        }

    def lines(self) -> list[str]:
        """For people: what got worse first."""
        ordered = sorted(self.changes, key=lambda one: not one.worse)
        words = [f"{'WORSE ' if one.worse else '      '}{one.line}" for one in ordered]
        if not self.common:
            words.append("the runs have no test in common: nothing can be compared")
        told = words or ["      no difference"]
        end = f"verdict {self.verdict.value}: {self.common} tests in both"
        return [f"before: {self.before}", f"after:  {self.after}", *told, end]


def diff(before: str | os.PathLike[str], after: str | os.PathLike[str]) -> Diff:
    """Compares two results directories.

    Raises:
        OSError: One of them cannot be read.
        ValueError: One of them is none of ours.
        KeyError: The same.
    """
    first, second = _Side(Path(before)), _Side(Path(after))
    changes = [
        *_of_meta(first.meta, second.meta),
        *_of_runs(first.document, second.document),
        *_of_tests(first.document, second.document),
        *_of_arms(first.traces, second.traces),
    ]
    return Diff(
        before=str(before),
        after=str(after),
        changes=tuple(changes),
        common=len(set(first.outcomes) & set(second.outcomes)),
    )


class _Side:
    """One run, read."""

    def __init__(self, path: Path) -> None:
        self.document: Document = document_at(path)
        self.meta: dict[str, Any] = read_json(path / "run.json")
        self.traces: Traces = read_traces(path / "history.jsonl", most_bytes=math.inf)
        self.outcomes = _by_name(self.document)


def _by_name(document: Document) -> dict[str, Outcome]:
    return {outcome.nodeid: outcome for outcome in document.outcomes}


def _of_meta(first: Mapping[str, Any], second: Mapping[str, Any]) -> Iterator[Change]:
    """What was run, where it was not the same."""
    names = ("system", "target", "seed", "time_scale", "options", "git", "versions")
    for name in names:
        before, after = first.get(name), second.get(name)
        if before != after:
            yield from _of_field(name, before, after)


def _of_field(name: str, before: Any, after: Any) -> Iterator[Change]:
    if isinstance(before, dict) and isinstance(after, dict):
        for key in sorted({*before, *after}):
            if before.get(key) != after.get(key):
                yield from _of_field(f"{name}.{key}", before.get(key), after.get(key))
        return
    yield Change(
        what="run", test="", name=name, before=_said(before), after=_said(after)
    )


def _said(value: Any) -> str:
    if isinstance(value, list):
        return " ".join(map(str, value)) or "none"
    return "none" if value is None else str(value)


def _of_runs(first: Document, second: Document) -> Iterator[Change]:
    """What no test tells: a run that was stopped, a fault that it left behind."""
    if first.residual != second.residual:
        yield Change(
            what="run",
            test="",
            name=f"residual faults ({', '.join(second.residual) or 'none'})",
            before=_left(first),
            after=_left(second),
            worse=bool(second.residual),
        )
    if first.aborted != second.aborted:
        yield Change(
            what="run",
            test="",
            name="aborted",
            before=first.aborted or "no",
            after=second.aborted or "no",
            worse=bool(second.aborted),
        )


def _left(document: Document) -> str:
    return Verdict.FAIL.value if document.residual else "none"


def _of_tests(first: Document, second: Document) -> Iterator[Change]:
    before, after = _by_name(first), _by_name(second)
    for name in sorted({*before, *after}):
        old, new = before.get(name), after.get(name)
        if old is None or new is None:
            yield Change(
                what="test",
                test=name,
                name="verdict",
                before=old.verdict.value if old is not None else "not run",
                after=new.verdict.value if new is not None else "not run",
                worse=new is None or new.verdict is Verdict.FAIL,
            )
            continue
        yield from _of_outcomes(name, old, new)


def _of_outcomes(name: str, old: Outcome, new: Outcome) -> Iterator[Change]:
    if old.verdict is not new.verdict:
        yield Change(
            what="test",
            test=name,
            name="verdict",
            before=old.verdict.value,
            after=new.verdict.value,
            worse=new.verdict.severity > old.verdict.severity,
        )
    before, after = _numbered(old.judgements), _numbered(new.judgements)
    for key in sorted({*before, *after}):
        yield from _of_judgements(name, key, before.get(key), after.get(key))


def _numbered(rows: Sequence[Judgement]) -> dict[tuple[str, str, int], Judgement]:
    """Judgements by oracle and claim; one that is made twice by its turn."""
    found: dict[tuple[str, str, int], Judgement] = {}
    for row in rows:
        turn = 1
        while (row.oracle, row.claim, turn) in found:
            turn += 1
        found[row.oracle, row.claim, turn] = row
    return found


def _of_judgements(
    test: str,
    key: tuple[str, str, int],
    old: Judgement | None,
    new: Judgement | None,
) -> Iterator[Change]:
    """A verdict that changed, a counter that is not the same, a claim that is gone."""
    told = f"{key[0]} {key[1]}"
    if old is None or new is None:
        yield Change(
            what="judgement",
            test=test,
            name=told,
            before=old.verdict.value if old is not None else "not judged",
            after=new.verdict.value if new is not None else "not judged",
            worse=new is None or new.verdict is Verdict.FAIL,
        )
    elif old.verdict is not new.verdict:
        yield Change(
            what="judgement",
            test=test,
            name=f"{told} ({old.observed} -> {new.observed})",
            before=old.verdict.value,
            after=new.verdict.value,
            worse=new.verdict.severity > old.verdict.severity,
        )
    elif old.kind == new.kind == "counter" and old.observed != new.observed:
        yield Change(
            what="counter",
            test=test,
            name=told,
            before=old.observed,
            after=new.observed,
        )


def _of_arms(first: Traces, second: Traces) -> Iterator[Change]:
    for test in sorted(set(first.tests) & set(second.tests)):
        old, new = first.tests[test].arms, second.tests[test].arms
        for name in sorted((set(old) & set(new)) - SET_UP):
            for what, before, after, unit in _figures(old[name], new[name]):
                if _differs(before, after):
                    yield Change(
                        what="arm",
                        test=test,
                        name=f"{name} {what}",
                        before=f"{before:.4g}{unit}",
                        after=f"{after:.4g}{unit}{_ratio(before, after)}",
                    )


def _figures(old: Arm, new: Arm) -> Iterator[tuple[str, float, float, str]]:
    yield "requests", len(old), len(new), ""
    yield "failed", old.failed, new.failed, ""
    yield "hit rate", 100 * old.hit_rate, 100 * new.hit_rate, " %"
    for column, told in (("ttft_s", "TTFT (modelled)"), ("wait_s", "cache wait")):
        for q in (0.5, 0.99):
            what = f"{told} p{100 * q:g}"
            yield what, old.quantile(column, q), new.quantile(column, q), " s"


def _differs(before: float, after: float) -> bool:
    if math.isnan(before) or math.isnan(after):
        return math.isnan(before) != math.isnan(after)
    return abs(after - before) > _TOLD * max(abs(before), abs(after))


def _ratio(before: float, after: float) -> str:
    return f" (x {after / before:.3g})" if before > 0 and after > 0 else ""
