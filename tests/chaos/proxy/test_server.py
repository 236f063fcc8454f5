"""The wire: routes, status codes and JSON shapes, the same on ours and the real one."""

from __future__ import annotations

import pytest

TOXIC_DEFAULTS = {
    "latency": {"latency": 0, "jitter": 0},
    "bandwidth": {"rate": 0},
    "slow_close": {"delay": 0},
    "timeout": {"timeout": 0},
    "reset_peer": {"timeout": 0},
    "slicer": {"average_size": 0, "size_variation": 0, "delay": 0},
    "limit_data": {"bytes": 0},
}


def test_version_is_a_json_object_with_a_version(rig):
    status, body = rig.call("GET", "/version")

    assert status == 200
    assert isinstance(body["version"], str)


def test_create_answers_201_with_the_real_port(rig):
    info = rig.proxy()

    status, body = rig.call("GET", f"/proxies/{info.name}")

    assert status == 200
    assert body["name"] == info.name
    assert body["upstream"] == rig.upstream
    assert body["enabled"] is True
    assert body["toxics"] == []
    assert int(body["listen"].rpartition(":")[2]) > 0


def test_index_is_an_object_by_name(rig):
    info = rig.proxy()

    status, body = rig.call("GET", "/proxies")

    assert status == 200
    assert body[info.name]["listen"] == info.listen


def test_a_name_that_exists_is_409(rig):
    info = rig.proxy()

    answer = rig.call("POST", "/proxies", {"name": info.name, "upstream": "x:1"})

    assert answer == (409, {"error": "proxy already exists", "status": 409})


@pytest.mark.parametrize("field", ["name", "upstream"])
def test_a_missing_field_is_400_and_named(rig, field):
    body = {"name": "n", "upstream": "127.0.0.1:1"}
    del body[field]

    answer = rig.call("POST", "/proxies", body)

    assert answer == (400, {"error": f"missing required field: {field}", "status": 400})


@pytest.mark.parametrize("body", ["", "{", "[]", '{"name": 5}', '{"enabled": "x"}'])
def test_a_body_that_cannot_be_read_is_400(rig, body):
    status, answer = rig.call("POST", "/proxies", body)

    assert status == 400
    assert answer["status"] == 400
    assert answer["error"].startswith("bad request body: ")


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", "/proxies/none"),
        ("POST", "/proxies/none"),
        ("PATCH", "/proxies/none"),
        ("DELETE", "/proxies/none"),
        ("GET", "/proxies/none/toxics"),
        ("POST", "/proxies/none/toxics"),
        ("GET", "/proxies/none/toxics/t"),
        ("PATCH", "/proxies/none/toxics/t"),
        ("DELETE", "/proxies/none/toxics/t"),
    ],
)
def test_an_unknown_proxy_is_404(rig, method, path):
    answer = rig.call(method, path, {})

    assert answer == (404, {"error": "proxy not found", "status": 404})


@pytest.mark.parametrize("method", ["GET", "POST", "PATCH", "DELETE"])
def test_an_unknown_toxic_is_404(rig, method):
    info = rig.proxy()

    answer = rig.call(method, f"/proxies/{info.name}/toxics/none", {})

    assert answer == (404, {"error": "toxic not found", "status": 404})


def test_an_unknown_route_is_404_and_a_wrong_method_405(rig):
    assert rig.call("GET", "/nothing")[0] == 404
    assert rig.call("GET", "/proxies/")[0] == 404
    assert rig.call("PUT", "/proxies")[0] == 405
    assert rig.call("DELETE", "/reset")[0] == 405
    assert rig.call("GET", "/populate")[0] == 405


def test_a_taken_port_is_500(rig):
    info = rig.proxy()
    body = {"name": "second", "upstream": rig.upstream, "listen": info.listen}

    status, answer = rig.call("POST", "/proxies", body)

    assert status == 500
    assert "address already in use" in answer["error"].lower()
    assert rig.call("GET", "/proxies/second")[0] == 404


@pytest.mark.parametrize("kind", sorted(TOXIC_DEFAULTS))
@pytest.mark.parametrize("stream", ["upstream", "downstream"])
def test_every_toxic_has_its_defaults_and_its_shape(rig, kind, stream):
    info = rig.proxy()
    wanted = {
        "attributes": TOXIC_DEFAULTS[kind],
        "name": f"{kind}_{stream}",
        "type": kind,
        "stream": stream,
        "toxicity": 1,
    }
    path = f"/proxies/{info.name}/toxics"

    created = rig.call("POST", path, {"type": kind, "stream": stream})

    assert created == (200, wanted)
    assert rig.call("GET", f"{path}/{kind}_{stream}") == (200, wanted)
    assert rig.call("GET", path) == (200, [wanted])
    assert rig.call("DELETE", f"{path}/{kind}_{stream}") == (204, "")
    assert rig.call("GET", path) == (200, [])


def test_toxics_are_listed_upstream_first_then_as_they_were_added(rig):
    info = rig.proxy()
    path = f"/proxies/{info.name}/toxics"
    for name, stream in (("a", "downstream"), ("b", "upstream"), ("c", "downstream")):
        rig.call("POST", path, {"name": name, "type": "latency", "stream": stream})

    _, body = rig.call("GET", path)

    assert [toxic["name"] for toxic in body] == ["b", "a", "c"]


@pytest.mark.parametrize("method", ["POST", "PATCH"])
def test_a_toxic_update_keeps_what_it_does_not_name(rig, method):
    info = rig.proxy()
    path = f"/proxies/{info.name}/toxics"
    attributes = {"latency": 10, "jitter": 2}
    rig.call("POST", path, {"type": "latency", "attributes": attributes})

    status, body = rig.call(
        method, f"{path}/latency_downstream", {"attributes": {"jitter": 3}}
    )

    assert status == 200
    assert body["attributes"] == {"latency": 10, "jitter": 3}
    assert body["toxicity"] == 1
    body = rig.call(method, f"{path}/latency_downstream", {"toxicity": 0.5})[1]
    assert (body["attributes"]["jitter"], body["toxicity"]) == (3, 0.5)


@pytest.mark.parametrize(
    ("body", "error"),
    [
        ({"type": "nothing"}, "invalid toxic type"),
        ({}, "invalid toxic type"),
        (
            {"type": "latency", "stream": "sideways"},
            "stream was invalid, can be either upstream or downstream",
        ),
    ],
)
def test_a_wrong_toxic_is_400_in_toxiproxys_words(rig, body, error):
    info = rig.proxy()

    answer = rig.call("POST", f"/proxies/{info.name}/toxics", body)

    assert answer == (400, {"error": error, "status": 400})


@pytest.mark.parametrize("value", ["5", 1.5, True, [], 1 << 70])
def test_an_attribute_that_is_no_integer_is_400(rig, value):
    info = rig.proxy()
    body = {"type": "latency", "attributes": {"latency": value}}

    status, answer = rig.call("POST", f"/proxies/{info.name}/toxics", body)

    assert status == 400
    assert answer["error"].startswith("bad request body: ")
    assert rig.call("GET", f"/proxies/{info.name}/toxics")[1] == []


def test_attributes_nobody_knows_are_ignored(rig):
    info = rig.proxy()
    body = {"type": "timeout", "attributes": {"timeout": 1000, "colour": 1}}

    status, answer = rig.call("POST", f"/proxies/{info.name}/toxics", body)

    assert status == 200
    assert answer["attributes"] == {"timeout": 1000}


def test_the_same_toxic_twice_is_409(rig):
    info = rig.proxy()
    path = f"/proxies/{info.name}/toxics"
    rig.call("POST", path, {"type": "latency"})

    answer = rig.call("POST", path, {"type": "latency"})

    assert answer == (409, {"error": "toxic already exists", "status": 409})


@pytest.mark.parametrize("method", ["POST", "PATCH"])
def test_a_proxy_update_disables_enables_and_keeps_the_port(rig, method):
    info = rig.proxy()
    path = f"/proxies/{info.name}"

    assert rig.call(method, path, {"enabled": False})[1]["enabled"] is False
    _, body = rig.call(method, path, {"enabled": True})

    assert body["enabled"] is True
    assert body["listen"] == info.listen


def test_another_upstream_serves_new_connections(rig):
    info = rig.proxy()
    path = f"/proxies/{info.name}"
    rig.call("PATCH", path, {"upstream": "127.0.0.1:1"})
    _, body = rig.call("PATCH", path, {"upstream": rig.upstream, "enabled": True})

    near, far = rig.connect(info)
    near.sendall(b"hello")

    assert body["upstream"] == rig.upstream
    assert rig.receive(far, 5) == b"hello"


def test_populate_makes_replaces_and_leaves_equal_ones_alone(rig, request):
    name = f"populated-{request.node.callspec.id}"
    body = [{"name": name, "upstream": rig.upstream, "listen": "127.0.0.1:0"}]
    status, first = rig.call("POST", "/populate", body)
    body[0]["listen"] = first["proxies"][0]["listen"]
    rig.call("POST", f"/proxies/{name}/toxics", {"type": "latency"})

    _, same = rig.call("POST", "/populate", body)
    body[0]["upstream"] = "127.0.0.1:1"
    _, other = rig.call("POST", "/populate", body)
    rig.client.delete(name)

    assert status == 201
    assert len(same["proxies"][0]["toxics"]) == 1
    assert other["proxies"][0]["toxics"] == []
    assert other["proxies"][0]["upstream"] == "127.0.0.1:1"


def test_populate_checks_everything_before_it_makes_anything(rig):
    body = [{"name": "first", "upstream": rig.upstream}, {"name": "second"}]

    answer = rig.call("POST", "/populate", body)

    assert answer == (
        400,
        {
            "error": "missing required field: upstream at proxy 2",
            "status": 400,
            "proxies": None,
        },
    )
    assert rig.call("GET", "/proxies/first")[0] == 404


def test_reset_enables_all_and_removes_all_toxics(rig):
    info = rig.proxy()
    rig.call("POST", f"/proxies/{info.name}/toxics", {"type": "latency"})
    rig.call("PATCH", f"/proxies/{info.name}", {"enabled": False})

    status, _ = rig.call("POST", "/reset")

    assert status == 204
    body = rig.call("GET", f"/proxies/{info.name}")[1]
    assert (body["enabled"], body["toxics"]) == (True, [])


def test_metrics_count_the_bytes_of_every_proxy(rig):
    info = rig.proxy()
    near, far = rig.connect(info)
    near.sendall(b"x" * 1000)
    rig.receive(far, 1000)
    near.close()
    far.close()

    text = rig.eventually(lambda: _received(rig, info.name))

    assert "toxiproxy_proxy_sent_bytes_total" in text


def _received(rig, name):
    text = rig.call("GET", "/metrics")[1]
    found = [
        line
        for line in text.splitlines()
        if line.startswith("toxiproxy_proxy_received_bytes_total")
        and f'proxy="{name}"' in line
        and 'direction="upstream"' in line
        and line.endswith(" 1000")
    ]
    return text if found else ""


def test_browsers_are_turned_away(rig, raw_call):
    status, _ = raw_call(
        rig.server.url, "GET", "/version", headers={"User-Agent": "Mozilla/5.0"}
    )

    assert status == 403


# Ours only.


def test_a_proxy_is_born_with_its_toxics(ours):
    toxics = [{"type": "timeout", "ttl_ms": 60_000}, {"type": "latency"}]
    body = {"name": "sick", "upstream": ours.upstream, "toxics": toxics}

    status, answer = ours.call("POST", "/proxies", body)
    ours.client.delete("sick")

    assert status == 201
    names = [toxic["name"] for toxic in answer["toxics"]]
    assert names == ["timeout_downstream", "latency_downstream"]
    assert answer["toxics"][0]["ttl_ms"] == 60_000


def test_nothing_is_left_of_a_proxy_whose_toxics_are_wrong(ours):
    body = {
        "name": "half",
        "upstream": ours.upstream,
        "toxics": [{"type": "latency"}, {"type": "latency"}],
    }

    status, _ = ours.call("POST", "/proxies", body)

    assert status == 409
    assert ours.call("GET", "/proxies/half")[0] == 404


@pytest.mark.parametrize("ttl", [0, -1, 1.5, "1", True])
def test_a_time_to_live_that_cannot_be_is_400(ours, ttl):
    info = ours.proxy()
    body = {"type": "latency", "ttl_ms": ttl}

    status, _ = ours.call("POST", f"/proxies/{info.name}/toxics", body)

    assert status == 400


def test_a_name_with_a_slash_can_be_addressed(ours):
    ours.call("POST", "/proxies", {"name": "a/b", "upstream": ours.upstream})

    status, body = ours.call("GET", "/proxies/a%2Fb")
    ours.client.delete("a/b")

    assert (status, body["name"]) == (200, "a/b")


def test_a_body_nested_without_end_is_400_and_harms_nobody(ours):
    status, _ = ours.call("POST", "/proxies", "[" * 200_000)

    assert status == 400
    assert ours.call("GET", "/version")[0] == 200
