"""Facts documents from files: one document, an array, or a collector's own output."""

from __future__ import annotations

import gzip
import json
import sys
from pathlib import Path  # noqa: TC003 - part of the public signature
from typing import TYPE_CHECKING, Any

from checks.cycles import without_collector
from checks.errors import UsageError
from checks.facts import documents
from checks.framing import NoDocument, decode

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


def load_documents(paths: Sequence[Path]) -> list[Mapping[str, Any]]:
    """Every document of these files; a directory stands for its .json files.

    Raises:
        UsageError: a file cannot be read, or is no facts document.
    """
    found: list[Mapping[str, Any]] = []
    pool = _Pool()
    with without_collector():
        for path in paths:
            for each in sorted(path.glob("*.json*")) if path.is_dir() else [path]:
                found += map(pool.shared, documents(_loaded(each), str(each)))
    if not found:
        named = ", ".join(str(path) for path in paths) or "no file"
        raise UsageError(f"there is no facts document in {named}")
    return found


class _Pool:
    """Keeps equal parts of many documents once: a thousand nodes say the same things.

    Without it the paths and the entries of sysfs alone take most of a gibibyte.
    """

    def __init__(self) -> None:
        self._entries: dict[tuple[Any, ...], Any] = {}
        self._outputs: dict[str, str] = {}

    def shared(self, document: Mapping[str, Any]) -> Mapping[str, Any]:
        kept = dict(document)
        for part, shared in (("files", self._entry), ("cmds", self._result)):
            found = document.get(part)
            if isinstance(found, dict):
                kept[part] = {
                    sys.intern(name): shared(entry) for name, entry in found.items()
                }
        return kept

    def _result(self, entry: Any) -> Any:
        """Of a command only what it said: the milliseconds differ."""
        if not isinstance(entry, dict):
            return entry
        said = entry.get("stdout")
        if not isinstance(said, str):
            return entry
        return {**entry, "stdout": self._outputs.setdefault(said, said)}

    def _entry(self, entry: Any) -> Any:
        if not isinstance(entry, dict) or len(entry) > 2:
            return entry
        key = tuple(entry.items())
        try:
            return self._entries.setdefault(key, entry)
        except TypeError:  # a directory's list of names: kept as it is
            return entry


def _loaded(path: Path) -> Any:
    try:
        raw = path.read_bytes()
        raw = gzip.decompress(raw) if raw[:2] == b"\x1f\x8b" else raw
    except (OSError, EOFError) as error:
        raise UsageError(f"{path} cannot be read: {error}") from None
    try:
        return decode(raw) if b"\n###END " in raw else json.loads(raw)
    except NoDocument as error:
        raise UsageError(f"{path}: {error}", "collect it again") from None
    except (ValueError, RecursionError) as error:
        raise UsageError(
            f"{path} is no whole JSON: {error}", "collect it again"
        ) from None
