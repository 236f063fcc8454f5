"""Which stores a master took for dead, from the masters' own logs.

A store that is late with its pings for `client_ttl` is dropped with all that it held,
and mounts again, empty, with its next one: in between a look at the list of segments
once a second may see nothing. The log has a line for every one that was dropped.
"""

from __future__ import annotations

import re
from collections import Counter
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

_DROPPED: Final = re.compile(
    rb"segment_name=(\S+?), action=unmount_expired_mem_segment"
)
_MOST_BYTES: Final = 16 << 20
"""At one look; what is more is read at the next one."""


class Expired:
    """Counts of drops by store; each line of the logs is read once.

    Args:
        logs: what each master writes to; one that is not there yet says nothing.
        store_at: the store of a segment's name, HOST:PORT.
    """

    def __init__(
        self, logs: Mapping[str, Path], store_at: Callable[[str], str]
    ) -> None:
        self._logs = logs
        self._store_at = store_at
        self._read: dict[str, int] = {}
        self._counts: Counter[str] = Counter()

    def counts(self) -> Counter[str]:
        """How often every store was dropped until now."""
        for master, path in self._logs.items():
            for segment in _DROPPED.findall(self._new_lines(master, path)):
                self._counts[self._store_at(segment.decode(errors="replace"))] += 1
        return Counter(self._counts)

    def _new_lines(self, master: str, path: Path) -> bytes:
        """Whole lines that were not read before."""
        begin = self._read.get(master, 0)
        try:
            with path.open("rb") as log:
                log.seek(begin)
                text = log.read(_MOST_BYTES)
        except FileNotFoundError:
            return b""
        whole = text[: text.rfind(b"\n") + 1]
        self._read[master] = begin + len(whole)
        return whole
