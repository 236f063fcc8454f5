"""The command: `python -m chaos.proxy`, its guard, its ready line, its end."""

from __future__ import annotations

import json
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from chaos.proxy.__main__ import main
from chaos.proxy.process import ProxyProcess

ROOT = Path(__file__).parents[3]


@pytest.mark.parametrize("address", ["0.0.0.0:0", "192.0.2.1:0", "[::]:0"])
def test_an_address_that_is_not_loopback_is_usage(address, capsys):
    assert main(["--listen", address]) == 2
    assert "not loopback" in capsys.readouterr().err


@pytest.mark.parametrize("address", ["127.0.0.1", "127.0.0.1:x", "127.0.0.1:70000"])
def test_an_address_that_is_none_is_usage(address, capsys):
    assert main(["--listen", address]) == 2
    assert capsys.readouterr().err.startswith("chaos proxy: ")


def test_a_parent_that_is_gone_is_usage(capsys):
    assert main(["--listen", "127.0.0.1:0", "--die-with-parent=1"]) == 2
    assert "gone" in capsys.readouterr().err


def start(*arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "chaos.proxy", *arguments],
        stdout=subprocess.PIPE,
        text=True,
        cwd=ROOT,
    )


def ready(process: subprocess.Popen[str]) -> dict:
    assert process.stdout is not None
    return json.loads(process.stdout.readline().removeprefix("chaos proxy ready "))


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_it_says_where_it_listens_and_ends_orderly_on_a_signal(number):
    with start("--listen", "127.0.0.1:0", "--die-with-parent") as process:
        document = ready(process)
        process.send_signal(number)

        assert process.wait(5) == 0
        assert document["url"].startswith("http://127.0.0.1:")
        assert document["pid"] == process.pid


def test_with_a_token_it_listens_anywhere_and_answers_only_bearers(raw_call, tmp_path):
    file = tmp_path / "token"
    file.write_text("s3cret-s3cret-s3cret\n")
    file.chmod(0o600)
    with start("--listen", "0.0.0.0:0", "--token-file", str(file)) as process:
        port = ready(process)["url"].rpartition(":")[2]
        url = f"http://127.0.0.1:{port}"

        assert raw_call(url, "GET", "/version")[0] == 401
        wrong = {"Authorization": "Bearer wrong"}
        assert raw_call(url, "GET", "/version", headers=wrong)[0] == 401
        right = {"Authorization": "Bearer s3cret-s3cret-s3cret"}
        assert raw_call(url, "GET", "/version", headers=right)[0] == 200
        process.terminate()
        assert process.wait(5) == 0


def test_equal_seeds_draw_equal_victims():
    draws = [_draws(seed) for seed in (5, 5, 6)]

    assert draws[0] == draws[1] != draws[2]


def _draws(seed: int) -> list[float]:
    local = ("127.0.0.1", 0)
    with ProxyProcess.start(seed) as server, socket.create_server(local) as upstream:
        client = server.client()
        port = upstream.getsockname()[1]
        info = client.create("p", "127.0.0.1:0", f"127.0.0.1:{port}")
        ends = [socket.create_connection(info.address) for _ in range(8)]
        while len(live := client.connections("p") or []) < 8:
            pass
        for end in ends:
            end.close()
    return [one["draw"] for one in live]
