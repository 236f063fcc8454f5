"""Python's collector of cycles, put to rest while much is built and little is dropped.

Facts and what is made of them refer to what they were made of and never back, so there
is nothing to collect; walking through all of it again and again takes a quarter of the
time. It is as it was afterwards.
"""

from __future__ import annotations

import gc
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator


@contextmanager
def without_collector() -> Iterator[None]:
    """The collector rests inside."""
    was = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was:
            if gc.get_freeze_count() == 0:
                # All that was built counts as old: it is not walked through at once.
                gc.freeze()
                gc.unfreeze()
            gc.enable()
