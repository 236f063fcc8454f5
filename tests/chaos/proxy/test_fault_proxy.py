"""Addresses, and the port that a disabled proxy keeps."""

from __future__ import annotations

import socket

import pytest

from chaos.proxy.fault_proxy import MAX_PAST_COUNTERS, parse_address
from chaos.proxy.toxics import MAX_TOXICS


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("127.0.0.1:80", ("127.0.0.1", 80)),
        (":80", ("127.0.0.1", 80)),
        ("[::1]:80", ("::1", 80)),
        ("store:0", ("store", 0)),
    ],
)
def test_addresses_are_split(text, address):
    assert parse_address(text) == address


@pytest.mark.parametrize("text", ["", "host", "::1", "host:", "host:x", "host:65536"])
def test_what_is_no_address_is_refused(text):
    with pytest.raises(OSError, match="address"):
        parse_address(text)


def test_nobody_is_given_the_port_of_a_disabled_proxy(ours):
    info = ours.proxy()
    ours.client.set_enabled(info.name, False)

    with pytest.raises(ConnectionRefusedError):
        ours.dial(info)
    with socket.socket() as thief, pytest.raises(OSError, match="in use"):
        thief.bind(info.address)
    assert ours.client.set_enabled(info.name, True).listen == info.listen


def test_a_deleted_proxy_gives_its_port_back(ours):
    info = ours.proxy()
    ours.client.delete(info.name)

    with socket.create_server(info.address) as sock:
        assert sock.getsockname() == info.address


def test_toxics_of_a_proxy_are_bounded(ours):
    info = ours.proxy()
    path = f"/proxies/{info.name}/toxics"
    for number in range(MAX_TOXICS):
        ours.call("POST", path, {"type": "latency", "name": f"t{number}"})

    assert ours.call("POST", path, {"type": "latency"})[0] == 409


def test_counters_of_past_toxics_are_bounded_and_the_last_are_kept(ours):
    info = ours.proxy()
    path = f"/proxies/{info.name}/toxics"
    for number in range(MAX_PAST_COUNTERS + 6):
        ours.call("POST", path, {"type": "latency", "name": f"t{number}"})
        ours.call("DELETE", f"{path}/t{number}")

    counters = ours.client.counters(info.name)

    assert len(counters) == MAX_PAST_COUNTERS
    assert f"t{MAX_PAST_COUNTERS + 5}" in counters


def test_localhost_is_an_upstream_and_an_unknown_name_closes_the_client(ours):
    port = ours.upstream.rpartition(":")[2]
    info = ours.proxy()
    path = f"/proxies/{info.name}"

    ours.call("PATCH", path, {"upstream": f"localhost:{port}"})
    near, far = ours.connect(info)
    near.sendall(b"x")
    assert ours.receive(far, 1) == b"x"
    ours.call("PATCH", path, {"upstream": "no-port"})

    assert ours.ended(ours.dial(info)) in ("closed", "reset")
