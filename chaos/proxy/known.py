"""What a client made and armed on its server: undoing must need no read.

A Toxiproxy that hangs on a removal answers no question about that proxy either
(Toxiproxy#558), so where it listened and what it carried is remembered here.
"""

from __future__ import annotations

import threading
from dataclasses import replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

    from chaos.proxy.client import ProxyInfo, ToxicInfo


class KnownProxies:
    """The proxies of one client by name, as they should be; safe for threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._infos: dict[str, ProxyInfo] = {}

    def get(self, name: str) -> ProxyInfo | None:
        with self._lock:
            return self._infos.get(name)

    def all(self) -> list[ProxyInfo]:
        """Every proxy, in the order of their making."""
        with self._lock:
            return list(self._infos.values())

    def made(self, info: ProxyInfo) -> None:
        with self._lock:
            self._infos[info.name] = info

    def gone(self, name: str) -> None:
        with self._lock:
            self._infos.pop(name, None)

    def seen(self, info: ProxyInfo) -> None:
        """Notes how one of ours was read back; others are nobody's business."""
        with self._lock:
            if info.name in self._infos:
                self._infos[info.name] = info

    def switched(self, name: str, enabled: bool) -> None:
        with self._lock:
            if name in self._infos:
                self._infos[name] = replace(self._infos[name], enabled=enabled)

    def armed(self, name: str, toxic: ToxicInfo) -> None:
        """Notes a toxic when it is ordered: it may be there whatever is answered."""
        self._change(name, {toxic.full_name}, (toxic,))

    def disarmed(self, name: str, toxics: Iterable[str]) -> None:
        self._change(name, set(toxics), ())

    def _change(
        self, name: str, without: set[str], more: tuple[ToxicInfo, ...]
    ) -> None:
        with self._lock:
            info = self._infos.get(name)
            if info is not None:
                kept = [t for t in info.toxics if t.full_name not in without]
                self._infos[name] = replace(info, toxics=(*kept, *more))
