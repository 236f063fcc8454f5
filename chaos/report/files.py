"""Writing results so that a reader never sees half a file."""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING, Any

from chaos.report.redaction import clean, clean_text

if TYPE_CHECKING:
    from pathlib import Path


def write_text(path: Path, text: str) -> None:
    """Writes beside the target, syncs, renames over it; secrets are left out."""
    _write(path, clean_text(text))


def write_bytes(path: Path, data: bytes) -> None:
    """The same for what is no text, as it is: pictures that we drew ourselves."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    with temporary.open("wb") as out:
        out.write(data)
        out.flush()
        os.fsync(out.fileno())
    temporary.replace(path)


def _write(path: Path, text: str) -> None:
    write_bytes(path, text.encode("utf-8", "replace"))


def write_json(path: Path, document: Any) -> None:
    """The same for JSON, indented for people, without NaN or Infinity."""
    _write(path, json.dumps(clean(document), indent=2, allow_nan=False) + "\n")


def read_json(path: Path) -> Any:
    return json.loads(path.read_text(encoding="utf-8"))


def link(path: Path, target: Path) -> None:
    """Makes `path` a relative symlink to `target`, atomically.

    A path that is a real file or directory is somebody else's and is left alone.
    """
    if path.exists() and not path.is_symlink():
        return
    temporary = path.with_name(f".{path.name}.{os.getpid()}.link")
    temporary.unlink(missing_ok=True)
    temporary.symlink_to(os.path.relpath(target, path.parent))
    temporary.replace(path)
