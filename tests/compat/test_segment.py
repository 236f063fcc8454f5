from __future__ import annotations

import random
import socket

import pytest

from refimpl.client import MasterFacts
from refimpl.compat.connected import host_of
from refimpl.compat.segment import PORTS, address_of, client_name, heartbeat_of


def facts(heartbeat):
    return MasterFacts(heartbeat=heartbeat, time_scale=1.0, lease_s=1.0, view=1)


@pytest.mark.parametrize(
    ("bound", "expected"),
    [
        ("10.0.0.1:7", "10.0.0.1:7"),
        ("0.0.0.0:7", "10.9.9.9:7"),
        ("[::]:7", "10.9.9.9:7"),
    ],
)
def test_a_master_on_every_address_is_dialled_where_its_rpc_is(bound, expected):
    assert heartbeat_of(facts(bound), "10.9.9.9:50051") == expected


def test_a_port_in_use_is_not_drawn():
    class Loaded(random.Random):
        def sample(self, _population, _count):
            return [taken, taken, free]

    with socket.create_server(("127.0.0.1", 0)) as one:
        with socket.create_server(("127.0.0.1", 0)) as two:
            free = two.getsockname()[1]
        taken = one.getsockname()[1]

        assert client_name("localhost", Loaded()) == f"localhost:{free}"


def test_a_name_with_a_port_is_kept_and_others_get_one_of_upstreams():
    assert client_name("10.0.0.1:99", random.Random(0)) == "10.0.0.1:99"
    host, port = client_name("127.0.0.1", random.Random(0)).split(":")
    assert host == "127.0.0.1"
    assert int(port) in PORTS


def test_a_name_of_another_machine_gets_a_port_all_the_same():
    name = client_name("192.0.2.7", random.Random(0))

    assert int(name.rpartition(":")[2]) in PORTS


def test_localhost_is_an_address():
    assert address_of("localhost:5") == "127.0.0.1:5"
    assert address_of("10.0.0.1:5") == "10.0.0.1:5"


@pytest.mark.parametrize(
    ("name", "domain"),
    [
        ("node-7:1", "node-7"),
        ("10.0.0.1:1", "10.0.0.1"),
        ("localhost:1", "localhost:1"),
        ("127.0.0.9:1", "127.0.0.9:1"),
        ("[::1]:1", "[::1]:1"),
    ],
)
def test_every_client_on_loopback_is_a_failure_domain_of_its_own(name, domain):
    assert host_of(name) == domain
