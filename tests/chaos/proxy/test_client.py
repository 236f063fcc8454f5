"""The client against servers that lie, hang and fail, and against good ones."""

from __future__ import annotations

import time

import pytest
from toxiproxy.api import APIConsumer

from chaos.errors import (
    FaultNotInjected,
    ProxyRefused,
    ProxyUnreachable,
    ResidualFault,
    UsageError,
)
from chaos.proxy.client import ProxyClient, ToxicInfo


def test_a_server_that_answers_500_has_not_injected(fake):
    fake.add_status, fake.stores = 500, False

    with pytest.raises(FaultNotInjected, match="answered 500") as caught:
        ProxyClient(fake.url).add_toxic("p", "timeout")

    assert (caught.value.fault, caught.value.target) == ("timeout_downstream", "p")


def test_a_server_that_says_yes_and_does_not_do_it_has_not_injected(fake):
    fake.stores = False

    with pytest.raises(FaultNotInjected, match="does not have it"):
        ProxyClient(fake.url).add_toxic("p", "timeout")


def test_a_toxic_with_another_attribute_has_not_been_injected(fake):
    fake.alters = {"latency": 5}

    with pytest.raises(FaultNotInjected, match="latency=5 instead of 50"):
        ProxyClient(fake.url).add_toxic("p", "latency", attributes={"latency": 50})


def test_an_attribute_that_the_server_dropped_is_noticed(rig):
    info = rig.proxy()

    with pytest.raises(FaultNotInjected, match="colour=None instead of 1"):
        rig.client.add_toxic(info.name, "latency", attributes={"colour": 1})


def test_a_toxic_that_was_stored_although_the_answer_was_lost_counts(fake):
    fake.add_status = 500

    assert ProxyClient(fake.url).add_toxic("p", "timeout").name == "timeout_downstream"


def test_a_type_the_real_server_does_not_know_is_not_injected(fake):
    fake.add_status, fake.stores = 400, False

    with pytest.raises(FaultNotInjected):
        ProxyClient(fake.url).add_toxic("p", "corrupt")


def test_a_server_that_is_gone_has_not_injected(dead_address):
    client = ProxyClient(f"http://{dead_address}")
    client._flavour = "toxiproxy"

    with pytest.raises(FaultNotInjected, match="no answer"):
        client.add_toxic("p", "timeout")


def test_time_to_live_on_the_real_server_is_told_as_not_kept(fake):
    client = ProxyClient(fake.url)

    assert client.add_toxic("p", "timeout", ttl_ms=500).ttl_ms is None
    assert client.heals_itself is False
    assert "ttl_ms" not in fake.toxics["timeout_downstream"]


def test_a_plain_removal_is_verified(fake):
    client = ProxyClient(fake.url)
    client.add_toxic("p", "timeout")

    assert client.remove_toxic("p", "timeout_downstream") == "removed"


def test_removing_what_is_not_there_is_no_error(rig):
    info = rig.proxy()

    assert rig.client.remove_toxic(info.name, "none") == "absent"


def test_a_removal_that_hangs_falls_back_to_closing_connections(fake):
    client = ProxyClient(fake.url)
    client.add_toxic("p", "timeout")
    fake.delete_hangs = True
    start = time.monotonic()

    assert client.remove_toxic("p", "timeout_downstream", deadline_s=0.2) == "closed"

    assert time.monotonic() - start < 1.5
    assert (fake.toxics, fake.enabled) == ({}, True)


def test_a_removal_that_hangs_for_ever_makes_the_proxy_again(fake):
    client = ProxyClient(fake.url)
    client.add_toxic("p", "timeout")
    fake.delete_hangs, fake.frees_on_disable = True, False

    assert client.remove_toxic("p", "timeout_downstream", deadline_s=0.1) == "recreated"

    assert "DELETE /proxies/p" in fake.calls
    assert fake.exists


def test_a_removal_that_nothing_helps_is_a_residual_fault(fake):
    client = ProxyClient(fake.url)
    client.add_toxic("p", "timeout")
    fake.delete_status = fake.disable_status = fake.recreate_status = 500

    with pytest.raises(ResidualFault) as caught:
        client.remove_toxic("p", "timeout_downstream", deadline_s=0.2)

    assert caught.value.exit_code == 5


def test_a_disable_that_did_not_happen_is_not_injected(fake):
    fake.disable_status = 500

    with pytest.raises(FaultNotInjected):
        ProxyClient(fake.url).set_enabled("p", False)


def test_an_enable_that_did_not_happen_is_a_residual_fault(fake):
    fake.enabled, fake.disable_status = False, 500

    with pytest.raises(ResidualFault):
        ProxyClient(fake.url).set_enabled("p", True)


def test_a_reset_that_left_a_toxic_is_a_residual_fault(fake):
    client = ProxyClient(fake.url)
    client.add_toxic("p", "timeout")

    with pytest.raises(ResidualFault, match="timeout_downstream"):
        client.reset()


def test_a_call_has_a_deadline(fake):
    fake.toxics["t"] = {"name": "t", "type": "timeout"}
    fake.delete_hangs = True
    start = time.monotonic()

    with pytest.raises(ProxyUnreachable):
        ProxyClient(fake.url, timeout_s=0.1).call("delete", "/proxies/p/toxics/t")

    assert time.monotonic() - start < 1.0


def test_servers_do_not_mix_and_the_library_is_left_alone(fake, ours):
    one, two = ProxyClient(fake.url), ProxyClient(ours.server.url)

    assert (one.flavour, two.flavour) == ("toxiproxy", "embedded")
    assert one.version() == "2.12.0"
    assert (APIConsumer.host, APIConsumer.port) == ("127.0.0.1", 8474)


def test_an_http_proxy_in_the_environment_is_not_used(ours, monkeypatch, dead_address):
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy"):
        monkeypatch.setenv(name, f"http://{dead_address}")

    assert ours.client.version()


def test_a_url_that_is_none_is_refused_with_usage():
    with pytest.raises(UsageError):
        ProxyClient("127.0.0.1:8474")


def test_create_arms_before_the_first_connection_on_both_servers(rig):
    info = rig.proxy(ToxicInfo(type="timeout"), ToxicInfo(type="latency"))
    _near, far = rig.connect(info)
    far.sendall(b"x")

    assert info.enabled
    assert {toxic.name for toxic in info.toxics} == {
        "timeout_downstream",
        "latency_downstream",
    }
    assert rig.silent(_near)


def test_nothing_is_left_of_a_creation_that_failed(rig):
    with pytest.raises((FaultNotInjected, ProxyRefused)):
        rig.client.create(
            "wrong", "127.0.0.1:0", rig.upstream, [ToxicInfo(type="nothing")]
        )

    assert "wrong" not in rig.client.proxies()


def test_creating_a_name_twice_keeps_the_first(rig):
    info = rig.proxy()

    with pytest.raises(ProxyRefused) as caught:
        rig.client.create(info.name, "127.0.0.1:0", rig.upstream)

    assert caught.value.status == 409
    assert rig.client.proxy(info.name) == info


def test_toxics_read_back_as_they_were_ordered(rig):
    info = rig.proxy()
    added = rig.client.add_toxic(
        info.name,
        "latency",
        name="slow",
        stream="upstream",
        toxicity=0.3,
        attributes={"latency": 7, "jitter": 1},
    )

    assert rig.client.toxics(info.name) == {"slow": added}
    assert added.attributes == {"latency": 7, "jitter": 1}
    assert added.toxicity == pytest.approx(0.3)


def test_counters_and_connections_are_none_on_the_real_server(fake):
    client = ProxyClient(fake.url)

    assert client.counters("p") is None
    assert client.connections("p") is None


def test_deleting_twice_is_no_error(rig):
    info = rig.proxy()

    rig.client.delete(info.name)
    rig.client.delete(info.name)

    assert info.name not in rig.client.proxies()


@pytest.mark.parametrize("deadline_s", [0.5, 0.005])
def test_100_blocked_connections_cannot_hold_up_the_removal(rig, deadline_s):
    """K4 on both: the real server may need the fallback, but no more time."""
    info = rig.proxy()
    rig.client.add_toxic(info.name, "latency", attributes={"latency": 60_000})
    for _near, far in [rig.connect(info) for _ in range(100)]:
        far.setblocking(False)
        for _ in range(20):
            try:
                far.send(bytes(65_536))
            except BlockingIOError:
                break
    start = time.monotonic()

    how = rig.client.remove_toxic(info.name, "latency_downstream", deadline_s)

    assert how in ("removed", "closed", "recreated")
    assert time.monotonic() - start < 3.0
    assert rig.client.toxics(info.name) == {}
