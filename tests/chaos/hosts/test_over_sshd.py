"""Agents over a real sshd: connections are cut, machines are switched off."""

from __future__ import annotations

import contextlib
import random
import socket
import threading
import time

import pytest

from chaos.errors import HostUnreachable
from chaos.hosts.connectors import SshConnector
from chaos.hosts.lease import Lease
from chaos.hosts.link import Agent
from chaos.targets.lab import Lab, LabShape, why_no_lab
from inventory import SshSession, load

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(bool(why_no_lab()), reason=why_no_lab() or "-"),
]
LOG = "/run/log of the test"


@pytest.fixture(scope="module")
def lab(tmp_path_factory):
    directory = tmp_path_factory.mktemp("lab")
    with Lab.up(
        LabShape.of(1),
        directory=directory / "d",
        inventory=directory / "lab.yaml",
        leases=directory,
    ) as lab:
        yield load(directory / "lab.yaml").hosts[0], lab


@pytest.fixture
def over(lab):
    links = []

    def start(**options):
        session = SshSession(lab[0])
        link = Agent(SshConnector(session))
        links.append(link)
        options = {"run": f"run-{len(links)}", "ttl_s": 60, **options}
        return link.start(controller="test", **options), session

    yield start
    for link in links:
        if link.connector.status():
            link.shutdown()
        link.close()


def cut(session):
    """The connection is gone at once, for both ends."""
    transport = session._transport
    if transport is None or not transport.is_active():
        return 0
    with contextlib.suppress(OSError):  # it ended by itself just now
        transport.sock.shutdown(socket.SHUT_RDWR)
    return 1


def rows_on(entry):
    session = SshSession(entry)
    try:
        return SshConnector(session).status()
    finally:
        session.close()


def test_commands_run_once_while_connections_are_cut_at_random(over):
    """No command is lost and none runs twice, wherever the cuts fall."""
    link, session = over()
    rng, done, cuts = random.Random(7), threading.Event(), []

    def cutting():
        while not done.wait(rng.uniform(0.1, 0.5)):
            cuts.append(cut(session))

    cutter = threading.Thread(target=cutting)
    cutter.start()
    count = 0
    try:
        while sum(cuts) < 6 and count < 500:
            link.run(["tee", "-a", LOG], stdin=f"{count}\n")
            count += 1
    finally:
        done.set()
        cutter.join()
    written = link.run(["cat", LOG]).stdout.split()

    assert written == [str(number) for number in range(count)]
    assert sum(cuts) >= 6


def test_an_agent_outlives_its_connection_and_heals_when_its_lease_ends(over, lab, kit):
    link, session = over(ttl_s=2.0)
    link.arm("f", kind="k", target="t", steps=[kit.touch("/run/made")])
    began = kit.now()
    cut(session)

    assert any(row["alive"] for row in rows_on(lab[0]))
    assert kit.within(2.0 + 5.0, lambda: rows_on(lab[0]) == [])
    assert kit.now() - began > 0.5
    watcher = SshSession(lab[0])
    assert watcher.run(["test", "-e", "/run/made"], timeout_s=10).rc == 1
    watcher.close()


def test_a_lease_is_kept_over_cut_connections(over, kit):
    link, session = over(ttl_s=6.0)
    lease = Lease(link, ttl_s=6.0).start()
    for _ in range(4):
        time.sleep(1.5)
        cut(session)
    lost = lease.lost
    lease.close()

    assert lost == ""
    assert link.hello().expires_in_s > 0


def test_a_host_that_is_switched_off_is_told_and_the_next_run_finds_it_clean(
    over, lab, kit
):
    entry, machines = lab
    link, _ = over()
    link.arm("f", kind="k", target="t", steps=[kit.touch("/run/made")])
    boot = link.hello().boot_id
    machines.reboot(machines.names[0])
    with pytest.raises(HostUnreachable, match="does not answer to hello"):
        link.hello()
    again, _ = over(run="next")

    assert again.hello().run == "next"
    assert boot
    assert [row["run"] for row in rows_on(entry)] == ["next"]
