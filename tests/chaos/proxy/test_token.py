"""The token of the proxy's API: where it comes from, and who needs it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from chaos.errors import UsageError
from chaos.proxy.__main__ import main
from chaos.proxy.client import ProxyClient
from chaos.proxy.process import ProxyProcess
from chaos.proxy.token import TOKEN_VARIABLE, admits, is_loopback, read_token

ROOT = Path(__file__).parents[3]
VALUE = "0123456789abcdef"


@pytest.fixture
def token_file(tmp_path):
    def write(text: str, mode: int = 0o600) -> str:
        path = tmp_path / "token"
        path.write_text(text)
        path.chmod(mode)
        return str(path)

    return write


def test_the_file_wins_over_the_environment(token_file):
    assert read_token(token_file(VALUE + "\n"), environ={TOKEN_VARIABLE: "x" * 20}) == (
        VALUE
    )
    assert read_token(environ={TOKEN_VARIABLE: VALUE}) == VALUE
    assert read_token(environ={}) == ""


@pytest.mark.parametrize("value", ["", "short", "spaces in it are bad", "é" * 16])
def test_a_bad_token_is_refused_untold(value):
    with pytest.raises(UsageError) as caught:
        read_token(environ={TOKEN_VARIABLE: value})

    assert not value or value not in str(caught.value)


@pytest.mark.parametrize("path", ["/no/such", "/", "a\0b"])
def test_a_bad_file_is_named(path):
    with pytest.raises(UsageError, match="--token-file"):
        read_token(path)


def test_a_file_that_others_may_read_is_refused(token_file):
    with pytest.raises(UsageError, match="chmod 600"):
        read_token(token_file(VALUE, mode=0o644))


def test_only_the_whole_header_is_admitted():
    assert admits(VALUE, f"Bearer {VALUE}")
    assert not any(admits(VALUE, h) for h in ("", VALUE, f"Bearer {VALUE}x", "Bearer "))


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "example.org", "10.0.0.1", ""])
def test_what_is_not_loopback(host):
    assert not is_loopback(host)


def test_a_short_token_does_not_open_the_door_wider(monkeypatch, capsys):
    monkeypatch.setenv(TOKEN_VARIABLE, "short")

    assert main(["--listen", "0.0.0.0:0"]) == 2
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    assert "16 to 4096 characters" in said


def test_a_token_on_the_command_line_is_no_option():
    command = [sys.executable, "-m", "chaos.proxy", "--token", VALUE]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, timeout=20)

    assert done.returncode == 2


def test_a_harness_with_a_token_starts_and_drives_its_own_server(monkeypatch):
    monkeypatch.setenv(TOKEN_VARIABLE, VALUE)
    with ProxyProcess.start() as server:
        client = server.client()
        client.create("p", "127.0.0.1:0", "127.0.0.1:9")

        assert set(client.proxies()) == {"p"}
        with pytest.raises(Exception, match="401"):
            ProxyClient(server.url).proxies()
        assert VALUE not in Path(f"/proc/{server.pid}/cmdline").read_text()


def test_an_api_without_a_token_opens_no_proxy_wider_than_itself(raw_call, monkeypatch):
    monkeypatch.delenv(TOKEN_VARIABLE, raising=False)
    with ProxyProcess.start() as server:
        for listen in ("0.0.0.0:0", "[::]:0", "example.org:0"):
            body = {"name": "p", "listen": listen, "upstream": "127.0.0.1:9"}

            status, document = raw_call(server.url, "POST", "/proxies", body)[:2]
            assert status == 403, document
        made = {"name": "p", "listen": "127.0.0.1:0", "upstream": "127.0.0.1:9"}
        assert raw_call(server.url, "POST", "/proxies", made)[0] == 201
        wider = {"listen": "0.0.0.0:0"}
        assert raw_call(server.url, "POST", "/proxies/p", wider)[0] == 403
    assert os.environ.get(TOKEN_VARIABLE) is None
