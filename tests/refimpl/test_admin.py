"""The admin door, spoken to over HTTP as a harness would."""

from __future__ import annotations

import json
import socket
import urllib.error
import urllib.request

import pytest
from prometheus_client import CollectorRegistry, Counter

from refimpl.admin import AdminServer
from refimpl.errors import PortTaken, UsageError
from refimpl.failpoints import Failpoints


@pytest.fixture
def points():
    return Failpoints()


@pytest.fixture
def door(points):
    registry = CollectorRegistry()
    Counter("things", "Things.", registry=registry).inc(3)
    door = AdminServer("127.0.0.1:0", "store", registry, points, lambda: {"keys": 7})
    door.start()
    yield door
    door.close()


def _ask(door, method, path, body=None):
    request = urllib.request.Request(
        f"http://{door.address}{path}", method=method, data=body
    )
    try:
        with urllib.request.urlopen(request, timeout=5) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode()


def test_health_names_the_role(door):
    status, body = _ask(door, "GET", "/health")

    assert (status, json.loads(body)) == (200, {"status": "ok", "role": "store"})


def test_metrics_are_prometheus_text(door):
    assert "things_total 3.0" in _ask(door, "GET", "/metrics")[1]


def test_state_is_the_roles_document(door):
    assert json.loads(_ask(door, "GET", "/state")[1]) == {"keys": 7}


def test_a_state_that_raises_is_an_answer_and_the_door_lives_on(points):
    def broken():
        raise KeyError("ledger")

    door = AdminServer("127.0.0.1:0", "store", CollectorRegistry(), points, broken)
    door.start()
    try:
        status, body = _ask(door, "GET", "/state")

        assert status == 500
        assert "KeyError" in body
        assert _ask(door, "GET", "/health")[0] == 200
    finally:
        door.close()


def test_a_failpoint_is_set_read_and_cleared(door, points):
    status, body = _ask(door, "PUT", "/failpoints/store.read", b"return(-800)")
    assert (status, json.loads(body)["spec"]) == (200, "return(-800)")

    points.hit("store.read")
    assert json.loads(_ask(door, "GET", "/failpoints/store.read")[1])["hits"] == 1
    assert set(json.loads(_ask(door, "GET", "/failpoints")[1])) == {"store.read"}

    assert _ask(door, "DELETE", "/failpoints/store.read")[0] == 204
    assert _ask(door, "GET", "/failpoints/store.read")[0] == 404
    assert points.hit("store.read") is None


def test_delete_without_a_name_clears_all(door, points):
    points.set("a", "on")
    points.set("b", "on")

    assert _ask(door, "DELETE", "/failpoints")[0] == 204
    assert points.snapshot() == {}


def test_a_bad_spec_is_400_with_the_reason(door, points):
    status, body = _ask(door, "PUT", "/failpoints/x", b"explode")

    assert status == 400
    assert "explode" in json.loads(body)["error"]
    assert points.snapshot() == {}


def test_a_long_body_is_refused_unread(door):
    assert _ask(door, "PUT", "/failpoints/x", b"x" * 5000)[0] == 413


@pytest.mark.parametrize("method", ["GET", "PUT", "DELETE"])
def test_elsewhere_is_404(door, method):
    assert _ask(door, method, "/elsewhere", b"" if method == "PUT" else None)[0] == 404


def test_a_silent_connection_does_not_block_others(door):
    host, port = door.address.split(":")
    with socket.create_connection((host, int(port))):
        assert _ask(door, "GET", "/health")[0] == 200


def test_a_taken_port_is_named(door, points):
    with pytest.raises(PortTaken, match=door.address):
        AdminServer(door.address, "store", CollectorRegistry(), points, dict)


@pytest.mark.parametrize("listen", ["0.0.0.0:0", "192.0.2.1:0", "example.org:0"])
def test_only_loopback_is_allowed(points, listen):
    with pytest.raises(UsageError, match="loopback"):
        AdminServer(listen, "store", CollectorRegistry(), points, dict)


def test_close_frees_the_port_and_may_be_called_twice(points):
    door = AdminServer("127.0.0.1:0", "store", CollectorRegistry(), points, dict)
    door.start()
    door.close()
    door.close()

    again = AdminServer(door.address, "store", CollectorRegistry(), points, dict)
    again.close()


def test_a_page_may_be_asked_with_a_query(points):
    door = AdminServer(
        "127.0.0.1:0",
        "store",
        CollectorRegistry(),
        points,
        dict,
        queries={"find": lambda query: f"{sorted(query.items())}"},
    )
    door.start()
    try:
        asked = _ask(door, "GET", "/find?a=1%2F2&b=x+y")
        bare = _ask(door, "GET", "/find")
        many = _ask(door, "GET", "/find?" + "&".join(f"k{i}=1" for i in range(99)))
    finally:
        door.close()

    assert asked == (200, "[('a', '1/2'), ('b', 'x y')]")
    assert bare == many == (200, "[]")
