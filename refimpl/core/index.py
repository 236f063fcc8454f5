"""From 32-byte keys to slots: open addressing, a whole batch in a few numpy calls.

Linear probing in an int32 table that is at most a quarter full. There are no
tombstones: deleting empties the cell and settles the rest of its run again, so the
table never needs a rebuild that would stop everybody (Mooncake#3395 is such a stop).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

KEY_WORDS = 4
"""A key is 32 bytes: four 64-bit words."""

_EMPTY = -1
_WINDOW = 8
"""Cells compared at once for keys that are not in their home cell."""
_CELLS_PER_KEY = 4
_STEPS = np.arange(_WINDOW)
_ODD = np.array(
    [0x9E3779B97F4A7C15, 0xC2B2AE3D27D4EB4F, 0x165667B19E3779F9, 0xD6E8FEB86659FD93],
    dtype=np.uint64,
)


def mixed(keys: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """One well spread 64-bit word per key (high bits are the best ones)."""
    words: NDArray[np.uint64] = (keys @ _ODD) * _ODD[0]
    return words


def _differs(rows: NDArray[np.uint64], keys: NDArray[np.uint64]) -> NDArray[np.uint32]:
    """Not 0 where the key of a row is another one: four flags read as one word."""
    flags: NDArray[np.bool_] = rows[:, :KEY_WORDS] != keys
    return flags.view(np.uint32).reshape(-1)


class KeyIndex:
    """Finds the slot of a key. Keys live in `rows`, one row a slot.

    `rows` has one row more than `capacity`: slot -1, the absent one, reads it.

    Args:
        capacity: number of slots, 1 to 2**28.
        row_words: 64-bit words in a row; the first four hold the key and the rest
            belongs to the caller (an object's row fills one cache line).
    """

    def __init__(self, capacity: int, row_words: int = KEY_WORDS) -> None:
        if not 1 <= capacity <= 1 << 28:
            raise ValueError(f"capacity must be 1 to 2**28 slots, got {capacity}")
        bits = max(4, (capacity * _CELLS_PER_KEY - 1).bit_length())
        self.rows: NDArray[np.uint64] = np.zeros(
            (capacity + 1, row_words), dtype=np.uint64
        )
        self._words = self.rows.reshape(-1)
        self._row_words = row_words
        self._shift = np.uint64(64 - bits)
        self._mask = (1 << bits) - 1
        # An empty cell is stored as 0 and a slot as slot + 1, so that the pages of a
        # table nobody used yet cost no memory.
        self._cells: NDArray[np.int32] = np.zeros(1 << bits, dtype=np.int32)

    def find(self, keys: NDArray[np.uint64]) -> NDArray[np.int32]:
        """Returns the slot of each key, -1 where it is absent. Duplicates are fine."""
        return self.locate(keys)[0].astype(np.int32)

    def locate(
        self, keys: NDArray[np.uint64]
    ) -> tuple[NDArray[np.intp], NDArray[np.uint64]]:
        """Like `find`, with a copy of each key's row: one pass over cold memory."""
        cells = self._home(keys)
        slots = self._cells.take(cells).astype(np.intp) + _EMPTY
        rows = self.rows.take(slots, axis=0)
        # An all-zero key equals the row of slot -1, and -1 is the right answer then.
        lost = np.flatnonzero(_differs(rows, keys))
        if lost.size:
            slots[lost], rows[lost] = self._find_further(keys[lost], cells[lost])
        return slots, rows

    def insert(self, keys: NDArray[np.uint64], slots: NDArray[np.intp]) -> None:
        """Adds keys that are absent and distinct, each at its own unused slot."""
        self.rows[slots, :KEY_WORDS] = keys
        self._settle(slots, self._home(keys))

    def delete(self, keys: NDArray[np.uint64]) -> None:
        """Removes keys; absent ones and duplicates are ignored."""
        slots = np.unique(self.find(keys))
        self.delete_slots(slots[slots != _EMPTY].astype(np.intp))

    def delete_slots(self, slots: NDArray[np.intp]) -> None:
        """Removes the keys at these distinct, used slots."""
        cells = self._cells_of(slots)
        self._cells[cells] = 0
        followers = self._lift_runs(cells)
        if followers.size:
            self._settle(followers, self._home(self._keys_at(followers)))

    def occupied(self) -> int:
        """Counts the used cells; for conservation checks, not for hot paths."""
        return int(np.count_nonzero(self._cells))

    def _home(self, keys: NDArray[np.uint64]) -> NDArray[np.intp]:
        return (mixed(keys) >> self._shift).astype(np.intp)

    def _keys_at(self, slots: NDArray[np.intp]) -> NDArray[np.uint64]:
        return self.rows.take(slots, axis=0)[:, :KEY_WORDS]

    def _find_further(
        self, keys: NDArray[np.uint64], cells: NDArray[np.intp]
    ) -> tuple[NDArray[np.intp], NDArray[np.uint64]]:
        """Looks at a window of cells from the home cell on, then key by key.

        Only first words are compared with every cell of a window; the whole row of the
        first that fits is compared afterwards. Numpy's cost here is that of its calls,
        so the few that are further away, or behind another key that begins with the
        same word, are found one by one.

        Args:
            keys: those that are not in their home cell.
            cells: their home cells.
        """
        ahead = cells[:, None] + _STEPS
        ahead &= self._mask
        slots = self._cells.take(ahead).astype(np.intp)
        slots += _EMPTY
        stop = self._words.take(slots * self._row_words) == keys[:, :1]
        stop |= slots == _EMPTY
        first = stop.argmax(axis=1)
        first += np.arange(0, slots.size, _WINDOW)
        found = slots.take(first)
        rows = self.rows.take(found, axis=0)
        unsure = _differs(rows, keys) != 0
        if unsure.any():
            # Absent is a sure answer where an empty cell was met.
            unsure &= (found != _EMPTY) | ~stop.take(first)
            for at in np.flatnonzero(unsure).tolist():
                found[at] = self._find_one(keys[at], int(cells[at]))
                rows[at] = self.rows[found[at]]
        return found, rows

    def _find_one(self, key: NDArray[np.uint64], cell: int) -> int:
        """The slot of one key, behind another one that begins with the same word."""
        while stored := int(self._cells[cell]):
            if (self.rows[stored - 1, :KEY_WORDS] == key).all():
                return stored - 1
            cell = (cell + 1) & self._mask
        return _EMPTY

    def _settle(self, slots: NDArray[np.intp], cells: NDArray[np.intp]) -> None:
        """Gives each slot the first free cell at or behind its home."""
        stored = (slots + 1).astype(np.int32)
        while stored.size:
            free = self._cells.take(cells) == 0
            # Several may aim at one cell: the last stays, the others go on.
            self._cells[cells[free]] = stored[free]
            lost = self._cells.take(cells) != stored
            stored = stored[lost]
            cells = (cells[lost] + 1) & self._mask

    def _cells_of(self, slots: NDArray[np.intp]) -> NDArray[np.intp]:
        cells = self._home(self._keys_at(slots))
        stored = slots + 1
        pending = np.flatnonzero(self._cells.take(cells) != stored)
        while pending.size:
            assert self._cells.take(cells[pending]).all(), "slot is not in the index"
            cells[pending] = (cells[pending] + 1) & self._mask
            pending = pending[self._cells.take(cells[pending]) != stored[pending]]
        return cells

    def _lift_runs(self, cells: NDArray[np.intp]) -> NDArray[np.intp]:
        """Empties the cells that follow `cells` without a gap; returns their slots.

        Walkers start at distinct cells and all step by one, so no two of them ever
        stand on one cell, and one that meets an emptied cell may stop there.
        """
        lifted = []
        cells = (cells + 1) & self._mask
        while cells.size:
            stored = self._cells.take(cells)
            cells = cells[stored != 0]
            lifted.append(stored[stored != 0])
            self._cells[cells] = 0
            cells = (cells + 1) & self._mask
        followers = np.concatenate(lifted) if lifted else np.zeros(0, dtype=np.int32)
        return followers.astype(np.intp) - 1
