from __future__ import annotations

import http.server
import json
import threading

import pytest

from refimpl.errors import UsageError
from refimpl.hicache.storage.segments import Segments, fetch_from, segments_of

ROW = {"segment_name": "10.0.0.1:13000", "te_endpoint": "10.0.0.1:15001"}


def document(*rows):
    return {"total_segments": len(rows), "segments": list(rows)}


def test_a_segment_is_known_by_the_endpoint_that_reads_go_to():
    assert segments_of(document({**ROW, "status": "OK"})) == {
        "10.0.0.1:15001": "10.0.0.1:13000"
    }


@pytest.mark.parametrize("status", ["UNMOUNTING", "GRACEFUL_UNMOUNTING", "DRAINING"])
def test_a_segment_that_takes_no_objects_is_none(status):
    assert segments_of(document({**ROW, "status": status})) == {}


@pytest.mark.parametrize("bad", [None, [], {}, {"segments": 3}, {"segments": [3]}])
def test_another_document_is_refused(bad):
    with pytest.raises(ValueError, match="get_segments_detail"):
        segments_of(bad)


class _Clock:
    now = 0.0

    def __call__(self):
        return self.now


@pytest.fixture
def watched():
    made = []

    def build(fetch, **how):
        made.append(Segments(fetch, **how))
        return made[-1]

    yield build
    for one in made:
        one.close()


def heard(segments):
    end = threading.Event()
    for _ in range(500):
        if segments.known() is not None or segments.failures:
            return
        end.wait(0.01)


def test_what_is_not_known_is_none_and_so_is_what_is_stale(watched):
    clock = _Clock()
    segments = watched(lambda: {"e": "s"}, every_s=60, stale_s=5, clock=clock)
    heard(segments)
    fresh = segments.known()
    clock.now = 6.0

    assert fresh == {"e": "s"}
    assert segments.known() is None


def test_a_master_that_does_not_answer_is_counted_and_asked_again(watched):
    answers = [OSError("refused"), {"e": "s"}]

    def fetch():
        found = answers.pop(0) if answers else {"e": "s"}
        if isinstance(found, Exception):
            raise found
        return found

    segments = watched(fetch, every_s=0.01)
    end = threading.Event()
    for _ in range(500):
        if segments.known():
            break
        end.wait(0.01)

    assert segments.known() == {"e": "s"}
    assert segments.failures == 1


class _Admin(http.server.BaseHTTPRequestHandler):
    status = 200

    def do_GET(self):
        body = json.dumps(document(ROW)).encode()
        self.send_response(self.server.answer)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *args):
        pass


@pytest.fixture
def admin():
    server = http.server.HTTPServer(("127.0.0.1", 0), _Admin)
    server.answer = 200
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    yield server
    server.shutdown()
    thread.join()
    server.server_close()


def test_the_admin_is_asked_over_http_and_an_error_is_no_answer(admin):
    fetch = fetch_from(f"127.0.0.1:{admin.server_port}")

    assert fetch() == {"10.0.0.1:15001": "10.0.0.1:13000"}
    admin.answer = 503
    with pytest.raises(ValueError, match="503"):
        fetch()


def test_an_admin_that_is_no_address_is_told_at_once():
    with pytest.raises(UsageError, match="--mooncake-admin"):
        fetch_from("nowhere")
