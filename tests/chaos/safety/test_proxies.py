from __future__ import annotations

import pytest

from chaos.safety.ledger import Ledger, read_ledger
from chaos.safety.proxies import RecordingClient


class FakeClient:
    """A proxy server that only remembers."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.made: dict[str, str] = {}

    def create(self, name: str, listen: str, upstream: str) -> None:
        self.made[name] = f"{listen} {upstream}"

    def delete(self, name: str) -> None:
        del self.made[name]

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
