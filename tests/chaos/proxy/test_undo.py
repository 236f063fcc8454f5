"""Faults are taken back from servers that hang: bounded, and told."""

from __future__ import annotations

import contextlib
import socket
import threading
import time

import pytest

from chaos.errors import FaultNotInjected, ProxyUnreachable, ResidualFault
from chaos.proxy.client import ProxyClient
from chaos.proxy.process import ProxyProcess, find_toxiproxy

TOXIC = "timeout_downstream"
AT_MOST_S = 5.0


@contextlib.contextmanager
def at_most(seconds: float):
    start = time.monotonic()
    yield
    assert time.monotonic() - start < seconds


def armed(fake, *, ours: bool = True) -> ProxyClient:
    """A client that made the proxy "p" of the fake and put a toxic on it."""
    restart = fake.restart if ours else None
    client = ProxyClient(fake.url, timeout_s=0.5, restart=restart)
    client.create("p", "127.0.0.1:1", "u:1")
    client.add_toxic("p", "timeout")
    return client


def test_what_this_client_made_is_undone_without_a_read_before(fake):
    client = armed(fake)
    fake.calls.clear()

    assert client.remove_toxics([("p", TOXIC)]).removal == "removed"
    assert fake.calls == [f"DELETE /proxies/p/toxics/{TOXIC}", "GET /proxies/p/toxics"]


def test_a_server_of_ours_that_hangs_is_restarted_with_its_proxies(fake):
    client = armed(fake)
    fake.hangs = True

    with at_most(AT_MOST_S):
        undone = client.remove_toxics([("p", TOXIC)])

    assert undone.removal == "restarted"
    assert str(undone) == "removed by restarting the proxy server (p hung)"
    assert (fake.restarts, fake.exists, fake.toxics) == (1, True, {})
    assert client.removals == {"restarted": 1}


@pytest.mark.slow
def test_a_restart_leaves_the_toxics_of_other_faults_armed(fake):
    client = armed(fake)
    client.add_toxic("p", "latency", attributes={"latency": 9})
    fake.hangs = True

    client.remove_toxic("p", TOXIC)

    assert list(fake.toxics) == ["latency_downstream"]
    assert fake.toxics["latency_downstream"]["attributes"] == {"latency": 9}
    assert fake.enabled


def test_a_restart_that_fails_is_a_residual_fault(fake):
    client = armed(fake)
    fake.hangs, fake.recreate_status = True, 500

    with at_most(AT_MOST_S), pytest.raises(ResidualFault, match="after a restart"):
        client.remove_toxic("p", TOXIC)


def test_a_server_of_somebody_else_that_hangs_is_named_with_the_remedy(fake):
    client = armed(fake, ours=False)
    fake.hangs = True

    with at_most(AT_MOST_S), pytest.raises(ResidualFault) as caught:
        client.remove_toxic("p", TOXIC)

    assert caught.value.target == "p"
    assert "who must restart it" in caught.value.reason
    assert "chaos recover" in caught.value.reason


def test_a_server_that_died_is_not_started_again(dead_address):
    client = ProxyClient(f"http://{dead_address}", restart=lambda: pytest.fail("no"))
    client._flavour = "toxiproxy"

    with pytest.raises(ResidualFault, match="died"):
        client.remove_toxic("p", TOXIC)


@pytest.mark.slow
def test_arming_on_a_proxy_that_hangs_is_not_injected_and_undone(fake):
    client = armed(fake)
    fake.hangs = True

    with at_most(AT_MOST_S), pytest.raises(FaultNotInjected, match="no answer"):
        client.add_toxic("p", "latency")
    with at_most(AT_MOST_S):
        client.remove_toxics([("p", "latency_downstream"), ("p", TOXIC)])

    assert fake.toxics == {}


@pytest.mark.parametrize("hangs", [False, True])
def test_healing_removes_and_enables_everything(fake, hangs):
    client = armed(fake)
    client.set_enabled("p", False)
    fake.hangs = hangs

    with at_most(AT_MOST_S):
        client.heal(["p"])

    assert (fake.toxics, fake.enabled, fake.restarts) == ({}, True, int(hangs))


def test_healing_leaves_the_proxies_of_others_alone(fake):
    client = armed(fake)

    client.heal(["q"])

    assert list(fake.toxics) == [TOXIC]


@pytest.mark.slow
def test_healing_a_hung_server_of_somebody_else_is_a_residual_fault(fake):
    client = armed(fake, ours=False)
    fake.hangs = True

    with at_most(AT_MOST_S), pytest.raises(ResidualFault, match="must restart it"):
        client.heal(["p"])


def test_healing_does_not_start_a_dead_server_again(dead_address):
    client = ProxyClient(f"http://{dead_address}", restart=lambda: pytest.fail("no"))

    with pytest.raises(ProxyUnreachable):
        client.heal(["p"])


def test_a_deletion_that_hangs_restarts_the_server_without_the_proxy(fake):
    client = armed(fake)
    fake.hangs = True

    with at_most(AT_MOST_S):
        client.delete("p")

    assert (fake.restarts, fake.exists) == (1, False)


def test_deletions_that_hang_together_restart_the_server_once(fake):
    client = armed(fake)
    fake.hangs = True
    threads = [threading.Thread(target=client.delete, args=("p",)) for _ in range(4)]

    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert fake.restarts == 1


class Blocked:
    """A real Toxiproxy of its own that hangs on the removal of a delay.

    It holds data back for clients that are gone; with clients that come, its accept
    loop hangs as well, and with it all of its API once the proxy is deleted.
    """

    def __init__(self, server: ProxyProcess, *, clients_come: bool) -> None:
        self.server = server
        self._stop = threading.Event()
        self._sockets = [socket.create_server(("127.0.0.1", 0))]
        self._sockets[0].settimeout(5)
        self._came: list[socket.socket] = []
        self.upstream = f"127.0.0.1:{self._sockets[0].getsockname()[1]}"
        client = server.client()
        self.info = client.create("slow", "127.0.0.1:0", self.upstream)
        self.other = client.create("other", "127.0.0.1:0", self.upstream)
        client.add_toxic("other", "latency", attributes={"latency": 1})
        client.add_toxic("slow", "latency", attributes={"latency": 30_000})
        for _ in range(4):
            self._leave_data_behind()
        self._comes = threading.Thread(target=self._come if clients_come else int)
        self._comes.start()

    def relays(self) -> bool:
        """Whether the proxy carries data there and back now."""
        with socket.create_connection(self.info.address, timeout=5) as near:
            near.sendall(b"ping")
            while True:
                far, _ = self._sockets[0].accept()
                with far:
                    far.settimeout(5)
                    if far.recv(4) == b"ping":
                        far.sendall(b"pong")
                        return near.recv(4) == b"pong"

    def close(self) -> None:
        self.stop_coming()
        for each in self._sockets:
            each.close()

    def stop_coming(self) -> None:
        self._stop.set()
        self._comes.join()
        for near in self._came:
            near.close()

    def _leave_data_behind(self) -> None:
        with socket.create_connection(self.info.address, timeout=5):
            far, _ = self._sockets[0].accept()
            self._sockets.append(far)
            far.settimeout(0.2)
            with contextlib.suppress(TimeoutError):
                for _ in range(100):
                    far.sendall(bytes(65_536))

    def _come(self) -> None:
        while not self._stop.wait(0.005):
            with contextlib.suppress(OSError):
                near = socket.create_connection(self.info.address, timeout=0.2)
                self._came.append(near)


@pytest.fixture(params=[False, True], ids=["clients-gone", "clients-come"])
def blocked(request):
    binary = find_toxiproxy()
    if binary is None:
        pytest.skip(
            "no toxiproxy-server of our own: set MOONQUAKE_TOXIPROXY"
            " (scripts/build-toxiproxy DIR builds it)"
        )
    with ProxyProcess.start_toxiproxy(binary) as server:
        blocked = Blocked(server, clients_come=request.param)
        yield blocked
        blocked.close()
        server.restart()  # one that hangs would take its grace to end


def test_a_real_server_that_hangs_gives_the_delay_back(blocked):
    client = blocked.server.client()

    with at_most(AT_MOST_S):
        undone = client.remove_toxics([("slow", "latency_downstream")])

    blocked.stop_coming()
    assert undone.removal in ("recreated", "restarted")
    assert undone.hung == ("slow",)
    assert client.toxics("slow") == {}
    assert client.proxy("slow").listen == blocked.info.listen
    assert list(client.toxics("other")) == ["latency_downstream"]
    assert blocked.relays()


def test_a_real_server_of_somebody_else_is_freed_or_named(blocked):
    client = ProxyClient(blocked.server.url)
    client.flavour  # noqa: B018 - asked before it hangs

    with at_most(AT_MOST_S):
        try:
            how = client.remove_toxic("slow", "latency_downstream")
        except ResidualFault as error:
            how = error.reason

    assert how == "recreated" or "who must restart it" in how


def test_a_real_server_that_hangs_is_healed_for_the_next_test(blocked):
    client = blocked.server.client()
    with contextlib.suppress(ProxyUnreachable):
        path = "/proxies/slow/toxics/latency_downstream"
        client.call("delete", path, timeout_s=0.2)

    with at_most(AT_MOST_S):
        client.heal(["slow", "other"])

    blocked.stop_coming()
    assert client.toxics("slow") == client.toxics("other") == {}
    assert blocked.server.restarts == 1
    assert blocked.relays()
