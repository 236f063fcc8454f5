"""Answers that no Prometheus server should give: each is one line for the operator."""

from __future__ import annotations

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from socketserver import TCPServer

import pytest

from chaos.canary.sources.prometheus_api import PrometheusServer
from chaos.canary.sources.queries import PRESETS, queries_of
from chaos.errors import UsageError
from chaos.report.redaction import clean_text


class Listener(ThreadingHTTPServer):
    daemon_threads = True

    def server_bind(self):
        TCPServer.server_bind(self)
        self.server_name, self.server_port = self.server_address[:2]


@pytest.fixture
def server():
    """A server that answers what `server.body` says."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self):
            listener.asked = self.rfile.read(int(self.headers["Content-Length"] or 0))
            listener.sent = dict(self.headers)
            self.send_response(listener.status)
            for name, value in listener.extra.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(listener.body)

        do_GET = do_POST

        def log_message(self, *args):
            """Says nothing."""

    listener = Listener(("127.0.0.1", 0), Handler)
    listener.status, listener.body, listener.extra = 200, b"", {}
    listener.url = f"http://127.0.0.1:{listener.server_port}"
    thread = threading.Thread(target=listener.serve_forever, args=(0.02,))
    thread.start()
    yield listener
    listener.shutdown()
    thread.join()
    listener.server_close()


def matrix(*rows):
    data = {"resultType": "matrix", "result": list(rows)}
    return json.dumps({"status": "success", "data": data}).encode()


ROW = {"metric": {"__name__": "m", "a": "b"}, "values": [[1, "5"], [2, "6"], [9, "7"]]}


def ask(server, **options):
    return PrometheusServer(server.url, **options).samples("m", 'a="b"', 0.0, 5.0)


def test_samples_inside_the_window_are_what_comes_back(server) -> None:
    server.body = matrix(ROW)
    (series,) = ask(server)

    assert dict(series.labels) == {"a": "b"}
    assert series.times.tolist() == [1, 2]
    assert series.values.tolist() == [5, 6]
    assert b"query=m%7Ba%3D%22b%22%7D%5B5s%5D" in server.asked


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"<html>",
        b"[]",
        b"null",
        b'{"status": "error"}',
        b'{"status": "success", "data": []}',
        b'{"status": "success", "data": {"resultType": "vector", "result": []}}',
        b'{"status": "success", "data": {"resultType": "matrix"}}',
        b"[" * 100_000,
        matrix({"metric": {}, "values": [[1]]}),
        matrix({"metric": {}, "values": [[1, "x"]]}),
        matrix({"values": []}),
        matrix(7),
        matrix({**ROW}).replace(b'"data"', b'"warnings": ["partial"], "data"'),
    ],
    ids=lambda body: str(len(body)),
)
def test_an_answer_of_another_kind_is_refused(server, body) -> None:
    server.body = body

    with pytest.raises(UsageError, match=server.url):
        ask(server)


@pytest.mark.parametrize("status", [400, 401, 404, 422, 500, 503])
def test_a_status_is_told_with_its_reason(server, status) -> None:
    server.status, server.body = status, json.dumps({"error": "so it is"}).encode()

    with pytest.raises(UsageError, match=rf"answered {status}: so it is"):
        ask(server)


def test_nobody_there_is_told() -> None:
    with pytest.raises(UsageError, match="no answer"):
        PrometheusServer("http://127.0.0.1:1").samples("m", "", 0.0, 1.0)


@pytest.mark.parametrize("url", ["", "x", "ftp://h", "http://", "http://h:x", "//h"])
def test_an_address_that_is_none_is_refused(url) -> None:
    with pytest.raises(UsageError, match="is no address"):
        PrometheusServer(url)


def test_a_password_of_the_address_is_sent_and_never_shown(server) -> None:
    server.body = matrix()
    url = server.url.replace("http://", "http://eve:s3cretword@")
    found = PrometheusServer(url)
    found.samples("m", "", 0.0, 1.0)

    assert server.sent["Authorization"].startswith("Basic ")
    assert "s3cretword" not in found.url
    assert "s3cretword" not in clean_text("it is s3cretword")


def test_a_token_does_not_follow_a_redirect(server) -> None:
    server.status = 302
    server.extra = {"Location": f"{server.url}/elsewhere"}
    with pytest.raises(UsageError):
        ask(server, token="tok-abcdefgh")

    assert "Authorization" not in server.sent


@pytest.mark.parametrize("name", PRESETS)
def test_presets_are_queries(name) -> None:
    assert "ttft_s" in queries_of(name).metrics


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("", "empty"),
        ("schema: x", "q.yaml:1: schema"),
        ("schema: canary.queries/1\nmetrics: {}", "q.yaml:2: metrics"),
        ("schema: canary.queries/1\nmetrics: {ttft: m}", "metrics"),
        ("schema: canary.queries/1\nmetrics: {t_s: 'm)'}", "q.yaml:2: metrics.t_s"),
        ("schema: canary.queries/1\nmetrics: {t_s: m}\nother: 1", "q.yaml:3: other"),
    ],
)
def test_a_mistake_in_a_file_of_queries_is_told_with_its_place(
    tmp_path, monkeypatch, text, told
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "q.yaml").write_text(text)

    with pytest.raises(UsageError) as caught:
        queries_of("q.yaml")
    assert told in str(caught.value)
