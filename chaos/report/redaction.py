"""Keeps secrets out of everything that a run leaves behind.

Every writer of a results directory, the history and the ledger hand their rows to
`clean` before they are text. It hides two kinds of things: what looks like a secret
(`inventory.redact`), and secrets that this process knows, word for word, wherever they
stand: those in its environment and those it made itself (`know`).

Documents are cleaned by their values, not as text, so that JSON stays JSON and numbers
stay as they are.
"""

from __future__ import annotations

import json
import os
import re
import threading
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

HIDDEN: Final = "[redacted]"
LEAST_CHARACTERS: Final = 8
"""Shorter values are no secrets worth the name, and hiding them would eat words."""
_SECRET_NAME: Final = re.compile(
    r"(?:token|secret|passw(?:or)?d|passphrase|api_?key|access_?key|private_?key"
    r"|credentials?|_pass|_auth)$",
    re.IGNORECASE,
)
_MARKS: Final = (
    *("pass", "pwd", "secret", "token", "apikey", "_key", "-key", "accesskey"),
    *("privatekey", "accountkey", "signingkey", " key", "credential", "auth", "cookie"),
    *("bearer", "://", "begin ", "$ansible", "akia", "asia", "aroa", "aida", "ghp_"),
    *("gho_", "ghu_", "ghs_", "ghr_", "github_pat_", "glpat-", "hf_", "xox", "sk-"),
    *("nvapi-", "aiza", "eyj"),
)
"""In lower case: each thing that `redact` hides holds one of them."""
_DEPTH: Final = 32
"""Of documents; deeper ones are cut, they are none of ours."""


class _Known:
    """Secrets of this process, in every form in which they could stand in a text."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._values: set[str] = set()
        self._forms: tuple[str, ...] = ()

    def add(self, values: Iterable[str]) -> None:
        fresh = {v for v in values if len(v) >= LEAST_CHARACTERS} - self._values
        if not fresh:
            return
        with self._lock:
            self._values |= fresh
            forms = {form for value in self._values for form in _forms(value)}
            # One secret may begin with another.
            self._forms = tuple(sorted(forms, key=len, reverse=True))

    def hide(self, text: str) -> str:
        for form in self._forms:
            if form in text:
                text = text.replace(form, HIDDEN)
        return text


_KNOWN: Final = _Known()


def know(*secrets: str) -> None:
    """Hides these words from now on; for whoever makes or reads a secret."""
    _KNOWN.add(secrets)


def know_environment(environ: Mapping[str, str]) -> None:
    """The same of every variable whose name says that it holds a secret."""
    _KNOWN.add(v for name, v in environ.items() if _SECRET_NAME.search(name))


def clean_text(text: str) -> str:
    """A text without secrets."""
    text = _KNOWN.hide(text)
    return _redact(text) if may_hold(text) else text


def prepare() -> None:
    """Loads what is slow to load, before a run and not in its first moments."""
    _redact("")


def _redact(text: str) -> str:
    # The inventory's room brings SSH along, which not everybody here needs.
    from inventory.redact import redact

    return redact(text)


def may_hold(text: str) -> bool:
    """False for a text in which `redact` would find nothing: a hundred times as fast.

    The load generator writes a line for every request, and has better things to do.
    """
    lowered = text.lower().replace("tokens", "")
    return any(mark in lowered for mark in _MARKS)


def clean(value: Any, *, depth: int = 0) -> Any:
    """A document of dicts, lists and plain values without secrets.

    A key that says it holds a secret hides a text whatever it looks like.
    """
    if isinstance(value, str):
        return clean_text(value)
    if depth >= _DEPTH:
        return HIDDEN
    if isinstance(value, dict):
        return {
            clean_text(key) if isinstance(key, str) else key: _clean_field(
                key, found, depth + 1
            )
            for key, found in value.items()
        }
    if isinstance(value, list | tuple):
        return _clean_items(list(value), depth + 1)
    return value


def clean_line(line: str) -> str:
    """A line of JSON without secrets: as it is, mostly; else cleaned by its values."""
    if _KNOWN.hide(line) == line and not may_hold(line):
        return line
    return json.dumps(clean(json.loads(line)), separators=(",", ":"))


def _clean_field(key: object, value: Any, depth: int) -> Any:
    named = isinstance(key, str) and _SECRET_NAME.search(key) is not None
    if named and isinstance(value, str) and value:
        return HIDDEN
    return clean(value, depth=depth)


def _clean_items(items: list[Any], depth: int) -> list[Any]:
    """Items; of a command line `--token X` hides X although it stands by itself."""
    cleaned = [clean(item, depth=depth) for item in items]
    for at, (first, second) in enumerate(pairwise(items)):
        if not (isinstance(first, str) and isinstance(second, str)):
            continue
        is_option = first.startswith("-") and "=" not in first
        if is_option and clean_text(f"{first} {second}") != f"{first} {second}":
            cleaned[at + 1] = HIDDEN
    return cleaned


def _forms(value: str) -> set[str]:
    """How a secret looks as it is, in JSON, in `repr` and in an address."""
    return {
        value,
        json.dumps(value)[1:-1],
        json.dumps(value, ensure_ascii=False)[1:-1],
        repr(value)[1:-1],
        quote(value),
        quote(value, safe=""),
    }


know_environment(os.environ)
