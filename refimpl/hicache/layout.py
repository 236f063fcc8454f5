"""How a page lies in a row of memory, and under which keys in the pool."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from refimpl.core.hashing import component_keys

if TYPE_CHECKING:
    from refimpl.hicache.settings import HiCacheSettings

SIDECAR = "sidecar"


@dataclass(frozen=True, slots=True, kw_only=True)
class Component:
    """One object of a page: `size` bytes at `offset` of the row."""

    name: str
    offset: int
    size: int

    def keys(self, page_keys: bytes) -> bytes:
        """The component's keys in the pool, one a page."""
        return component_keys(page_keys, self.name) if self.name else page_keys


@dataclass(frozen=True, slots=True, kw_only=True)
class PageLayout:
    """The components of a page, in the pools that are read one after the other.

    The first pool is the main one (per rank k and v, say), the second, where there is
    one, the sidecar (auxiliary state of some models).
    """

    page_bytes: int
    ranks: int
    pools: tuple[tuple[Component, ...], ...]

    @property
    def components(self) -> tuple[Component, ...]:
        """All components, those of the main pool first."""
        return tuple(c for pool in self.pools for c in pool)


def layout_of(settings: HiCacheSettings) -> PageLayout:
    """Cuts the page.

    Raises:
        ValueError: it cannot be cut into equal components and parts.
    """
    names = settings.components
    main = settings.page_bytes - settings.sidecar_bytes
    if not names or len(set(names)) != len(names) or SIDECAR in names:
        raise ValueError(f"components must be distinct names, got {names!r}")
    if main <= 0 or main % (len(names) * settings.ranks):
        raise ValueError(
            f"{main} bytes of a page cannot be cut into {len(names)} components "
            f"of {settings.ranks} equal parts"
        )
    size = main // len(names)
    pools = [
        tuple(
            Component(name=name, offset=i * size, size=size)
            for i, name in enumerate(names)
        )
    ]
    if settings.sidecar_bytes:
        if settings.sidecar_bytes % settings.ranks:
            raise ValueError("sidecar_bytes is no multiple of ranks")
        side = Component(name=SIDECAR, offset=main, size=settings.sidecar_bytes)
        pools.append((side,))
    return PageLayout(
        page_bytes=settings.page_bytes, ranks=settings.ranks, pools=tuple(pools)
    )
