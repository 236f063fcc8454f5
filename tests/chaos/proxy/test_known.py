"""What is remembered of proxies, so that undoing needs no read."""

from __future__ import annotations

from chaos.proxy.client import ProxyInfo, ToxicInfo
from chaos.proxy.known import KnownProxies


def made(*names: str) -> KnownProxies:
    known = KnownProxies()
    for name in names:
        known.made(ProxyInfo(name=name, listen="h:1", upstream="u:1", enabled=True))
    return known


def toxics(known: KnownProxies, name: str) -> list[str]:
    info = known.get(name)
    assert info is not None
    return [toxic.full_name for toxic in info.toxics]


def test_proxies_come_in_the_order_of_their_making():
    known = made("b", "a", "c")
    known.gone("a")

    assert [info.name for info in known.all()] == ["b", "c"]
    assert known.get("a") is None


def test_a_toxic_armed_twice_is_one_as_it_was_armed_last():
    known = made("a")
    known.armed("a", ToxicInfo(type="latency", attributes={"latency": 1}))
    known.armed("a", ToxicInfo(type="timeout"))
    known.armed("a", ToxicInfo(type="latency", attributes={"latency": 2}))

    assert toxics(known, "a") == ["timeout_downstream", "latency_downstream"]
    assert known.get("a").toxics[1].attributes == {"latency": 2}


def test_what_is_disarmed_is_forgotten():
    known = made("a")
    known.armed("a", ToxicInfo(type="latency"))
    known.armed("a", ToxicInfo(type="timeout"))
    known.disarmed("a", ["latency_downstream", "never_there"])

    assert toxics(known, "a") == ["timeout_downstream"]


def test_of_proxies_of_others_nothing_is_kept():
    known = made("a")
    known.armed("other", ToxicInfo(type="latency"))
    known.switched("other", False)
    known.seen(ProxyInfo(name="other", listen="h:2", upstream="u:2", enabled=True))

    assert [info.name for info in known.all()] == ["a"]


def test_what_was_read_back_wins():
    known = made("a")
    known.armed("a", ToxicInfo(type="latency"))
    known.switched("a", False)
    assert known.get("a").enabled is False

    known.seen(ProxyInfo(name="a", listen="h:1", upstream="u:1", enabled=True))

    assert known.get("a").enabled is True
    assert toxics(known, "a") == []
