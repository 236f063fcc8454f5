"""Admin doors that break off, or talk of something else, are errors of one line."""

from __future__ import annotations

import socket
import threading

import pytest

from chaos.errors import HarnessError
from chaos.systems.doors import ask
from chaos.systems.mooncake.admin import Admin

BREAKS_OFF = b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n{}"
NO_HTTP = b"* OK mail is ready\r\n"
WORDS = b"HTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\nleader"


@pytest.fixture
def door():
    """Answers one question with these bytes; where it is."""
    threads = []

    def serve(listener, answer):
        with listener:
            peer, _ = listener.accept()
            with peer:
                peer.recv(4096)
                peer.sendall(answer)

    def build(answer):
        listener = socket.create_server(("127.0.0.1", 0))
        thread = threading.Thread(target=serve, args=(listener, answer))
        thread.start()
        threads.append(thread)
        return "{}:{}".format(*listener.getsockname())

    yield build
    for thread in threads:
        thread.join(5)


@pytest.mark.parametrize("answer", [BREAKS_OFF, NO_HTTP])
def test_an_answer_that_is_none_is_an_error_of_the_harness(door, answer) -> None:
    with pytest.raises(HarnessError, match="does not answer"):
        ask("engine-0", door(answer), "GET", "/state")
    with pytest.raises(HarnessError, match="does not answer"):
        Admin(address=door(answer)).text("/metrics")


def test_words_where_json_is_due_are_an_error_that_shows_them(door) -> None:
    with pytest.raises(HarnessError, match="leader"):
        ask("engine-0", door(WORDS), "GET", "/state")
