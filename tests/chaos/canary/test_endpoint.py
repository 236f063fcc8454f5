from __future__ import annotations

import time

import pytest

from chaos.canary.endpoint import Endpoint, check_url, model_of, prompt_text
from chaos.errors import UsageError
from chaos.systems.base import Request


@pytest.fixture
def server(openai_server):
    return openai_server


def request(tokens=1000, blocks=(1, 2), output=8):
    return Request(
        request_id="r0",
        session="s0",
        at_s=0.0,
        input_length=tokens,
        output_length=output,
        hash_ids=blocks,
    )


def endpoint(server, **fields):
    return Endpoint(url=server.url, model="tiny", **fields)


def test_a_stream_gives_ttft_pace_and_cached_tokens(server):
    server.lines = [0.05, *server.stream(gap_s=0.02)]

    found = endpoint(server).ask(request(), timeout_s=5)

    assert found.ok
    assert found.text == "abcd"
    assert 0.07 <= found.ttft_s < found.e2e_s < 5
    assert 0.015 <= found.tpot_s < 2
    assert (found.prompt_tokens, found.cached_tokens) == (1000, 768)


def test_what_is_asked_is_a_stream_with_usage(server):
    endpoint(server, key="not-a-real-key", max_tokens=5).ask(request(), timeout_s=5)

    (body,) = server.bodies
    assert body["path"] == "/v1/completions"
    assert body["stream"] is True
    assert body["stream_options"] == {"include_usage": True}
    assert (body["max_tokens"], body["temperature"], body["model"]) == (5, 0, "tiny")
    assert server.headers[0]["Authorization"] == "Bearer not-a-real-key"


def test_chat_is_asked_in_messages_and_read_in_deltas(server):
    server.lines = [
        server.event({"choices": [{"delta": {"role": "assistant"}}]}),
        server.event({"choices": [{"delta": {"content": "hi"}}]}),
        b"data: [DONE]\n\n",
    ]

    found = endpoint(server, api="chat").ask(request(), timeout_s=5)

    assert (found.ok, found.text) == (True, "hi")
    assert server.bodies[0]["path"] == "/v1/chat/completions"
    assert server.bodies[0]["messages"][0]["role"] == "user"


def test_what_a_server_does_not_report_is_not_measured(server):
    server.lines = server.stream(usage=None)

    found = endpoint(server).ask(request(), timeout_s=5)

    assert found.ok
    assert (found.prompt_tokens, found.cached_tokens, found.tpot_s) == (None,) * 3


@pytest.mark.parametrize(
    ("lines", "error"),
    [
        ({"end": b""}, "cut"),
        ({"pieces": ()}, "no text"),
        ([b"data: {broken\n\n"], "JSONDecodeError"),
        ([b'data: {"error": {"message": "out of memory"}}\n\n'], "out of memory"),
        ([b"data: 17\n\n"], "no object"),
    ],
    ids=["cut", "empty", "no json", "error", "no object"],
)
def test_a_stream_that_is_no_answer_is_a_failed_request(server, lines, error):
    server.lines = server.stream(**lines) if isinstance(lines, dict) else lines

    found = endpoint(server).ask(request(), timeout_s=5)

    assert not found.ok
    assert error in found.error
    assert found.ttft_s is None


def test_a_refusal_is_a_failed_request_with_its_status(server):
    server.status, server.lines = 503, [b"busy"]

    found = endpoint(server).ask(request(), timeout_s=5)

    assert (found.ok, found.error) == (False, "HTTP 503: busy")


def test_nobody_there_is_a_failed_request(server):
    server.stop()

    found = endpoint(server).ask(request(), timeout_s=5)

    assert "ConnectionRefused" in found.error


def test_a_silent_server_is_given_up_in_time(server):
    server.lines = [0.6, *server.stream()]

    begin = time.monotonic()
    found = endpoint(server).ask(request(), timeout_s=0.2)

    assert not found.ok
    assert time.monotonic() - begin < 0.55


def test_a_trickle_does_not_outlast_the_timeout(server):
    server.lines = server.stream(pieces="x" * 20, gap_s=0.05)

    found = endpoint(server).ask(request(), timeout_s=0.3)

    assert "in time" in found.error


def test_equal_blocks_are_equal_text_and_a_cut_block_is_its_beginning():
    whole = prompt_text(request(1024, (5, 6)))
    cut = prompt_text(request(600, (5, 6)))
    other = prompt_text(request(1024, (5, 7)))

    assert whole.startswith(cut)
    assert len(whole.split()) == 1024
    assert other.split()[:512] == whole.split()[:512]
    assert other.split()[512:] != whole.split()[512:]


def test_the_first_model_is_taken(server):
    assert model_of(server.url, "") == "tiny"


@pytest.mark.parametrize("models", [{}, {"data": []}, []])
def test_a_server_without_a_model_is_a_usage_error(server, models):
    server.models = models

    with pytest.raises(UsageError, match="--model"):
        model_of(server.url, "")


@pytest.mark.parametrize(
    "url", ["ftp://h", "http://", "http://h:port", "http://h/?q=1", "h:80"]
)
def test_what_is_no_url_is_refused(url):
    with pytest.raises(UsageError, match="no URL"):
        check_url(url)


def test_a_password_in_a_url_is_refused_without_showing_it():
    with pytest.raises(UsageError) as refused:
        check_url("http://me:hunter2@host:80")

    assert "hunter2" not in str(refused.value)


def test_the_key_is_never_shown(server):
    assert "not-a-real-key" not in repr(endpoint(server, key="not-a-real-key"))


def test_a_base_with_v1_is_the_same_base(server):
    found = Endpoint(url=f"{server.url}/v1", model="tiny").ask(request(), timeout_s=5)

    assert found.ok
    assert server.bodies[0]["path"] == "/v1/completions"
