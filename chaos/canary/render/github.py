"""Annotations of a GitHub job: the worst rules, within the 10 that a step may show."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from chaos.canary.render import cells
from chaos.judge.verdict import Verdict

if TYPE_CHECKING:
    from chaos.canary.result import GateJudgement, GateResult

MOST: Final = 8
"""Of ten: one is the verdict, one says how many more there are."""
MAX_TEXT: Final = 2000


def github(result: GateResult, *, command: str = "") -> str:
    """Workflow commands, one a line; a PASS is one notice."""
    bad = [one for one in result.worst_first if one.verdict is not Verdict.PASS]
    lines = [_verdict(result)]
    lines += [_rule(one, result) for one in bad[:MOST]]
    if len(bad) > MOST:
        told = f"{len(bad) - MOST} more rules in the summary"
        lines.append(_command("notice", "canary", told))
    if command:
        lines.append(f"again: {cells.plain(command)}")
    return "\n".join(lines) + "\n"


def _verdict(result: GateResult) -> str:
    told = "; ".join(t for t in (cells.headline(result), cells.next_step(result)) if t)
    return _command(_level(result.verdict, result), "canary", told)


def _rule(one: GateJudgement, result: GateResult) -> str:
    change = cells.change(one)
    numbers = "" if change == "-" else f"{change}, limit {one.limit}: "
    return _command(
        _level(one.verdict, result),
        f"canary {one.verdict.value}: {cells.label(one, result)}",
        f"{numbers}{cells.reason(one)}",
    )


def _level(verdict: Verdict, result: GateResult) -> str:
    if verdict is Verdict.PASS:
        return "notice"
    blocks = verdict is Verdict.FAIL or result.on_inconclusive != "warn"
    return "error" if blocks else "warning"


def _command(level: str, title: str, message: str) -> str:
    return f"::{level} title={_property(title)}::{_data(message[:MAX_TEXT])}"


def _data(text: str) -> str:
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(text: str) -> str:
    return _data(cells.plain(text)).replace(":", "%3A").replace(",", "%2C")
