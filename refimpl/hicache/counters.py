"""What a HiCache did, in numbers that any thread may add to."""

from __future__ import annotations

import threading
from collections import Counter

_LABELS_KEPT = 256


class Counters:
    """Named counters, plain or with one label."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._plain: Counter[str] = Counter()
        self._labelled: dict[str, Counter[str]] = {}

    def add(self, name: str, count: int = 1) -> None:
        """Adds to a plain counter."""
        with self._lock:
            self._plain[name] += count

    def label(self, name: str, label: str, count: int = 1) -> None:
        """Adds to one label of a labelled counter; labels are bounded."""
        with self._lock:
            found = self._labelled.setdefault(name, Counter())
            if label not in found and len(found) >= _LABELS_KEPT:
                label = "other"
            found[label] += count

    def get(self, name: str, label: str = "") -> int:
        """One number."""
        with self._lock:
            if label:
                return self._labelled.get(name, Counter())[label]
            return self._plain[name]

    def snapshot(self) -> dict[str, int | dict[str, int]]:
        """Everything, JSON-able."""
        with self._lock:
            return {
                **dict(sorted(self._plain.items())),
                **{k: dict(sorted(v.items())) for k, v in self._labelled.items()},
            }

    def clear(self) -> None:
        """Starts again from zero."""
        with self._lock:
            self._plain.clear()
            self._labelled.clear()
