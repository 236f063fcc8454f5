"""Memory of the caller: registered regions by address, and a budget for copies.

Zero-copy calls name memory by address and size. Bytes may be read from and written to
registered regions only: an address outside is refused before anything is touched.
Calls that copy (`put`, `get`) take from a local buffer of a set size, as upstream's do;
here it is a budget, so that memory is bounded without being held.
"""

from __future__ import annotations

import bisect
import ctypes
import threading
import weakref
from contextlib import contextmanager
from typing import TYPE_CHECKING

from refimpl.core.codes import Code

if TYPE_CHECKING:
    from collections.abc import Iterator


class RegisteredMemory:
    """Regions that calls by address may touch. Safe from several threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._starts: list[int] = []
        self._sizes: dict[int, int] = {}

    def register(self, address: int, size: int) -> Code:
        """Adds a region; one that overlaps another is INVALID_PARAMS."""
        if address <= 0 or size <= 0:
            return Code.INVALID_PARAMS
        with self._lock:
            at = bisect.bisect_left(self._starts, address)
            after = self._starts[at] if at < len(self._starts) else address + size
            before = self._starts[at - 1] if at else 0
            if after < address + size or (
                at and before + self._sizes[before] > address
            ):
                return Code.INVALID_PARAMS
            self._starts.insert(at, address)
            self._sizes[address] = size
        return Code.OK

    def unregister(self, address: int) -> Code:
        """Removes the region that begins there."""
        with self._lock:
            if self._sizes.pop(address, None) is None:
                return Code.INVALID_PARAMS
            self._starts.remove(address)
        return Code.OK

    def room(self, address: int) -> int:
        """Bytes from this address to the end of its region, 0 outside of all."""
        with self._lock:
            at = bisect.bisect_right(self._starts, address) - 1
            if at < 0:
                return 0
            start = self._starts[at]
            return max(0, start + self._sizes[start] - address)

    def view(self, address: int, size: int) -> memoryview | None:
        """The bytes there, or None when they are not within one region."""
        if size < 0 or self.room(address) < max(1, size):
            return None
        return view_of(address, size)

    def clear(self) -> None:
        """Forgets every region."""
        with self._lock:
            self._starts.clear()
            self._sizes.clear()


def view_of(address: int, size: int) -> memoryview:
    """Writable bytes at an address. Whoever calls vouches for them."""
    return memoryview((ctypes.c_ubyte * size).from_address(address)).cast("B")


class LocalBuffer:
    """A budget of bytes for copies under way. Refuses what does not fit, at once."""

    def __init__(self, size: int) -> None:
        self._lock = threading.Lock()
        self._free = size

    @property
    def free(self) -> int:
        """Bytes that nobody holds."""
        return self._free

    def take(self, size: int) -> bool:
        """Whether so many bytes are the caller's until it gives them back."""
        with self._lock:
            if not 0 < size <= self._free:
                return False
            self._free -= size
            return True

    def give(self, size: int) -> None:
        """Gives bytes back."""
        with self._lock:
            self._free += size

    @contextmanager
    def lent(self, size: int) -> Iterator[bool]:
        """`take` for the time of a block."""
        taken = self.take(size)
        try:
            yield taken
        finally:
            if taken:
                self.give(size)


class BufferHandle(bytearray):
    """An object's bytes in the local buffer, held until the handle is dropped.

    A bytearray, so that it has the buffer protocol (`__buffer__` is Python 3.12's).

    Args:
        size: bytes, taken from the buffer before.
        buffer: gets them back.
    """

    def __init__(self, size: int, buffer: LocalBuffer) -> None:
        super().__init__(size)
        weakref.finalize(self, buffer.give, size)

    def ptr(self) -> int:
        """Address of the first byte."""
        return ctypes.addressof((ctypes.c_char * len(self)).from_buffer(self))

    def size(self) -> int:
        """Bytes."""
        return len(self)
