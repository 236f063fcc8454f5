"""The two ends of a probe, over a real socket, with a client that only remembers."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from chaos.errors import HarnessError, NotHere, UsageError
from chaos.systems.base import ClusterSpec
from chaos.systems.probe import ProbeServer, RemoteProbe, command


class FakeProbe:
    """A dictionary as a pool; `meet` lets callers wait for each other."""

    def __init__(self, host: str, made: list) -> None:
        self.host = host
        self.closed = False
        self.meet: threading.Barrier | None = None
        self.values: dict[str, int] = {}
        made.append(self)

    def write(self, names, *, host="", variant=0, **_):
        if self.meet is not None:
            self.meet.wait(5)
        self.values.update(dict.fromkeys(names, variant))
        return [0] * len(names)

    def read(self, names, *, variant=0, **_):
        codes = [0 if name in self.values else -704 for name in names]
        wrong = sum(self.values.get(name, variant) != variant for name in names)
        return codes, wrong

    def owners(self, names, **_):
        return [(self.host,) if name in self.values else () for name in names]

    def start_write(self, name, **_):
        return 0, 1 << 63

    def write_part(self, names, part, parts, **_):
        raise NotHere(capability="parts", target="fake", reason="one process only")

    def exists(self, names, **_):
        message = "the pool is gone"
        raise RuntimeError(message)

    def close(self):
        self.closed = True


@pytest.fixture
def made():
    return []


@pytest.fixture
def server(made):
    server = ProbeServer("127.0.0.1:0", lambda host: FakeProbe(host, made), "secret")
    server.start()
    yield server
    server.close()


@pytest.fixture
def probe(server):
    probe = RemoteProbe(server.address, "secret", "h1")
    yield probe
    probe.close()


def test_calls_and_answers_keep_their_types(probe) -> None:
    assert probe.write(["a", "b"], variant=3) == [0, 0]
    assert probe.read(["a", "c"], variant=3) == ([0, -704], 0)
    assert probe.owners(["a", "c"]) == [("h1",), ()]
    assert probe.start_write("a") == (0, 1 << 63)


def test_two_probes_are_two_clients(server, probe, made) -> None:
    other = RemoteProbe(server.address, "secret", "h2")
    probe.write(["a"])

    assert other.read(["a"]) == ([-704], 0)
    assert [each.host for each in made] == ["h1", "h2"]
    other.close()


def test_threads_that_share_a_probe_do_not_wait_for_each_other(probe, made) -> None:
    probe.write(["first"])
    made[0].meet = threading.Barrier(8)

    with ThreadPoolExecutor(8) as pool:
        done = list(pool.map(lambda number: probe.write([str(number)]), range(8)))

    assert done == [[0]] * 8


def test_an_error_of_the_client_is_told(probe) -> None:
    with pytest.raises(HarnessError, match="RuntimeError: the pool is gone"):
        probe.exists(["a"])
    assert probe.write(["a"]) == [0]


def test_what_the_client_cannot_do_is_a_skip_and_no_error(probe) -> None:
    with pytest.raises(NotHere, match="one process only") as caught:
        probe.write_part(["a"], 0, 2)
    assert caught.value.capability == "parts"


def test_a_client_that_has_a_start_is_started_before_it_is_timed(probe, made) -> None:
    probe.join()
    joined = []
    made[0].join = lambda: joined.append(1)
    probe.join()

    assert joined == [1]


def test_without_the_token_nothing_is_done(server, made) -> None:
    stranger = RemoteProbe(server.address, "guess")

    with pytest.raises(HarnessError, match="a wrong token"):
        stranger.write(["a"])
    stranger.close()
    assert made == []


def test_only_the_calls_of_a_probe_can_be_called(server, probe) -> None:
    with pytest.raises(HarnessError, match="no call is named '__init__'"):
        probe._call("__init__")


def test_closing_ends_the_client_and_is_safe_when_the_server_is_gone(
    server, made
) -> None:
    probe = RemoteProbe(server.address, "secret")
    probe.write(["a"])
    probe.close()
    assert made[0].closed

    server.close()
    probe.close()


def test_a_probe_that_is_gone_is_a_broken_harness(server) -> None:
    server.close()

    with pytest.raises(HarnessError, match="nobody answers"):
        RemoteProbe(server.address, "secret").write(["a"])


def test_an_open_door_needs_a_token() -> None:
    with pytest.raises(UsageError, match="MOONQUAKE_PROBE_TOKEN"):
        ProbeServer("0.0.0.0:0", lambda host: FakeProbe(host, []))


def test_the_command_line_has_no_secret_and_no_settings() -> None:
    spec = ClusterSpec(overrides={"engine": {"key": "secret"}})
    words = command("python", "refimpl", "10.0.0.1:1", "10.0.0.2:1", spec)

    assert "secret" not in " ".join(words)
