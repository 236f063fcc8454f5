"""Cleans what others wrote into a results directory: logs of roles, pytest's XML.

What the harness writes itself is clean before it is written; these files are made by
other programs, so they are looked through once, at the end, when nobody writes on.
"""

from __future__ import annotations

import contextlib
import os
import xml.etree.ElementTree as ET
from typing import TYPE_CHECKING, Final

from chaos.report.redaction import clean_text

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

MOST_BYTES: Final = 64 << 20
"""A larger log is not kept: nobody could say what is in it."""
_LOST: Final = "[left out: larger than what is looked through for secrets]\n"
_JUNIT: Final = "junit.xml"
_ROLES: Final = "roles"


def sweep(folder: Path) -> list[str]:
    """Takes secrets out of the files of a finished run; what it did, in words.

    A file that cannot be read is named as well: it may hold anything.
    """
    changed = []
    for path in _foreign(folder):
        try:
            if _sweep_file(path):
                changed.append(f"a secret was taken out of {path.relative_to(folder)}")
        except (OSError, ET.ParseError) as error:
            name = path.relative_to(folder)
            changed.append(f"{name} was not looked through for secrets: {error}")
    return changed


def _foreign(folder: Path) -> Iterator[Path]:
    """Files that other programs wrote; no links, which may lead anywhere."""
    candidates = [folder / _JUNIT, *sorted((folder / _ROLES).rglob("*"))]
    for path in candidates:
        if path.is_file() and not path.is_symlink():
            yield path


def _sweep_file(path: Path) -> bool:
    if path.name == _JUNIT:
        return _sweep_xml(path)
    if path.stat().st_size > MOST_BYTES:
        _replace(path, _LOST.encode())
        return True
    before = path.read_bytes()
    after = _clean_log(before.decode("utf-8", "surrogateescape"))
    data = after.encode("utf-8", "surrogateescape")
    if data != before:
        _replace(path, data)
    return data != before


def _clean_log(text: str) -> str:
    """Line by line, so that long logs cost little; a key goes over several lines."""
    if "-----BEGIN" in text:
        return clean_text(text)
    lines = text.split("\n")
    return "\n".join(map(clean_text, lines))


def _sweep_xml(path: Path) -> bool:
    """By its texts and attributes, so that XML stays XML."""
    tree = ET.parse(path)  # noqa: S314 -- pytest wrote it a moment ago
    changed = False
    for element in tree.iter():
        for name, value in list(element.attrib.items()):
            element.set(name, clean_text(value))
            changed |= element.get(name) != value
        for part in ("text", "tail"):
            value = getattr(element, part) or ""
            if (found := clean_text(value)) != value:
                setattr(element, part, found)
                changed = True
    if changed:
        data = ET.tostring(tree.getroot(), encoding="utf-8", xml_declaration=True)
        _replace(path, data)
    return changed


def _replace(path: Path, data: bytes) -> None:
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        temporary.write_bytes(data)
        temporary.replace(path)
    finally:
        with contextlib.suppress(FileNotFoundError):
            temporary.unlink()
