"""How glibc's heap should treat a process that makes large arrays for each call.

A temporary array above 128 KiB is by default a mapping of its own: the kernel zeroes
its pages for each call and takes them away after it, which costs 8,192 keys about a
third of their time. Kept in one heap, the same pages serve the next call. Tables of
the pool are larger than the limit and stay mappings that cost nothing until used.

And one heap should do for all threads of an engine. By default every thread gets one
of its own, up to eight a core, and each grows to the most that its thread ever held:
the memory of a role with pools of threads rises for many minutes, and looks like a
leak. Python's threads allocate one at a time anyway.
"""

from __future__ import annotations

import ctypes
from typing import Final

_M_TRIM_THRESHOLD: Final = -1
_M_TOP_PAD: Final = -2
_M_MMAP_THRESHOLD: Final = -3
_M_ARENA_MAX: Final = -8
_KEEP_BYTES: Final = 64 << 20
_GROW_BYTES: Final = 1 << 20
_MAPPED_ABOVE_BYTES: Final = 4 << 20


def keep_call_memory() -> bool:
    """One heap that keeps the memory of a call for the next one (the master's).

    Call it before threads start.

    Returns:
        False where the C library has no `mallopt` (it is not glibc); all is well then,
        only slower.
    """
    return _set(
        {
            _M_ARENA_MAX: 1,
            _M_MMAP_THRESHOLD: _MAPPED_ABOVE_BYTES,
            _M_TRIM_THRESHOLD: _KEEP_BYTES,
            _M_TOP_PAD: _GROW_BYTES,
        }
    )


def share_one_heap() -> bool:
    """One heap for all threads, which gives back what is free (an engine's)."""
    return _set({_M_ARENA_MAX: 1})


def _set(options: dict[int, int]) -> bool:
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None:
        return False
    return all(mallopt(name, value) == 1 for name, value in options.items())
