"""Memory that two processes see: the staging buffers of an engine, and its client."""

from __future__ import annotations

import mmap
import os
import weakref
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray


class SharedMemory:
    """Zeroed bytes; who is given `fd` can map the same ones. `array` is (size,)."""

    def __init__(self, size_bytes: int) -> None:
        self.size_bytes = size_bytes
        self.fd = os.memfd_create("moonquake-lanes")
        weakref.finalize(self, os.close, self.fd)
        os.ftruncate(self.fd, size_bytes)
        self.array: NDArray[np.uint8] = np.frombuffer(
            mmap.mmap(self.fd, size_bytes), np.uint8
        )
        self.address = int(self.array.ctypes.data)
