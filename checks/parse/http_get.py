"""`GET URL` of the collector: what a program of this node answers over HTTP.

Return code 0 is an answer of 200, with its body as output; 1 any other answer, or none,
with its status or the errno as complaint.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from checks.facts import Facts

NOBODY = "ECONNREFUSED"


def body(facts: Facts, url: str) -> str | None:
    """The body of a good answer; None where nobody listens there."""
    result = facts.result("GET", url).ended()
    if result.rc != 0 and result.complaint == NOBODY:
        return None
    return result.text()
