"""A bounded pool of pages with exactly one owner each.

States: free (the pool owns it), used (a tier's index owns it), in flight (an I/O thread
owns it until its get has returned, so that a late write can never land in a page that
serves another request; sglang#13483, #31445). A change of state from any other than the
expected one is a double free or a theft, and raises.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

FREE: Final = 0
USED: Final = 1
IN_FLIGHT: Final = 2
POISON: Final = 0xDB

_NAMES = ("free", "used", "in flight")


class PageOwnershipError(AssertionError):
    """A page was given back or taken over by somebody who does not own it: our bug."""

    def __init__(self, page: int, expected: int, found: int) -> None:
        super().__init__(
            f"page {page} should be {_NAMES[expected]} and is {_NAMES[found]}"
        )


class PagePool:
    """`pages` rows of `page_bytes`; the caller serialises the calls.

    `rows` is the memory. It is touched at once, like a pinned host pool: a page fault
    in the middle of a request costs more than the copy that it delays.
    """

    def __init__(self, pages: int, page_bytes: int, *, poison: bool = False) -> None:
        if pages < 1 or page_bytes < 1:
            raise ValueError(f"a pool of {pages} pages of {page_bytes} bytes is none")
        self.total = pages
        self.page_bytes = page_bytes
        self.rows: NDArray[np.uint8] = np.empty((pages, page_bytes), np.uint8)
        self.rows.fill(0)
        self.states: NDArray[np.uint8] = np.zeros(pages, np.uint8)
        self.used = 0
        self.in_flight = 0
        self._poison = poison
        self._flat = self.rows.reshape(-1).data
        self._stack: NDArray[np.intp] = np.arange(pages - 1, -1, -1, dtype=np.intp)
        self._free = pages

    @property
    def free(self) -> int:
        """Pages that can be allocated."""
        return self._free

    def allocate(self, count: int) -> NDArray[np.intp]:
        """Up to `count` pages, in flight from now on: they belong to the caller."""
        count = max(0, min(count, self._free))
        taken = self._stack[self._free - count : self._free][::-1].copy()
        self._free -= count
        self.states[taken] = IN_FLIGHT
        self.in_flight += count
        return taken

    def adopt(self, pages: NDArray[np.intp]) -> None:
        """In flight to used: a tier's index owns them from now on."""
        self._change(pages, IN_FLIGHT, USED)
        self.in_flight -= len(pages)
        self.used += len(pages)

    def land(self, pages: NDArray[np.intp]) -> None:
        """In flight to free: the get has returned and nobody wants the pages."""
        self._change(pages, IN_FLIGHT, FREE)
        self.in_flight -= len(pages)
        self._push(pages)

    def give_back(self, pages: NDArray[np.intp]) -> None:
        """Used to free: evicted, flushed, or a duplicate."""
        self._change(pages, USED, FREE)
        self.used -= len(pages)
        self._push(pages)

    def view(self, page: int, offset: int = 0, size: int = -1) -> memoryview:
        """The bytes of a page, or a piece of it, writable, without a copy."""
        size = self.page_bytes - offset if size < 0 else size
        start = page * self.page_bytes + offset
        return self._flat[start : start + size]

    def broken_laws(self) -> list[str]:
        """What does not add up, in words; empty when all is well."""
        counts = np.bincount(self.states, minlength=3)
        said = (self._free, self.used, self.in_flight)
        broken = [
            f"{name}: {claimed} counted, {found} found"
            for name, claimed, found in zip(_NAMES, said, counts, strict=True)
            if claimed != found
        ]
        if sum(said) != self.total:
            broken.append(f"free + used + in flight = {sum(said)} of {self.total}")
        if len(set(self._stack[: self._free].tolist())) != self._free:
            broken.append("a page is in the free list twice")
        return broken

    def _push(self, pages: NDArray[np.intp]) -> None:
        if self._poison:
            self.rows[pages] = POISON
        self._stack[self._free : self._free + len(pages)] = pages
        self._free += len(pages)

    def _change(self, pages: NDArray[np.intp], expected: int, to: int) -> None:
        found = self.states[pages]
        if not (found == expected).all():
            worst = int(np.argmax(found != expected))
            raise PageOwnershipError(int(pages[worst]), expected, int(found[worst]))
        if len(pages) > 1 and len(np.unique(pages)) != len(pages):
            raise PageOwnershipError(int(pages[0]), expected, to)
        self.states[pages] = to
