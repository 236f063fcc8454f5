"""JUnit: one suite a family, one case a rule; INCONCLUSIVE is an error, no pass."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING
from xml.etree import ElementTree as Xml

from chaos.canary.render import cells
from chaos.canary.result import FAMILIES
from chaos.judge.verdict import Verdict

if TYPE_CHECKING:
    from chaos.canary.result import GateJudgement, GateResult

_ILLEGAL = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def junit(result: GateResult, *, command: str = "") -> str:
    """The document for CI. With `warn` an open rule is skipped, with a reason."""
    root = Xml.Element("testsuites", name="canary")
    for family in FAMILIES:
        judgements = result.of(family)
        suite = Xml.SubElement(root, "testsuite", name=f"canary.{family}")
        _properties(suite, result, command)
        tags = [_case(suite, one, result) for one in judgements]
        suite.set("tests", str(len(judgements)))
        for name, tag in (("failures", "failure"), ("errors", "error")):
            suite.set(name, str(tags.count(tag)))
        suite.set("skipped", str(tags.count("skipped")))
    if not result.judgements:
        _nothing(root)
    Xml.indent(root)
    return Xml.tostring(root, encoding="unicode", xml_declaration=True) + "\n"


def _properties(suite: Xml.Element, result: GateResult, command: str) -> None:
    told = {
        "verdict": result.verdict.value,
        "policy": result.policy_name,
        "seed": "" if result.seed is None else str(result.seed),
        "reproduce": command,
    }
    properties = Xml.SubElement(suite, "properties")
    for name, text in told.items():
        if text:
            Xml.SubElement(properties, "property", name=name, value=_clean(text))


def _case(suite: Xml.Element, one: GateJudgement, result: GateResult) -> str:
    case = Xml.SubElement(
        suite,
        "testcase",
        classname=f"canary.{one.family}",
        name=_clean(cells.label(one, result)),
    )
    tag = _tag(one.verdict, result.on_inconclusive)
    told = Xml.SubElement(case, tag or "system-out")
    if tag:
        message = f"{one.verdict.value}: {cells.reason(one)}"
        told.set("message", _clean(message[:1000]))
    told.text = _clean(
        f"baseline: {cells.value(one, one.baseline)}\n"
        f"canary: {cells.value(one, one.canary)}\n"
        f"change: {cells.change(one)}\n"
        f"limit: {one.limit}\n"
        f"n: {cells.rows(one)}\n"
        f"reason: {cells.reason(one)}"
    )
    return tag


def _tag(verdict: Verdict, on_inconclusive: str) -> str:
    if verdict is Verdict.INCONCLUSIVE:
        return "skipped" if on_inconclusive == "warn" else "error"
    return "failure" if verdict is Verdict.FAIL else ""


def _nothing(root: Xml.Element) -> None:
    """A verdict that rests on nothing is an error of its own, not an empty pass."""
    suite = Xml.SubElement(
        root, "testsuite", name="canary", tests="1", errors="1", failures="0"
    )
    case = Xml.SubElement(suite, "testcase", classname="canary", name="anything judged")
    Xml.SubElement(case, "error", message="INCONCLUSIVE: nothing was judged")


def _clean(text: str) -> str:
    """Without secrets, and without the characters that XML cannot hold."""
    return _ILLEGAL.sub("?", "\n".join(cells.plain(line) for line in text.split("\n")))
