"""Matplotlib, tamed: imported late, no display, no surprises from what a label says.

A figure is drawn twice by the same function, once in tokens for SVG and once in light
colours for PNG. Text stays text in the SVG (it can be read out, found and copied), and
nothing in it is taken for mathematics.
"""

from __future__ import annotations

import io
import re
import warnings
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from chaos.report.html.palette import LIGHT, TOKENS, stylesheet, with_variables

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    Colours = Mapping[str, str]
    Drawing = Callable[[Any, Colours], None]
    """Draws on an empty figure in these colours."""

WIDTH_IN: Final = 4.4
LEFT_IN, TOP_IN, BOTTOM_IN = 0.62, 0.55, 0.45
TITLE_IN: Final = 0.3
"""Between two panels: the title of the lower one."""
PNG_DPI: Final = 160
_FONT_PT: Final = 9.0
_RC: Final[dict[str, Any]] = {
    "svg.fonttype": "none",
    "text.parse_math": False,
    "axes.formatter.use_mathtext": False,
    "axes.unicode_minus": False,
    "font.family": "DejaVu Sans",
    "font.size": _FONT_PT,
    "axes.titlesize": _FONT_PT,
    "axes.titlelocation": "left",
    "axes.titleweight": "bold",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "legend.frameon": False,
    "legend.fontsize": _FONT_PT - 1,
    "xtick.labelsize": _FONT_PT - 1,
    "ytick.labelsize": _FONT_PT - 1,
    "path.simplify": True,
}
_HEAD: Final = re.compile(r"^.*?(?=<svg)", re.DOTALL)
_METADATA: Final = re.compile(r"\s*<metadata>.*?</metadata>", re.DOTALL)
_SIZE: Final = re.compile(r'(<svg[^>]*?) width="[^"]*" height="[^"]*"')
_GROUP_ID: Final = re.compile(r'<g id="[^"]*">')
_FONTS: Final = re.compile(r"(font: [^;\"]*?px) [^;\"]*")
_STYLE: Final = re.compile(r"<style[^>]*>.*?</style>", re.DOTALL)
_OWN_STYLE: Final = "svg *{stroke-linejoin:round;stroke-linecap:butt}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Plot:
    """A finished plot. `words` is what it shows, for whoever cannot see it."""

    name: str
    title: str
    words: str
    inline: str
    svg: str
    png: bytes


def render(
    name: str, title: str, words: str, draw: Drawing, *, height_in: float
) -> Plot:
    """Draws a plot in both forms; whatever matplotlib warns of is not our reader's."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        svg = _svg(draw, height_in, salt=name)
        png = _png(draw, height_in)
    return Plot(
        name=name,
        title=title,
        words=words,
        inline=inline_svg(svg),
        svg=alone_svg(svg, title),
        png=png,
    )


def inline_svg(svg: str) -> str:
    """A drawing for a page: no size, no ids but those it refers to, no styles."""
    text = _SIZE.sub(r"\1", _STYLE.sub("", svg), count=1)
    return text.replace("<svg ", '<svg aria-hidden="true" focusable="false" ', 1)


def alone_svg(svg: str, title: str) -> str:
    """A drawing as a file of its own, in light and dark."""
    style = f"<style>{stylesheet()}svg{{background:var(--card)}}{_OWN_STYLE}</style>"
    text = _STYLE.sub("", svg).replace(
        ">", f"><title>{_escaped(title)}</title>{style}", 1
    )
    return f'<?xml version="1.0" encoding="utf-8"?>\n{text}'


def _svg(draw: Drawing, height_in: float, *, salt: str) -> str:
    import matplotlib as mpl
    from matplotlib.backends.backend_svg import FigureCanvasSVG

    out = io.StringIO()
    settings: Any = {**_RC, **_colours(TOKENS), "svg.hashsalt": salt}
    with mpl.rc_context(settings):
        figure = _figure(draw, height_in, TOKENS)
        canvas: Any = FigureCanvasSVG(figure)
        canvas.print_svg(out, metadata={"Date": None})
    text = _METADATA.sub("", _HEAD.sub("", out.getvalue(), count=1))
    text = _GROUP_ID.sub("<g>", text)
    return with_variables(_FONTS.sub(r"\1 var(--font)", text)).strip()


def _png(draw: Drawing, height_in: float) -> bytes:
    import matplotlib as mpl
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    out = io.BytesIO()
    settings: Any = {**_RC, **_colours(LIGHT)}
    with mpl.rc_context(settings):
        figure = _figure(draw, height_in, LIGHT)
        figure.set_facecolor(LIGHT["card"])
        figure.set_dpi(PNG_DPI)
        canvas: Any = FigureCanvasAgg(figure)
        canvas.print_png(out)
    return out.getvalue()


def _figure(draw: Drawing, height_in: float, colours: Colours) -> Any:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(WIDTH_IN, height_in))
    # Fixed margins: measuring the text of every label would cost seconds a run.
    figure.subplots_adjust(
        left=LEFT_IN / WIDTH_IN,
        right=1 - 0.08 / WIDTH_IN,
        top=1 - TOP_IN / height_in,
        bottom=BOTTOM_IN / height_in,
    )
    figure.patch.set_visible(False)
    draw(figure, colours)
    for axes in figure.axes:
        axes.set_facecolor("none")
    return figure


def _colours(colours: Colours) -> dict[str, str]:
    named = {
        "fg": ("text.color", "axes.titlecolor"),
        "muted": ("xtick.labelcolor", "ytick.labelcolor", "axes.labelcolor"),
        "line": ("axes.edgecolor", "xtick.color", "ytick.color", "grid.color"),
    }
    return {key: colours[name] for name, keys in named.items() for key in keys}


def _escaped(text: str) -> str:
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
