"""A proxy client that writes into the ledger which proxies it made.

Our own proxy server dies with the harness; a Toxiproxy that was there before does not,
and only the ledger then knows which proxies on it were ours. A server of ours that is
restarted (see `chaos.proxy.undo`) keeps its address, so the rows stay true.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from chaos.proxy.client import ProxyClient, ProxyInfo
    from chaos.safety.ledger import Ledger


class RecordingClient:
    """Everything of `ProxyClient`; `create` and `delete` leave a row in the ledger."""

    def __init__(self, client: ProxyClient, ledger: Ledger) -> None:
        self._client = client
        self._ledger = ledger
        self._made: set[str] = set()

    def create(self, name: str, listen: str, upstream: str) -> ProxyInfo:
        """Makes a proxy; its row is on disk before it exists."""
        self._ledger.proxy(self._client.url, name)
        self._made.add(name)
        return self._client.create(name, listen, upstream)

    def delete(self, name: str) -> None:
        self._client.delete(name)
        self._strike(name)

    def strike_all(self) -> None:
        """The server has ended, and every proxy with it."""
        for name in sorted(self._made):
            self._strike(name)

    def _strike(self, name: str) -> None:
        self._ledger.proxy_gone(self._client.url, name)
        self._made.discard(name)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._client, name)
