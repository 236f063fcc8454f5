"""A tiny OpenAI-compatible server for the tests of live runs."""

from __future__ import annotations

import json
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from socketserver import TCPServer

import numpy as np
import pytest

from chaos.safety.ledger import state_directory

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


def measured_rows(*, rows=400, seed=1, slow=1.0):
    """Requests of an arm: the trace is always the same, the noise is of the seed."""
    trace, own = np.random.default_rng(7), np.random.default_rng(seed)
    base = trace.lognormal(-1.5, 0.4, rows)
    for number in range(rows):
        ttft = float(base[number] * own.lognormal(0, 0.05) * slow)
        yield {
            "request": number,
            "session": f"s-{number % 40}",
            "host": f"engine-{number % 2}",
            "class": "4k" if number % 3 else "16k",
            "arm_turn": number % 2,
            "start_s": round(number * 0.05, 6),
            "ok": True,
            "cause": "",
            "ttft_s": round(ttft, 6),
            "tpot_s": None,
            "e2e_s": round(ttft + 0.1, 6),
            "prompt_tokens": 4096,
            "hit_tokens": 3072,
            "lag_s": 0.0004,
            "rpcs": 3,
        }


def measured_meta(arm, rows, **fields):
    meta = {
        "schema": "canary.samples/1",
        "arm": arm,
        "system": "example",
        "build": f"{arm}-build",
        "time_scale": 0.1,
        "seed": 7,
        "complete": True,
        "requests": rows,
        "started_at": 1_700_000_000.0,
        "ended_at": 1_700_000_000.0 + rows * 0.05 + 1,
        "counters": {"wrong_bytes": 0, "hangs": 0, "residual_faults": 0},
    }
    return {**meta, **fields}


@pytest.fixture
def measured(tmp_path):
    """Writes a measurement directory: `measured("canary", seed=2, slow=1.3)`."""

    def write(arm, *, rows=400, seed=1, slow=1.0, folder=None, **meta):
        path = tmp_path / (folder or arm)
        path.mkdir()
        lines = (json.dumps(r) for r in measured_rows(rows=rows, seed=seed, slow=slow))
        (path / "requests.jsonl").write_text("".join(f"{line}\n" for line in lines))
        (path / "meta.json").write_text(json.dumps(measured_meta(arm, rows, **meta)))
        return path

    return write


def canary_samples(
    arm,
    rng,
    *,
    rows=3000,
    paired=False,
    scale=1.0,
    errors=0.0,
    hit=0.6,
    trace_seed=5,
    counters=None,
    **changes,
):
    """An arm as columns: lognormal times to first token, whole and without a doubt.

    Prompts are of `trace_seed`, so that paired arms are asked the same.
    """
    from chaos.canary.samples import Columns

    trace = np.random.default_rng(trace_seed)
    prompt = trace.normal(0, 0.5, rows)
    tokens = np.round(2000 * np.exp(prompt)) + 1
    ttft = 0.4 * scale * np.exp(prompt + rng.normal(0, 0.2, rows))
    fields = {
        "ok": rng.random(rows) >= errors,
        "metrics": {"ttft_s": ttft},
        "request": np.arange(rows) if paired else None,
        "sessions": [f"s-{i % max(1, rows // 5)}" for i in range(rows)],
        "classes": ["4k" if i % 3 else "16k" for i in range(rows)],
        "start_s": np.arange(rows) * 0.05,
        "hit_tokens": tokens * np.clip(rng.normal(hit, 0.02, rows), 0, 1),
        "prompt_tokens": tokens,
        "lag_s": np.full(rows, 0.0004),
        "counters": {"wrong_bytes": 0, "hangs": 0, "residual_faults": 0}
        | (counters or {}),
        "complete": True,
        "meta": {"requests": rows, "seed": 1, "time_scale": 1.0},
    }
    return Columns(arm=arm, **(fields | changes)).samples()


@pytest.fixture
def arm_of():
    """Builds `Samples`; see `canary_samples`."""
    return canary_samples


@pytest.fixture
def ledgers_of():
    """The ledgers that a process left; others may run beside it."""
    return lambda pid: sorted(state_directory().glob(f"run-{pid}-*"))
