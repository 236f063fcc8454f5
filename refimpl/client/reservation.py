"""Objects that have a place in the pool and wait for their bytes.

A put in steps: the master has given places, the caller fills its buffers in its own
time, then says for each object that it is complete, or gives it up. Until then the
objects cannot be read. The master forgets what is not ended by its own timeout.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from refimpl.core.codes import Code

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray

    from refimpl.client.put import Put


class Reservation:
    """Places of one batch; `codes` says which objects have one.

    Args:
        put: whose places were given by `Put.reserve`.
        codes: OK for each row that has a place.
        clock: monotonic seconds.
    """

    def __init__(
        self, put: Put, codes: NDArray[np.int16], clock: Callable[[], float]
    ) -> None:
        self._put = put
        self._clock = clock
        self.codes = codes

    def complete(self, rows: Sequence[int], *, timeout_s: float) -> NDArray[np.int16]:
        """Writes what stands in the buffers of these rows and makes it readable.

        A row that failed keeps its place and may be completed again, or revoked.
        """
        return self._put.complete(self._held(rows), self._clock() + timeout_s)

    def revoke(self, rows: Sequence[int], *, timeout_s: float) -> NDArray[np.int16]:
        """Gives places back; what the master had forgotten already is OK."""
        codes = self._put.revoke(self._held(rows), self._clock() + timeout_s)
        codes[codes == Code.OBJECT_NOT_FOUND] = Code.OK
        return codes

    def _held(self, rows: Sequence[int]) -> NDArray[np.intp]:
        chosen = np.array(rows, np.intp)
        assert (self.codes[chosen] == Code.OK).all(), "row has no place"
        return chosen
