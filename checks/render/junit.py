"""JUnit: one suite a node, one case a finding; UNKNOWN is an error, never a pass."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING
from xml.etree import ElementTree as Xml

from checks.finding import Finding, Status

if TYPE_CHECKING:
    from checks.report import Report

_ILLEGAL = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
_TAGS = {Status.FAIL: "failure", Status.UNKNOWN: "error", Status.SKIP: "skipped"}


def junit(report: Report, *, strict: bool = False) -> str:
    """The document for CI; with `strict` a WARN is a failure."""
    root = Xml.Element("testsuites", name="preflight")
    for node in report.nodes:
        findings = [f for f in report.findings if f.node == node]
        suite = Xml.SubElement(root, "testsuite", name=_clean(node))
        tags = [_case(suite, finding, strict) for finding in findings]
        suite.set("tests", str(len(findings)))
        for name, tag in (("failures", "failure"), ("errors", "error")):
            suite.set(name, str(tags.count(tag)))
        suite.set("skipped", str(tags.count("skipped")))
    Xml.indent(root)
    return Xml.tostring(root, encoding="unicode", xml_declaration=True) + "\n"


def _case(suite: Xml.Element, finding: Finding, strict: bool) -> str:
    name = f"{finding.id}[{finding.subject}]" if finding.subject else finding.id
    case = Xml.SubElement(
        suite,
        "testcase",
        classname=_clean(f"preflight.{finding.node}"),
        name=_clean(name),
    )
    tag = _TAGS.get(finding.status, "")
    if finding.status is Status.WARN:
        tag = "failure" if strict else "system-out"
    if not tag:
        return ""
    told = Xml.SubElement(case, tag)
    text = f"observed: {finding.observed}\nexpected: {finding.expected}\n"
    text += f"why: {finding.why}\nfix: {'; '.join(finding.fix)}"
    if tag != "system-out":
        told.set("message", _clean(f"{finding.status.value}: {finding.observed}"))
    told.text = _clean(text)
    return tag


def _clean(text: str) -> str:
    """Without the characters that XML cannot hold."""
    return _ILLEGAL.sub("?", text)
