"""`KvProbe` over Mooncake's own client, with one code for each key, and no hang.

The client runs in a worker (`client.py`). Harness codes stand beside Mooncake's own:
HUNG, LOST and NOT_JOINED say that there was no answer, and why.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from chaos.errors import HarnessError, NotHere
from chaos.systems.mooncake.admin import Admin
from chaos.systems.mooncake.client import HUNG, LOST, NOT_JOINED, Client
from chaos.systems.mooncake.native import PATHS
from chaos.systems.seen import Found, Seen

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from chaos.systems.mooncake.client import Hang, Reply
    from chaos.systems.mooncake.plan import ClientPlan

__all__ = ["HUNG", "LOST", "NOT_JOINED", "MooncakeProbe"]

_PARTS: Final = (
    "Mooncake's put sessions belong to one process: ranks of several processes cannot"
    " write parts of one object"
)
_HALF_A_PUT: Final = "Mooncake's client has no PutStart or PutEnd of its own"
_NOT_FOUND: Final = -704
"""OBJECT_NOT_FOUND (Mooncake `types.h`)."""


class MooncakeProbe:
    """A zero-segment client in a worker of its own; threads may share it.

    Beside `KvProbe` and `SeeingProbe`: `last` is the reply of the latest call, with the
    time it took in Mooncake and the processor time that its process spent meanwhile
    (waiting costs some); `hangs` are the calls that were given up.

    Args:
        plan: how the client joins.
        host: stores of this host are preferred by writes, "" for Mooncake's own choice.
        log: the standard error of workers is appended there.
        on_hang: is told of every call that is given up.
    """

    def __init__(
        self,
        plan: ClientPlan,
        host: str = "",
        *,
        log: Path | None = None,
        on_hang: Callable[[Hang], None] | None = None,
    ) -> None:
        self.plan = plan
        self.client = Client(plan, log=log, on_hang=on_hang)
        self.last: Reply | None = None
        self._host = host
        self._named: dict[str, str] = {}

    @property
    def hangs(self) -> list[Hang]:
        return list(self.client.hangs)

    def join(self) -> Reply:
        """Starts the worker now instead of with the first call."""
        return self.client.join()

    def write(
        self,
        names: Sequence[str],
        *,
        size_bytes: int = 16 << 10,
        timeout_s: float = 2.0,
        replicas: int = 1,
        host: str = "",
        variant: int = 0,
    ) -> list[int]:
        """Puts in one batch. A name that is there keeps its value, and answers 0."""
        segments = self._segments(self.plan.stores_on(host or self._host))
        return self._codes(
            "write",
            names,
            timeout_s,
            size_bytes=size_bytes,
            replicas=replicas,
            segments=segments,
            variant=variant,
        )

    def write_to(
        self,
        store: str,
        names: Sequence[str],
        *,
        size_bytes: int = 16 << 10,
        timeout_s: float = 2.0,
        variant: int = 0,
    ) -> list[int]:
        """Puts on one store, as far as Mooncake follows the preference."""
        return self._codes(
            "write",
            names,
            timeout_s,
            size_bytes=size_bytes,
            segments=self._segments([store]),
            variant=variant,
        )

    def write_part(
        self,
        names: Sequence[str],
        part: int,
        parts: int,
        *,
        size_bytes: int = 16 << 10,
        timeout_s: float = 2.0,
    ) -> list[int]:
        raise NotHere(capability="parts", target="mooncake", reason=_PARTS)

    def read(
        self,
        names: Sequence[str],
        *,
        size_bytes: int = 16 << 10,
        timeout_s: float = 2.0,
        variant: int | None = 0,
    ) -> tuple[list[int], int]:
        """Gets in one batch; every byte of what is said to be good is looked at."""
        seen = self.read_by(
            "batched", names, size_bytes=size_bytes, timeout_s=timeout_s
        )
        return [one.code for one in seen], sum(_wrong(one, variant) for one in seen)

    def read_paths(self) -> list[str]:
        """See `SeeingProbe`."""
        return list(PATHS)

    def read_by(
        self,
        path: str,
        names: Sequence[str],
        *,
        size_bytes: int = 16 << 10,
        timeout_s: float = 2.0,
        among: Sequence[str] = (),
    ) -> list[Seen]:
        """Gets by one of the paths: "plain", "batched", "ranges", "session"."""
        reply = self._call(
            "read_by",
            timeout_s,
            path=path,
            names=list(names),
            size_bytes=size_bytes,
            among=list(among),
        )
        if reply.code:
            return [Seen(code=reply.code) for _ in names]
        return [Seen.from_row(row) for row in reply.result]

    def exists(self, names: Sequence[str], *, timeout_s: float = 2.0) -> list[int]:
        """0 there, -704 not, else an error: Mooncake itself says 1, 0, below 0."""
        return [_code_of(found) for found in self._codes("exists", names, timeout_s)]

    def remove(self, names: Sequence[str], *, timeout_s: float = 2.0) -> list[int]:
        """Removes also what has a lease."""
        return self._codes("remove", names, timeout_s)

    def remove_all(self, *, timeout_s: float = 5.0) -> int:
        """Removes everything; how many objects, below 0 an error."""
        reply = self._call("remove_all", timeout_s)
        return reply.code or int(reply.result)

    def owners(
        self, names: Sequence[str], *, timeout_s: float = 2.0
    ) -> list[tuple[str, ...]]:
        """The stores of each name. Asking grants a lease: Mooncake has no other way."""
        reply = self._call("replicas", timeout_s, names=list(names))
        if reply.code:
            return [()] * len(names)
        at = self.plan.store_at
        return [tuple(at(one) for one in ends) for ends in reply.result]

    def start_write(
        self, name: str, *, size_bytes: int = 16 << 10, timeout_s: float = 2.0
    ) -> tuple[int, int]:
        raise NotHere(capability="put_start", target="mooncake", reason=_HALF_A_PUT)

    def end_write(self, name: str, token: int, *, timeout_s: float = 2.0) -> int:
        raise NotHere(capability="put_start", target="mooncake", reason=_HALF_A_PUT)

    def close(self) -> None:
        """Ends the worker. Safe to call twice."""
        self.client.close()

    # -- inside --------------------------------------------------------------------

    def _segments(self, stores: Sequence[str]) -> list[str]:
        """The names of stores' segments, as a master says them now, else as it did."""
        for address in self.plan.admins if stores else ():
            try:
                found = Admin(address=address).segments()
            except HarnessError:
                continue
            self._named |= {self.plan.store_at(one): one for one in found}
            if found:
                break
        return [self._named[store] for store in stores if store in self._named]

    def _codes(
        self, op: str, names: Sequence[str], timeout_s: float, **fields: Any
    ) -> list[int]:
        reply = self._call(op, timeout_s, names=list(names), **fields)
        if reply.code:
            return [reply.code] * len(names)
        return [int(code) for code in reply.result]

    def _call(self, op: str, timeout_s: float, **fields: Any) -> Reply:
        self.last = reply = self.client.call(op, deadline_s=timeout_s, **fields)
        return reply


def _code_of(found: int) -> int:
    """A count of `batch_is_exist` as a code of `KvProbe`; other codes as they are."""
    return _NOT_FOUND if found == 0 else min(found, 0)


def _wrong(seen: Seen, variant: int | None) -> bool:
    """Whether a read that was said to be good did not give this key's value."""
    if seen.code < 0:
        return False
    return seen.found is not Found.WHOLE or variant not in (None, seen.variant)
