"""The memory that a store contributes: one mapping, pre-faulted, all of it or none.

Anonymous shared memory (memfd) mapped once. What the host has is used and reported,
never required: huge pages from the pool (MFD_HUGETLB), transparent ones
(MADV_HUGEPAGE), binding to a NUMA node (mbind). Pages are faulted in by several
threads in chunks before the store says that it is ready: the first writers would pay
otherwise, and a host that is short of memory would kill the store under load. When a
chunk fails everything is given back (Mooncake#848).
"""

from __future__ import annotations

import ctypes
import mmap
import os
import platform
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from refimpl.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import TypeAlias

    Populate: TypeAlias = Callable[[int, int], None]
    """(address, bytes): faults pages in; raises OSError."""

HUGE_PAGE_BYTES: Final = 2 << 20
_CHUNK_BYTES: Final = 64 << 20
_THREADS: Final = 8
_MADV_HUGEPAGE: Final = 14
_MADV_POPULATE_WRITE: Final = 23
"""Linux 5.14; older kernels answer EINVAL and pages are written instead."""
_MPOL_BIND: Final = 2
_MBIND: Final = {"x86_64": 237, "aarch64": 235}
_RESERVE_SHARE: Final = 0.02
"""Of the host's memory that must stay free."""


class MemoryShort(UsageError):
    """The host will not give so much memory: contribute less, or raise the limit."""

    def __init__(self, *, size_bytes: int, limit: str, limit_bytes: int | None) -> None:
        allowed = "" if limit_bytes is None else f" ({limit_bytes} bytes)"
        super().__init__(
            f"cannot contribute {size_bytes} bytes: {limit}{allowed} does not allow "
            "it; set a smaller --size or raise the limit"
        )
        self.limit = limit


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryFacts:
    """What the segment got, for the ready line."""

    huge_pages: str
    """hugetlb, transparent or none."""
    numa: str
    """bound, first-touch or unbound."""
    prefault: str
    """populate, write, or none: the first writers touch the pages."""


class SegmentMemory:
    """A mapping of `size` bytes.

    Args:
        size: bytes, at least 1.
        huge_pages: auto, on or off; on without huge pages of the host is an error.
        numa_node: to bind to, -1 for none.
        prefault: whether every page is faulted in here, by us.
        populate: faults a chunk in; for tests.
        chunk_bytes: of the pre-fault.

    Raises:
        MemoryShort: the host or a limit refuses; nothing stays allocated.
    """

    def __init__(
        self,
        size: int,
        *,
        huge_pages: str = "auto",
        numa_node: int = -1,
        prefault: bool = True,
        populate: Populate | None = None,
        chunk_bytes: int = _CHUNK_BYTES,
    ) -> None:
        require_memory(size)
        self.size = size
        self._map, kind = _map(size, huge_pages)
        # ctypes needs a writable view for the address; it must go before the mapping.
        anchor = ctypes.c_char.from_buffer(self._map)
        address = ctypes.addressof(anchor)
        try:
            kind = _ask_transparent(address, len(self._map), kind, huge_pages)
            numa = _bind(address, len(self._map), numa_node)
            how = "none"
            if prefault:
                how = _prefault(address, size, populate, chunk_bytes)
        except OSError as error:
            del anchor
            self._map.close()
            raise MemoryShort(
                size_bytes=size, limit=_which_limit(error), limit_bytes=None
            ) from error
        del anchor
        self.facts = MemoryFacts(huge_pages=kind, numa=numa, prefault=how)
        self.view = memoryview(self._map)[:size]

    def close(self) -> None:
        """Gives the memory back; nobody may hold views any more.

        Raises:
            BufferError: somebody does.
        """
        self.view.release()
        self._map.close()


def require_memory(size: int) -> None:
    """Refuses sizes that the host or its limits cannot bear, before touching a page.

    Raises:
        MemoryShort: names the limit.
    """
    for name, allowed in _limits():
        if size > allowed:
            raise MemoryShort(size_bytes=size, limit=name, limit_bytes=allowed)


def pin_to_node(node: int) -> str:
    """Keeps this process on the CPUs of a NUMA node, where the host has the node."""
    if node < 0:
        return "unpinned"
    try:
        text = Path(f"/sys/devices/system/node/node{node}/cpulist").read_text()
        cpus = parse_cpulist(text) & os.sched_getaffinity(0)
        if not cpus:
            return "unpinned"
        os.sched_setaffinity(0, cpus)
    except OSError:
        return "unpinned"
    return text.strip()


def parse_cpulist(text: str) -> set[int]:
    """`"0-3,8"` -> {0, 1, 2, 3, 8}."""
    cpus: set[int] = set()
    for part in filter(None, text.strip().split(",")):
        low, _, high = part.partition("-")
        cpus.update(range(int(low), int(high or low) + 1))
    return cpus


def _limits() -> list[tuple[str, int]]:
    import resource

    found: list[tuple[str, int]] = []
    for name, number in (
        ("address space limit (ulimit -v)", resource.RLIMIT_AS),
        ("file size limit (ulimit -f)", resource.RLIMIT_FSIZE),
    ):
        soft, _hard = resource.getrlimit(number)
        if soft != resource.RLIM_INFINITY:
            found.append((name, soft))
    meminfo = _meminfo()
    if "MemAvailable" in meminfo:
        reserve = int(meminfo.get("MemTotal", 0) * _RESERVE_SHARE)
        found.append(("free memory of the host", meminfo["MemAvailable"] - reserve))
    return found + _cgroup_limits()


def _meminfo() -> dict[str, int]:
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
    except OSError:
        return {}
    return {
        name: int(rest.split()[0]) << 10
        for name, _, rest in (line.partition(":") for line in lines)
        if rest.split()[1:] == ["kB"]
    }


def _cgroup_limits() -> list[tuple[str, int]]:
    """Memory left in the cgroup of this process (v2 and v1 mount points)."""
    found = []
    for limit, usage in (
        ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory.current"),
        (
            "/sys/fs/cgroup/memory/memory.limit_in_bytes",
            "/sys/fs/cgroup/memory/memory.usage_in_bytes",
        ),
    ):
        try:
            allowed = Path(limit).read_text().strip()
            used = int(Path(usage).read_text())
        except (OSError, ValueError):
            continue
        if allowed != "max":
            found.append(("cgroup memory limit", int(allowed) - used))
    return found


def _map(size: int, huge_pages: str) -> tuple[mmap.mmap, str]:
    """The mapping and the kind of its pages."""
    if huge_pages != "off":
        rounded = -(-size // HUGE_PAGE_BYTES) * HUGE_PAGE_BYTES
        try:
            flags = os.MFD_CLOEXEC | os.MFD_HUGETLB
            return _map_file(rounded, flags), "hugetlb"
        except OSError as error:
            # mmap reserves the huge pages: ENOMEM when the pool is short, EINVAL or
            # ENOSYS when the kernel has none.
            if huge_pages == "on" and not _transparent_possible():
                raise MemoryShort(
                    size_bytes=size,
                    limit=f"huge page pool (vm.nr_hugepages, {error.strerror})",
                    limit_bytes=None,
                ) from error
    try:
        return _map_file(size, os.MFD_CLOEXEC), "none"
    except OSError as error:
        raise MemoryShort(
            size_bytes=size, limit=_which_limit(error), limit_bytes=None
        ) from error


def _map_file(size: int, flags: int) -> mmap.mmap:
    fd = os.memfd_create("moonquake-segment", flags)
    try:
        os.ftruncate(fd, size)
        return mmap.mmap(fd, size, mmap.MAP_SHARED)
    finally:
        os.close(fd)


def _transparent_possible() -> bool:
    try:
        text = Path("/sys/kernel/mm/transparent_hugepage/shmem_enabled").read_text()
    except OSError:
        return False
    return "[never]" not in text and "[deny]" not in text


def _ask_transparent(address: int, size: int, kind: str, huge_pages: str) -> str:
    if kind == "hugetlb" or huge_pages == "off" or not _transparent_possible():
        return kind
    return "transparent" if _madvise(address, size, _MADV_HUGEPAGE) == 0 else kind


def _bind(address: int, size: int, node: int) -> str:
    """Binds pages to a node by libnuma's mbind or the system call itself."""
    if node < 0 or not Path(f"/sys/devices/system/node/node{node}").exists():
        return "unbound"
    mask = ctypes.c_ulong(1 << node) if node < 63 else None
    if mask is None:
        return "unbound"
    arguments: tuple[Any, ...] = (
        ctypes.c_void_p(address),
        ctypes.c_ulong(size),
        ctypes.c_int(_MPOL_BIND),
        ctypes.byref(mask),
        ctypes.c_ulong(64),
        ctypes.c_uint(0),
    )
    try:
        failed = ctypes.CDLL("libnuma.so.1").mbind(*arguments)
    except OSError:
        number = _MBIND.get(platform.machine())
        if number is None:
            return "first-touch"
        failed = _libc().syscall(ctypes.c_long(number), *arguments)
    return "first-touch" if failed else "bound"


def _prefault(
    address: int, size: int, populate: Populate | None, chunk_bytes: int
) -> str:
    """Faults every page in; "populate" or "write" says how.

    Raises:
        OSError: of the first chunk that failed.
    """
    how = "populate"
    if populate is None and not _can_populate(address):
        populate, how = _write_zeros, "write"
    work = populate or _populate
    chunks = [(at, min(chunk_bytes, size - at)) for at in range(0, size, chunk_bytes)]
    threads = min(_THREADS, os.cpu_count() or 1, len(chunks))
    with ThreadPoolExecutor(threads, thread_name_prefix="prefault") as executor:
        done = [executor.submit(work, address + at, count) for at, count in chunks]
        try:
            for future in done:
                future.result()
        except OSError:
            for future in done:
                future.cancel()
            raise
    return how


def _can_populate(address: int) -> bool:
    return _madvise(address, mmap.PAGESIZE, _MADV_POPULATE_WRITE) == 0


def _populate(address: int, count: int) -> None:
    code = _madvise(address, count, _MADV_POPULATE_WRITE)
    if code:
        raise OSError(code, os.strerror(code))


def _write_zeros(address: int, count: int) -> None:
    ctypes.memset(address, 0, count)


def _madvise(address: int, count: int, advice: int) -> int:
    """0 or errno; ctypes lets other threads run meanwhile, mmap.madvise does not."""
    failed = _libc().madvise(
        ctypes.c_void_p(address), ctypes.c_size_t(count), ctypes.c_int(advice)
    )
    return ctypes.get_errno() if failed else 0


def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None, use_errno=True)


def _which_limit(error: OSError) -> str:
    import errno

    return {
        errno.ENOMEM: "memory of the host (ENOMEM; ulimit -v, vm.overcommit_memory)",
        errno.EFBIG: "file size limit (EFBIG; ulimit -f)",
        errno.ENOSPC: "shared memory of the host (ENOSPC)",
    }.get(error.errno or 0, f"the kernel ({error.strerror})")
