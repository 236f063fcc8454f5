"""A proxy client that remembers what it made: in the ledger, and for a hung server.

Our own proxy server dies with the harness; a Toxiproxy that was there before does not,
and only the ledger then knows which proxies on it were ours. A Toxiproxy whose control
API hangs on a blocked data path (Toxiproxy#558) never answers again: when it is ours,
it is started anew with the same proxies and no toxic, which closes every connection
once and heals every link.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any, TypeVar

from chaos.errors import ProxyUnreachable

if TYPE_CHECKING:
    from collections.abc import Callable

    from chaos.proxy.client import ProxyClient, ProxyInfo
    from chaos.safety.ledger import Ledger

T = TypeVar("T")
_LOG = logging.getLogger(__name__)


class RecordingClient:
    """Everything of `ProxyClient`; `create` and `delete` leave a row in the ledger.

    Args:
        client: of the server in use.
        ledger: of this run.
        restart: ends a hung server and starts another; None when it is not ours.
    """

    def __init__(
        self,
        client: ProxyClient,
        ledger: Ledger,
        restart: Callable[[], ProxyClient] | None = None,
    ) -> None:
        self._client = client
        self._ledger = ledger
        self._restart = restart
        self._made: dict[str, tuple[str, str]] = {}

    def create(self, name: str, listen: str, upstream: str) -> ProxyInfo:
        """Makes a proxy; its row is on disk before it exists."""
        self._ledger.proxy(self._client.url, name)
        self._made[name] = (listen, upstream)
        return self._client.create(name, listen, upstream)

    def delete(self, name: str) -> None:
        self._client.delete(name)
        self._strike(name)

    def toxics(self, proxy: str) -> Any:
        return self._surely(lambda: self._client.toxics(proxy))

    def remove_toxic(self, proxy: str, name: str, deadline_s: float = 1.0) -> Any:
        """Removes a toxic, in the end with the server that hangs on it."""
        return self._surely(lambda: self._client.remove_toxic(proxy, name, deadline_s))

    def strike_all(self) -> None:
        """The server has ended, and every proxy with it."""
        for name in sorted(self._made):
            self._strike(name)

    def _surely(self, call: Callable[[], T]) -> T:
        try:
            return call()
        except ProxyUnreachable as error:
            if self._restart is None:
                raise
            _LOG.warning("the proxy server is started anew: %s", error)
            made = dict(self._made)
            self.strike_all()
            self._client = self._restart()
            for name, (listen, upstream) in made.items():
                self.create(name, listen, upstream)
            return call()

    def _strike(self, name: str) -> None:
        self._ledger.proxy_gone(self._client.url, name)
        self._made.pop(name, None)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._client, name)
