"""The read calls of upstream's client."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from refimpl.compat.memory import BufferHandle
from refimpl.compat.read_sessions import read_pieces
from refimpl.compat.replicas import ReplicaDescriptor, described
from refimpl.core.codes import Code
from refimpl.core.hashing import checksum_of_pieces

if TYPE_CHECKING:
    from collections.abc import Sequence

    from refimpl.client import Lookup
    from refimpl.compat.connected import Connected
    from refimpl.compat.memory import RegisteredMemory
    from refimpl.compat.read_sessions import Pieces

_BAD: Final = int(Code.INVALID_PARAMS)

Nested = list[list[list[int]]]


class Reading:
    """Calls that read; `_now` is what `setup` made, or None."""

    _now: Connected | None = None

    # Copies.

    def get(self, key: str, /) -> bytes:
        """The bytes of an object; b"" for a miss and for any failure."""
        return self.get_batch([key])[0]

    def get_batch(self, keys: list[str], /) -> list[bytes]:
        """The bytes of objects, b"" where there are none."""
        found = self.batch_get_buffer(keys)
        return [b"" if handle is None else bytes(handle) for handle in found]

    def get_buffer(self, key: str, /) -> BufferHandle | None:
        """The bytes of an object in the local buffer; None when there are none."""
        return self.batch_get_buffer([key])[0]

    def batch_get_buffer(self, keys: list[str], /) -> list[BufferHandle | None]:
        """The bytes of objects in the local buffer; None where there are none."""
        now = self._now
        handles: list[BufferHandle | None] = [None] * len(keys)
        if now is None or not keys:
            return handles
        found = now.link.lookup(keys)
        for row, status in enumerate(found.status.tolist()):
            size = int(found.size[row])
            if status == Code.OK and now.buffer.take(size):
                handles[row] = BufferHandle(size, now.buffer)
        wanted = [(row, handle) for row, handle in enumerate(handles) if handle]
        codes = _whole(now, keys, found, [(row, memoryview(h)) for row, h in wanted])
        return [h if h and codes[row] >= 0 else None for row, h in enumerate(handles)]

    # Zero copy.

    def get_into(self, key: str, buffer_ptr: int, size: int) -> int:
        """Reads an object into registered memory; bytes, or a negative code."""
        return self.batch_get_into([key], [buffer_ptr], [size])[0]

    def batch_get_into(
        self, keys: list[str], buffer_ptrs: list[int], sizes: list[int]
    ) -> list[int]:
        """Reads objects into registered memory; bytes or a negative code each."""
        now = self._now
        if now is None or not len(keys) == len(buffer_ptrs) == len(sizes):
            return [_BAD] * len(keys)
        if not keys:
            return []
        found = now.link.lookup(keys)
        codes: list[int] = found.status.astype(int).tolist()
        wanted: list[tuple[int, memoryview]] = []
        for row, (address, size) in enumerate(zip(buffer_ptrs, sizes, strict=True)):
            if codes[row] != Code.OK:
                continue
            held = int(found.size[row])
            # The caller vouches for `size` bytes; only the object's are touched.
            view = now.memory.view(address, size) if held <= size else None
            if view is None:
                codes[row] = _BAD
            else:
                wanted.append((row, view[:held]))
        for row, code in _whole(now, keys, found, wanted).items():
            codes[row] = code
        return codes

    def batch_get_into_multi_buffers(
        self,
        keys: list[str],
        all_buffer_ptrs: list[list[int]],
        all_sizes: list[list[int]],
        prefer_alloc_in_same_node: bool = False,
    ) -> list[int]:
        """Reads each object into several buffers, one after the other."""
        now = self._now
        counts = {len(keys), len(all_buffer_ptrs), len(all_sizes)}
        if now is None or len(counts) > 1:
            return [_BAD] * len(keys)
        if not keys:
            return []
        found = now.link.lookup(keys)
        codes: list[int] = found.status.astype(int).tolist()
        rows: list[tuple[int, int, Pieces]] = []
        for row, (ptrs, sizes) in enumerate(
            zip(all_buffer_ptrs, all_sizes, strict=True)
        ):
            if codes[row] != Code.OK:
                continue
            pieces = _spread(now.memory, ptrs, sizes, int(found.size[row]))
            if pieces is None:
                codes[row] = _BAD
            else:
                rows.append((row, row, pieces))
        for row, code in read_pieces(now.link, found, rows).items():
            codes[row] = code
        _verify(found, rows, codes)
        return codes

    # Ranges.

    def get_into_ranges(
        self,
        buffer_ptrs: list[int],
        all_keys: list[list[str]],
        all_dst_offsets: Nested,
        all_src_offsets: Nested,
        all_sizes: Nested,
    ) -> Nested:
        """Reads many ranges of many objects into many buffers.

        Answers, per buffer, key and range, bytes or a negative code.
        """
        now = self._now
        results = _refused(len(buffer_ptrs), all_keys, all_dst_offsets)
        shapes = (all_keys, all_dst_offsets, all_src_offsets, all_sizes)
        if now is None or any(len(shape) != len(buffer_ptrs) for shape in shapes):
            return results
        names = sorted({name for names in all_keys for name in names})
        if not names:
            return results
        found = now.link.lookup(names)
        row_of = {name: row for row, name in enumerate(names)}
        wanted: list[tuple[tuple[int, int, int], int, Pieces]] = []
        for i, pointer in enumerate(buffer_ptrs):
            groups = (all_dst_offsets[i], all_src_offsets[i], all_sizes[i])
            if any(len(group) != len(all_keys[i]) for group in groups):
                continue
            for j, name in enumerate(all_keys[i]):
                ranges = [group[j] for group in groups]
                if len({len(one) for one in ranges}) != 1:
                    continue
                for k, (to, start, size) in enumerate(zip(*ranges, strict=True)):
                    view = now.memory.view(pointer + to, size) if to >= 0 else None
                    if view is not None and start >= 0:
                        wanted.append(((i, j, k), row_of[name], [(start, view)]))
        numbered = [(n, row, pieces) for n, (_, row, pieces) in enumerate(wanted)]
        for n, code in read_pieces(now.link, found, numbered).items():
            i, j, k = wanted[n][0]
            results[i][j][k] = code
        return results

    # Sessions.

    def batch_get_session_start(self, keys: list[str]) -> list[int]:
        """Looks objects up once; a code each."""
        if self._now is None:
            return [_BAD] * len(keys)
        return self._now.read_sessions.start(keys) if keys else []

    def batch_get_into_multi_buffer_ranges(
        self,
        keys: list[str],
        all_buffer_ptrs: list[list[int]],
        all_sizes: list[list[int]],
        all_src_offsets: list[list[int]],
    ) -> list[int]:
        """Reads ranges of objects with a session; bytes in all or a code each."""
        now = self._now
        lists = (all_buffer_ptrs, all_sizes, all_src_offsets)
        if now is None or any(len(one) != len(keys) for one in lists):
            return [_BAD] * len(keys)
        pieces = [at_offsets(now.memory, *row) for row in zip(*lists, strict=True)]
        return now.read_sessions.read(keys, pieces)

    def batch_get_session_end(self, keys: list[str]) -> int:
        """Ends sessions."""
        if self._now is not None:
            self._now.read_sessions.end(keys)
        return 0

    # Questions.

    def is_exist(self, key: str, /) -> int:
        """1 or 0, or a negative code when nobody could say. Grants a lease."""
        return self.batch_is_exist([key])[0]

    def batch_is_exist(self, keys: list[str]) -> list[int]:
        """1 or 0 or a negative code each."""
        now = self._now
        if now is None:
            return [_BAD] * len(keys)
        if not keys:
            return []
        found = now.link.lookup(keys)
        return [_exists(status, found.code) for status in found.status.tolist()]

    def get_size(self, key: str, /) -> int:
        """Bytes of an object, or a negative code."""
        if self._now is None:
            return _BAD
        found = self._now.link.lookup([key])
        status = int(found.status[0])
        return int(found.size[0]) if status == Code.OK else status

    def get_replica_desc(self, key: str) -> list[ReplicaDescriptor]:
        """The readable replicas of an object."""
        return self.batch_get_replica_desc([key]).get(key, [])

    def batch_get_replica_desc(
        self, keys: list[str]
    ) -> dict[str, list[ReplicaDescriptor]]:
        """The readable replicas of objects; who has none is left out."""
        if self._now is None or not keys:
            return {}
        found = self._now.link.lookup(keys)
        all_of = {name: described(found, row) for row, name in enumerate(keys)}
        return {name: replicas for name, replicas in all_of.items() if replicas}


def at_offsets(
    memory: RegisteredMemory,
    ptrs: Sequence[int],
    sizes: Sequence[int],
    offsets: Sequence[int],
) -> Pieces | None:
    """Buffers and their places within an object; None when one is not acceptable."""
    if not len(ptrs) == len(sizes) == len(offsets):
        return None
    pieces = []
    for pointer, size, offset in zip(ptrs, sizes, offsets, strict=True):
        view = memory.view(pointer, size)
        if view is None or offset < 0:
            return None
        pieces.append((offset, view))
    return pieces


def _spread(
    memory: RegisteredMemory, ptrs: Sequence[int], sizes: Sequence[int], held: int
) -> Pieces | None:
    """An object of `held` bytes over buffers in order; None when they are too small."""
    if len(ptrs) != len(sizes) or sum(sizes) < held:
        return None
    pieces, at = [], 0
    for pointer, size in zip(ptrs, sizes, strict=True):
        view = memory.view(pointer, size)
        if view is None:
            return None
        take = min(size, held - at)
        if take:
            pieces.append((at, view[:take]))
        at += take
    return pieces


def _whole(
    now: Connected,
    keys: Sequence[str],
    found: Lookup,
    wanted: Sequence[tuple[int, memoryview]],
) -> dict[int, int]:
    """Reads whole objects; bytes or a code by row of the lookup."""
    if not wanted:
        return {}
    rows = [row for row, _ in wanted]
    names = [keys[row] for row in rows]
    views = [view for _, view in wanted]
    codes = now.link.get(names, views, found.only(rows)).tolist()
    return {
        row: len(view) if code == Code.OK else code
        for (row, view), code in zip(wanted, codes, strict=True)
    }


def _verify(
    found: Lookup, rows: Sequence[tuple[int, int, Pieces]], codes: list[int]
) -> None:
    """Compares checksums of objects that were read in several pieces."""
    for at, row, pieces in rows:
        if codes[at] < 0 or found.parts[row] > 1 or len(pieces) < 2:
            continue
        if checksum_of_pieces(view for _, view in pieces) != found.checksum[row]:
            codes[at] = int(Code.CHECKSUM_MISMATCH)


def _refused(
    count: int, all_keys: Sequence[Sequence[str]], shape: Sequence[Sequence[list[int]]]
) -> Nested:
    """INVALID_PARAMS for each range, in the shape of the destinations."""
    results: Nested = []
    for i in range(count):
        groups = shape[i] if i < len(shape) else []
        keys = all_keys[i] if i < len(all_keys) else []
        widths = [len(groups[j]) if j < len(groups) else 0 for j in range(len(keys))]
        results.append([[_BAD] * width for width in widths])
    return results


def _exists(status: int, call: int) -> int:
    if call != Code.OK:
        return int(call)
    return 1 if status == Code.OK else 0
