"""The transfer engine: batched reads and writes of many stores over all their rails.

A call runs one selector loop in the calling thread; there is no other thread, so when
it returns nobody touches the caller's buffers any more. Rows of a store are cut into
requests that its usable rails pull from one queue: two healthy rails carry half each,
a slow one carries less. A rail that breaks, or is silent while a sibling is not, gives
its requests to another rail once (Mooncake 4.4: redispatch; #2960). Without a sibling
the engine waits until the deadline.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from refimpl.core.codes import Code
from refimpl.transfer.call import Call
from refimpl.transfer.connections import ConnectionPool
from refimpl.transfer.frames import FrameOp
from refimpl.transfer.operation import TransferSettings
from refimpl.transfer.rails import Rails

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from refimpl.security.secret import Secret
    from refimpl.transfer.cancel import Cancel
    from refimpl.transfer.operation import Op, Watch


class TransferEngine:
    """Moves rows between buffers of this process and segments of stores.

    Safe from several threads: each call has its own loop and connections.
    """

    def __init__(
        self,
        settings: TransferSettings | None = None,
        clock: Callable[[], float] = time.monotonic,
        *,
        rails: Rails | None = None,
        secret: Secret | None = None,
    ) -> None:
        """`secret`: what each new connection proves, and asks the store to prove."""
        self._settings = settings or TransferSettings()
        self._clock = clock
        self._pool = ConnectionPool(
            per_rail=self._settings.idle_per_rail, total=self._settings.idle_total
        )
        self.rails = rails or Rails()
        self._secret = secret

    def read(
        self,
        ops: Sequence[Op],
        deadline: float,
        cancel: Cancel | None = None,
        watch: Watch | None = None,
    ) -> list[int]:
        """Fills the buffers; one code per row number, 0 to the highest.

        Args:
            ops: what to read, by store.
            deadline: instant on the engine's clock; what is missing then is
                RPC_TIMEOUT.
            cancel: ends the call at once, likewise.
            watch: follows rows and offers alternatives.
        """
        return self._call(FrameOp.READ, ops, deadline, cancel, watch)

    def write(
        self,
        ops: Sequence[Op],
        deadline: float,
        cancel: Cancel | None = None,
        watch: Watch | None = None,
    ) -> list[int]:
        """Sends the buffers; a row is OK when its store acknowledged it."""
        return self._call(FrameOp.WRITE, ops, deadline, cancel, watch)

    def state(self) -> dict[str, Any]:
        """Idle connections, handshakes that proved nothing, bytes per rail."""
        return {
            "idle_connections": len(self._pool),
            "not_authenticated": self.rails.not_authenticated,
            "rails": self.rails.snapshot(),
        }

    def close(self) -> None:
        """Closes idle connections."""
        self._pool.close()

    def _call(
        self,
        direction: FrameOp,
        ops: Sequence[Op],
        deadline: float,
        cancel: Cancel | None,
        watch: Watch | None,
    ) -> list[int]:
        call = Call(
            direction=direction,
            pool=self._pool,
            rails=self.rails,
            settings=self._settings,
            clock=self._clock,
            deadline=deadline,
            cancel=cancel,
            watch=watch,
            secret=self._secret,
        )
        call.run(ops)
        count = max((int(op.rows.max()) + 1 for op in ops if len(op.rows)), default=0)
        if len(call.codes) == count and not any(call.codes.values()):
            return [int(Code.OK)] * count
        missing = int(Code.INTERNAL_ERROR)
        return [int(call.codes.get(row, missing)) for row in range(count)]
