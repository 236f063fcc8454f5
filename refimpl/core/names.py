"""Names that writers gave their objects, for those who want to list them.

The pool knows objects by hashed keys; a writer whose users think in names sends them
along, and they stand here beside the slot of the object until it goes. Nothing is
allocated before the first name comes. The bound is on bytes: a name that does not fit
is not kept, which costs its object nothing but its place in a listing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from refimpl.core.objects import Slots

NAME_BYTES_MAX = 4096
"""Of one name, in UTF-8."""


class Names:
    """Names by slot.

    Args:
        capacity: slots.
        bytes_max: of all names together, in UTF-8.
    """

    def __init__(self, capacity: int, bytes_max: int) -> None:
        self._capacity = capacity
        self._bytes_max = bytes_max
        self._by_slot: list[str | None] = []
        self.bytes = 0
        self.count = 0
        self.dropped = 0
        """Names that were too long, or found no room."""

    def keep(self, slots: Slots, names: Sequence[str]) -> None:
        """Remembers the names of new objects; an empty one is none."""
        if not self._by_slot:
            self._by_slot = [None] * self._capacity
        for slot, name in zip(slots.tolist(), names, strict=True):
            size = len(name.encode(errors="surrogatepass"))
            if not size:
                continue
            if size > NAME_BYTES_MAX or self.bytes + size > self._bytes_max:
                self.dropped += 1
                continue
            self._by_slot[slot] = name
            self.bytes += size
            self.count += 1

    def forget(self, slots: Slots) -> None:
        """Forgets the names of objects that go."""
        if not self.count:
            return
        for slot in slots.tolist():
            name = self._by_slot[slot]
            if name is not None:
                self._by_slot[slot] = None
                self.bytes -= len(name.encode(errors="surrogatepass"))
                self.count -= 1

    def within(self, slots: Iterable[int]) -> Iterator[str]:
        """The names that these slots have."""
        if not self._by_slot:
            return
        for slot in slots:
            name = self._by_slot[slot]
            if name is not None:
                yield name
