"""Mooncake's own client, called as its documentation says. Lives in workers only.

Reads go through the calls that answer codes (`get_into` and its relatives): `get`
answers nothing at all for a miss and for every error alike. Whole batches are one call,
so that what one bad key does to its neighbours is seen.
"""

from __future__ import annotations

import contextlib
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from chaos.systems.mooncake.values import value_of
from chaos.systems.seen import look

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from numpy.typing import NDArray

    Table = NDArray[np.uint8]

PATHS: Final = ("plain", "batched", "ranges", "session")
INVALID: Final = -600
_RANGES: Final = 4
"""A value is read in so many pieces where ranges are asked for."""


class SetupFailed(RuntimeError):
    """The client could not join: the code that its setup answered."""

    def __init__(self, code: int) -> None:
        super().__init__(f"setup answered {code}")
        self.code = code


class NativeStore:
    """One client without a segment; any thread may call.

    Raises:
        SetupFailed: It could not join.
    """

    def __init__(self, plan: Mapping[str, Any]) -> None:
        from mooncake.store import MooncakeDistributedStore, ReplicateConfig

        self._config = ReplicateConfig
        self._store = MooncakeDistributedStore()
        code = self._store.setup(
            plan["address"],
            plan["metadata"],
            0,
            int(plan["local_buffer_bytes"]),
            "tcp",
            "",
            plan["master"],
        )
        if code != 0:
            raise SetupFailed(int(code))

    @property
    def hostname(self) -> str:
        return str(self._store.get_hostname())

    def write(
        self,
        names: Sequence[str],
        *,
        size_bytes: int,
        replicas: int = 1,
        segments: Sequence[str] = (),
        variant: int = 0,
    ) -> list[int]:
        """Puts values in one batch; one code a name, 0 good."""
        table = np.empty((len(names), size_bytes), np.uint8)
        for row, name in zip(table, names, strict=True):
            row[:] = value_of(name, size_bytes, variant)
        config = self._replicate(replicas, segments)
        with self._registered(table) as places:
            codes = self._store.batch_put_from(
                list(names), places, [size_bytes] * len(names), config
            )
        return [int(code) for code in codes]

    def read_by(
        self,
        path: str,
        names: Sequence[str],
        *,
        size_bytes: int,
        among: Sequence[str] = (),
    ) -> list[list[Any]]:
        """Gets values by one of the paths and says whose bytes came, as plain rows."""
        if path not in PATHS:
            message = f"no path of reading is called {path!r}"
            raise ValueError(message)
        table = np.zeros((len(names), size_bytes), np.uint8)
        with self._registered(table) as places:
            got = getattr(self, f"_{path}")(list(names), places, size_bytes)
        return [
            self._seen(name, int(count), row, among)
            for name, count, row in zip(names, got, table, strict=True)
        ]

    def exists(self, names: Sequence[str]) -> list[int]:
        """1 there, 0 not, below 0 an error; a found one gets a lease."""
        return [int(code) for code in self._store.batch_is_exist(list(names))]

    def remove(self, names: Sequence[str], *, force: bool = True) -> list[int]:
        return [int(code) for code in self._store.batch_remove(list(names), force)]

    def remove_all(self) -> int:
        """Removes every object, leased or not; how many, below 0 an error."""
        return int(self._store.remove_all(True))

    def replicas(self, names: Sequence[str]) -> list[list[str]]:
        """The addresses of the complete replicas in memory of each name."""
        found = self._store.batch_get_replica_desc(list(names))
        return [
            [end for replica in found.get(name, ()) if (end := _endpoint(replica))]
            for name in names
        ]

    def health(self) -> int:
        """0 good, 1 not set up, 2 the master does not answer."""
        return int(self._store.health_check())

    def close(self) -> None:
        self._store.close()

    # -- paths of reading: bytes read or a code, by name ---------------------------

    def _plain(self, names: list[str], places: list[int], size: int) -> list[int]:
        get = self._store.get_into
        return [get(name, at, size) for name, at in zip(names, places, strict=True)]

    def _batched(self, names: list[str], places: list[int], size: int) -> list[int]:
        return list(self._store.batch_get_into(names, places, [size] * len(names)))

    def _ranges(self, names: list[str], places: list[int], size: int) -> list[int]:
        """Every value in pieces; a name whose pieces disagree has the worst of them."""
        cuts = _cuts(size)
        offsets = [[[at for at, _ in cuts]] for _ in names]
        answers = self._store.get_into_ranges(
            places,
            [[name] for name in names],
            offsets,
            offsets,
            [[[count for _, count in cuts]] for _ in names],
        )
        return [_joined(one[0]) if one and one[0] else INVALID for one in answers]

    def _session(self, names: list[str], places: list[int], size: int) -> list[int]:
        """Looks once, reads pieces from what was found, and forgets it."""
        started = [int(code) for code in self._store.batch_get_session_start(names)]
        good = [at for at, code in enumerate(started) if code >= 0]
        cuts = _cuts(size)
        try:
            read = self._store.batch_get_into_multi_buffer_ranges(
                [names[at] for at in good],
                [[places[at] + begin for begin, _ in cuts] for at in good],
                [[count for _, count in cuts] for _ in good],
                [[begin for begin, _ in cuts] for _ in good],
            )
        finally:
            self._store.batch_get_session_end(names)
        for at, code in zip(good, read, strict=True):
            started[at] = size if int(code) == 0 else int(code)
        return started

    # -- inside --------------------------------------------------------------------

    @contextlib.contextmanager
    def _registered(self, table: Table) -> Iterator[list[int]]:
        """The addresses of a table's rows while its memory is known to Mooncake."""
        start, rows = int(table.ctypes.data), len(table)
        self._store.register_buffer(start, max(1, table.nbytes))
        try:
            yield [start + at * table.shape[1] for at in range(rows)]
        finally:
            self._store.unregister_buffer(start)

    def _replicate(self, replicas: int, segments: Sequence[str]) -> Any:
        config = self._config()
        config.replica_num = replicas
        if segments and replicas == 1:
            config.preferred_segment = segments[0]
        elif segments:
            config.preferred_segments = list(segments)
        return config

    def _seen(self, name: str, got: int, row: Table, among: Sequence[str]) -> list[Any]:
        size = len(row)
        others = [(o, partial(value_of, o, size)) for o in among if o != name]
        code = min(got, 0)
        found = row if got < 0 else row[:got]
        return look(code, found, value_of(name, size), others).to_row()


def _cuts(size: int) -> list[tuple[int, int]]:
    """Offsets and lengths that cover a value."""
    step = max(1, -(-size // _RANGES))
    return [(at, min(step, size - at)) for at in range(0, size, step)]


def _joined(codes: Sequence[int]) -> int:
    worst = min(int(code) for code in codes)
    return worst if worst < 0 else sum(int(code) for code in codes)


def _endpoint(replica: Any) -> str:
    """Where a replica lies: "" when it is not in memory, or not complete."""
    if not replica.is_memory_replica() or "COMPLETE" not in str(replica.status):
        return ""
    descriptor = replica.get_memory_descriptor().buffer_descriptor
    return str(descriptor.transport_endpoint)
