"""What each oracle promises, in one plain sentence, as `docs/design.md` says it.

A report is read by people who did not write the test: the claim of a judgement says
what was measured, the law says why it matters. Names that are not here (cases of public
threads, "steady", "evidence") have only their claim.
"""

from __future__ import annotations

import re
from typing import Final

THE_LAW: Final = (
    "The cache may fail; inference may not; and a local failure never becomes a"
    " cluster failure."
)
LAWS: Final = {
    "O1": "A read never returns wrong bytes.",
    "O2": "No request waits for the cache longer than its deadline T plus one poll.",
    "O3": "Reuse is whole pages in order, and the output equals the run without cache.",
    "O4": "No request fails because of the cache.",
    "O5": "Never worse than no cache: a fault costs a request T plus one poll at most,"
    " and nothing once it is detected.",
    "O6": "The breaker opens in time, sends nothing while open, closes after recovery,"
    " and never opens for one bad endpoint.",
    "O7": "A lost store costs what it held, and nothing else.",
    "O8": "Removing a store takes milliseconds, and nobody is sent to it afterwards.",
    "O9": "Eviction never stalls readers.",
    "O11": "Nothing is lost or left over: bytes, pages, processes, files.",
    "evidence": "A fault counts only with proof that it had effect, and that it is"
    " gone.",
    "validity": "The load generator kept up; else no time can be trusted.",
    "steady": "After the fault everything is as it was before.",
}
GLOSSARY: Final = (
    (
        "TTFT",
        "Time to first token. Waits in it are real, prefill is a timed model.",
    ),
    (
        "T, poll",
        "After T a request goes on without the cache; T grows with the prompt. A"
        " poll is how late that may be noticed.",
    ),
    ("hit rate", "Tokens taken from the cache / tokens asked; the rest is computed."),
    (
        "breaker",
        "Closed: the cache is used; open: nothing is sent to it; half open: one"
        " probe at a time.",
    ),
    (
        "arms",
        "The same requests under other conditions: healthy (nothing broken), fault,"
        " local_only (no shared cache), recovery (after the fault), keep (fills the"
        " pool).",
    ),
    ("proof", "A fault counts only where its own probe saw an effect."),
)
"""Words of the field that a page uses, for whoever reads one for the first time."""
_LEAD: Final = (
    *("O1", "O4", "O3", "O2", "O5", "O7b", "O7a", "O7", "O6", "O8", "O9", "O7c"),
    "O11",
)
"""What a reader must hear first when several laws are broken."""
_DOUBTS: Final = ("validity", "evidence")
_NUMBERED: Final = re.compile(r"(O\d+)[a-z]?")


def law_of(oracle: str) -> str:
    """The law behind an oracle's name, "" where there is only the claim."""
    numbered = _NUMBERED.fullmatch(oracle)
    return LAWS.get(numbered[1] if numbered else oracle, "")


def rank(oracle: str, *, doubt: bool = False) -> int:
    """The place of an oracle among broken ones: smaller is told first.

    Among doubts, those about the measurement itself explain the others.
    """
    if doubt and oracle in _DOUBTS:
        return _DOUBTS.index(oracle) - len(_DOUBTS)
    return _LEAD.index(oracle) if oracle in _LEAD else len(_LEAD)
