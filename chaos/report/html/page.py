"""Templates to a page: everything is escaped, cleaned, and in one file.

The page has no script and may load nothing (its own policy says so), so that it opens
from a file share, and whatever a hostile system wrote into its answers stays text.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final

from chaos.report.html.palette import stylesheet
from chaos.report.redaction import clean

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    import jinja2

    from chaos.report.html.drawing import Plot

CELL_MOST: Final = 600
"""Characters of one text; a longer one is cut, and says so."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """A table with a caption; the first cell of a row is its name."""

    caption: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]

    def view(self) -> dict[str, Any]:
        rows = [[short(cell) for cell in row] for row in self.rows]
        return {"caption": self.caption, "columns": list(self.columns), "rows": rows}


@dataclass(frozen=True, slots=True, kw_only=True)
class StoryRow:
    """A line of the first screen; `code` is to be copied as it is."""

    name: str
    lines: tuple[str, ...]
    code: bool = False

    def view(self) -> dict[str, Any]:
        lines = self.lines if self.code else [short(line) for line in self.lines]
        return {**asdict(self), "lines": list(lines)}


def story_rows(rows: Iterable[StoryRow]) -> list[dict[str, Any]]:
    """Those that have something to say."""
    return [row.view() for row in rows if any(row.lines)]


def plot_view(plot: Plot, caption: str) -> dict[str, Any]:
    """A plot for the template; its drawing is markup that we made ourselves."""
    return {
        "title": plot.title,
        "words": plot.words,
        "caption": caption,
        "svg": _Drawing(plot.inline),
    }


def render_page(template: str, view: Mapping[str, Any]) -> str:
    """The finished page, without secrets."""
    cleaned = _cleaned(dict(view))
    return _templates().get_template(template).render(style=_style(), **cleaned)


def short(text: object, most: int = CELL_MOST) -> str:
    """A text that fits; control characters would be lost on the way."""
    told = "".join(c if c.isprintable() or c == "\n" else "\ufffd" for c in str(text))
    return told if len(told) <= most else f"{told[:most]}… ({len(told)} characters)"


class _Drawing(str):
    """An SVG of our own: neither escaped nor searched for secrets.

    Its few labels were cleaned when they were read.
    """

    __slots__ = ()

    def __html__(self) -> str:
        return self


def _cleaned(value: Any) -> Any:
    """As `clean`, which knows nothing of drawings."""
    if isinstance(value, _Drawing):
        return value
    if isinstance(value, dict):
        return {key: _cleaned(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        if all(isinstance(item, str) for item in value):
            return clean(list(value))
        return [_cleaned(item) for item in value]
    return clean(value)


@lru_cache(maxsize=1)
def _templates() -> jinja2.Environment:
    import jinja2

    return jinja2.Environment(
        loader=jinja2.PackageLoader("chaos.report.html", "templates"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
    )


def _style() -> _Drawing:
    source = _templates().loader
    assert source is not None
    text, _, _ = source.get_source(_templates(), "style.css")
    return _Drawing(stylesheet() + text)
