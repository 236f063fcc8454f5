"""Colours by name: real ones for PNG, CSS variables for SVG and the page.

Matplotlib knows no CSS variables. For SVG every name is drawn in a colour that nothing
else has (`#0a00nn`), which the finished text has replaced by `var(--name)`: so a plot
follows the reader's light or dark mode, alone as well as inside of a page.
"""

from __future__ import annotations

import re
from typing import Final

LIGHT: Final = {
    "bg": "#f6f7f9",
    "card": "#ffffff",
    "fg": "#1b2430",
    "muted": "#566270",
    "line": "#d5dae0",
    "shade": "#fbdcdc",
    "limit": "#b91c1c",
    "pass": "#166534",
    "fail": "#b91c1c",
    "inc": "#92400e",
    "half": "#e08a00",
    "s1": "#0b63c4",
    "s2": "#c2410c",
    "s3": "#15803d",
    "s4": "#7e22ce",
    "s5": "#52606d",
}
DARK: Final = {
    "bg": "#10151c",
    "card": "#1a212b",
    "fg": "#e8edf3",
    "muted": "#a6b2c0",
    "line": "#37424f",
    "shade": "#4d252b",
    "limit": "#ff8f8f",
    "pass": "#7ddb9b",
    "fail": "#ff8f8f",
    "inc": "#f5b95f",
    "half": "#f5b95f",
    "s1": "#74b6ff",
    "s2": "#ff9e66",
    "s3": "#7ddb9b",
    "s4": "#cba6ff",
    "s5": "#b4c0cc",
}
NAMES: Final = tuple(LIGHT)
TOKENS: Final = {name: f"#0a00{at:02x}" for at, name in enumerate(NAMES, 1)}
FONT: Final = "system-ui, -apple-system, 'Segoe UI', 'DejaVu Sans', sans-serif"
_TOKEN: Final = re.compile(r"#0a00([0-9a-f]{2})")
_ARMS: Final = {"healthy": "s1", "fault": "s2", "local_only": "s3", "recovery": "s4"}
_ARMS_OF_A_GATE: Final = {"baseline": "s1", "canary": "s2"}
_MARKERS: Final = {"s1": "o", "s2": "^", "s3": "s", "s4": "D", "s5": "v"}


def variables(colours: dict[str, str]) -> str:
    """CSS declarations of a set of colours."""
    return "".join(f"--{name}:{colour};" for name, colour in colours.items())


def stylesheet() -> str:
    """Both sets, the reader's choice; the same for a page and for a plot alone."""
    return (
        f":root{{color-scheme:light dark;--font:{FONT};{variables(LIGHT)}}}"
        f"@media (prefers-color-scheme:dark){{:root{{{variables(DARK)}}}}}"
    )


def with_variables(svg: str) -> str:
    """Every token of an SVG text as its variable."""

    def variable(found: re.Match[str]) -> str:
        at = int(found[1], 16)
        return f"var(--{NAMES[at - 1]})" if 0 < at <= len(NAMES) else found[0]

    return _TOKEN.sub(variable, svg)


def arm_colour(name: str, number: int) -> str:
    """The colour of an arm: the usual ones have their own, others take turns."""
    known = {**_ARMS, **_ARMS_OF_A_GATE}
    return known.get(name) or ("s5", "s4", "s3")[number % 3]


def marker(colour: str) -> str:
    """A form for each colour, for whoever does not tell colours apart."""
    return _MARKERS[colour]
