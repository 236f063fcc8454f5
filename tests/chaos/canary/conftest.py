"""A tiny OpenAI-compatible server for the tests of live runs."""

from __future__ import annotations

import json
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from socketserver import TCPServer

import pytest

USAGE = {
    "prompt_tokens": 1000,
    "completion_tokens": 4,
    "prompt_tokens_details": {"cached_tokens": 768},
}


class Listener(ThreadingHTTPServer):
    daemon_threads = True

    def server_bind(self):
        """Without asking a name server for our own name, which takes a second."""
        TCPServer.server_bind(self)
        self.server_name, self.server_port = self.server_address[:2]


class Server:
    """A tiny OpenAI-compatible server: it says what it was told to, as a stream."""

    def __init__(self):
        self.bodies: list[dict] = []
        self.headers: list[dict] = []
        self.stream, self.event = stream, event
        self.lines: list[bytes | float] = stream()
        self.delay_s = 0.0
        self.status = 200
        self.models: object = {"data": [{"id": "tiny"}]}
        server = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self):
                length = int(self.headers["Content-Length"])
                server.bodies.append(
                    {"path": self.path, **json.loads(self.rfile.read(length))}
                )
                server.headers.append(dict(self.headers))
                self.send_response(server.status)
                self.end_headers()
                time.sleep(server.delay_s)
                for line in server.lines:
                    if isinstance(line, float):
                        time.sleep(line)
                        continue
                    try:
                        self.wfile.write(line)
                        self.wfile.flush()
                    except OSError:
                        return

            def do_GET(self):
                self.send_response(200)
                self.end_headers()
                self.wfile.write(json.dumps(server.models).encode())

            def log_message(self, *_args):
                pass

        self.http = Listener(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.http.server_address[1]}"
        self.thread = threading.Thread(target=self.http.serve_forever, args=(0.01,))
        self.thread.start()

    def stop(self):
        """Safe to call twice."""
        if self.thread.is_alive():
            self.http.shutdown()
            self.http.server_close()
            self.thread.join(5)


def event(document):
    return f"data: {json.dumps(document)}\n\n".encode()


def stream(
    pieces=("a", "b", "c", "d"), gap_s=0.0, usage=USAGE, end=b"data: [DONE]\n\n"
):
    lines: list[bytes | float] = [b": a comment\n"]
    for piece in pieces:
        lines += [gap_s, event({"choices": [{"text": piece}]})]
    if usage:
        lines.append(event({"choices": [], "usage": usage}))
    return [*lines, end]


@pytest.fixture
def openai_servers():
    """Makes servers on demand, each on a port of its own."""
    made = []

    def make():
        made.append(Server())
        return made[-1]

    yield make
    for server in made:
        server.stop()


@pytest.fixture
def openai_server(openai_servers):
    return openai_servers()
