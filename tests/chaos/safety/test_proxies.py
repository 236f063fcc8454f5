from __future__ import annotations

import pytest

from chaos.errors import ProxyUnreachable
from chaos.safety.ledger import Ledger, read_ledger
from chaos.safety.proxies import RecordingClient


class FakeClient:
    """A proxy server that may hang."""

    def __init__(self, url: str, *, hangs: bool = False) -> None:
        self.url = url
        self.hangs = hangs
        self.made: dict[str, str] = {}

    def create(self, name: str, listen: str, upstream: str) -> None:
        self.made[name] = f"{listen} {upstream}"

    def delete(self, name: str) -> None:
        del self.made[name]

    def toxics(self, proxy: str) -> dict[str, object]:
        if self.hangs:
            raise ProxyUnreachable(url=self.url, call="GET", reason="timeout")
        return {}

    def version(self) -> str:
        return "2"


@pytest.fixture
def ledger(tmp_path):
    ledger = Ledger.create(tmp_path)
    yield ledger
    ledger.close()


def test_what_was_made_stands_in_the_ledger_until_it_is_gone(ledger) -> None:
    client = RecordingClient(FakeClient("http://a"), ledger)
    client.create("one", "l", "u")
    client.create("two", "l", "u")
    client.delete("one")
    assert read_ledger(ledger.path).proxies == {("http://a", "two")}

    client.strike_all()

    assert read_ledger(ledger.path).proxies == set()
    assert client.version() == "2"


def test_a_hung_server_of_ours_is_replaced_with_the_same_proxies(ledger) -> None:
    new = FakeClient("http://b")
    client = RecordingClient(FakeClient("http://a", hangs=True), ledger, lambda: new)
    client.create("one", "1", "2")

    assert client.toxics("one") == {}

    assert new.made == {"one": "1 2"}
    assert read_ledger(ledger.path).proxies == {("http://b", "one")}


def test_a_hung_server_of_somebody_else_is_an_error(ledger) -> None:
    client = RecordingClient(FakeClient("http://a", hangs=True), ledger)

    with pytest.raises(ProxyUnreachable):
        client.toxics("one")
