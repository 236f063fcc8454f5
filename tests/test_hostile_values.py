"""Whatever stands in a setting, a name or a path is inert, or refused in one line."""

from __future__ import annotations

import contextlib
import json
import os
import re
import socket
import threading

import pytest
from hypothesis import HealthCheck, example, given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry

from chaos.cli import main as chaos_main
from chaos.proxy.http import HttpRequest, HttpServer
from chaos.proxy.loop import Loop
from chaos.proxy.server import ProxyServer
from refimpl.admin import AdminServer
from refimpl.cli import main as refimpl_main
from refimpl.cluster import UpSettings
from refimpl.engine.settings import EngineSettings
from refimpl.errors import UsageError
from refimpl.failpoints import Failpoints
from refimpl.master.columns import BadRequest
from refimpl.master.service import _require_segment
from refimpl.master.settings import MasterSettings
from refimpl.names import is_name, is_plain
from refimpl.proto import pool_pb2
from refimpl.settings import load, options_of
from refimpl.store.settings import StoreSettings

SETTINGS = {
    "master": MasterSettings,
    "store": StoreSettings,
    "engine": EngineSettings,
    "up": UpSettings,
}
FIELDS = [(role, o.name) for role, cls in SETTINGS.items() for o in options_of(cls)]
NASTY = (
    *(
        "",
        " ",
        ".",
        "..",
        "../../../etc/passwd",
        "/etc/passwd",
        "a/b",
        "a\\b",
        "-",
        "--",
    ),
    *("'", '"', "`id`", "$(reboot)", "${HOME}", "a; reboot", "a|b", "a&b", "a>b", "*"),
    *("a\nb", "a\r\nb", "a\tb", "a\0b", "\x1b[2J\x1b[H", "\x7f", "\x9b31m", "\u2028"),
    *("%s%s%n", "%(x)s", "{0.__class__}", "{}", "{role}", "\\x00", "\\N{BULLET}"),
    *("\ud800", "\u202e", "\ufeff", "é" * 30, "😀", "a" * 129, "a" * 5000, "9" * 5000),
    *("<script>alert(1)</script>", "' OR 1=1 --", '{"a": 1}', "a=b", "a,b", "a:b@c"),
    *(
        "nan",
        "inf",
        "-1",
        "1e999",
        "0x10",
        "٣",
        "1_000",
        "127.0.0.1:99999",
        "[::1",
        "x:",
    ),
    *("127.0.0.1:٣", ":0", "[]:0", "host name:1", "a=127.0.0.1:0\nb", "NONE", "None"),
)
HOSTILE = st.one_of(st.sampled_from(NASTY), st.text(max_size=200))
"""Known tricks, and anything at all."""


def _fits_argv(text: str) -> bool:
    """Whether an argument could be this: no end within, nothing that is no bytes."""
    try:
        return b"\0" not in os.fsencode(text)
    except UnicodeEncodeError:
        return False


ARGUMENT = HOSTILE.filter(_fits_argv)
MANY = hypothesis_settings(
    max_examples=150,
    derandomize=True,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
_LINE_MOST = 2100


def _is_one_clear_line(text: str) -> bool:
    return 0 < len(text) <= _LINE_MOST and text.isprintable()


def _texts(value: object) -> list[str]:
    items = value if isinstance(value, tuple) else (value,)
    return [item for item in items if isinstance(item, str)]


@MANY
@given(field=st.sampled_from(FIELDS), value=HOSTILE, from_flag=st.booleans())
@example(field=("store", "name"), value="../../x", from_flag=True)
@example(field=("store", "rail"), value="a\nb=127.0.0.1:0", from_flag=True)
@example(field=("master", "listen"), value="127.0.0.1:" + "9" * 5000, from_flag=True)
def test_a_setting_takes_it_as_plain_text_or_refuses_it_in_a_line(
    field, value, from_flag
):
    role, name = field
    env = {f"REFIMPL_{name.upper()}": value}
    flags = {name: [value] if name == "rail" or name == "components" else value}
    where = {"flags": flags, "environ": {}} if from_flag else {"flags": {}}
    try:
        found = load(SETTINGS[role], role, **{"environ": env, **where})
    except UsageError as error:
        found, said = None, str(error)
    if found is None:
        assert _is_one_clear_line(said), repr(said[:300])
        return

    assert all(is_plain(text) for text in _texts(getattr(found, name)))
    if name in ("name", "host_id"):
        chosen = getattr(found, name)
        assert is_name(chosen) or chosen == ""


@MANY
@given(value=HOSTILE)
def test_a_name_that_passes_is_harmless_in_lines_paths_labels_and_shells(value):
    if is_name(value):
        assert re.fullmatch(r"[\w.@+:~-]+", value, re.ASCII)
        assert len(value) <= 128
        assert value not in (".", "..")


def _said(capsys) -> str:
    caught = capsys.readouterr()
    assert caught.out == ""
    assert caught.err.count("\n") == 1, caught.err
    return caught.err.removesuffix("\n")


@MANY
@given(value=ARGUMENT.filter(lambda v: v and v not in ("--", "-")))
def test_a_command_line_of_a_role_answers_in_one_line(value, capsys):
    for argv in (
        ["store", "--size", f"x{value}"],
        ["store", "--no-such-flag", value],
        ["master", f"--no-{value}"],
        [f"x{value}"],
    ):
        code = refimpl_main(argv)

        assert code == 2, argv
        assert _is_one_clear_line(_said(capsys))


@hypothesis_settings(MANY, max_examples=30)
@given(value=ARGUMENT.filter(lambda v: not v.startswith("-")))
@example(value="ms=" + "9" * 5000)
@example(value="a\nb\x1b[2J")
def test_the_command_chaos_answers_in_one_line(value, capsys):
    for argv in (
        ["plan", f"no-{value}", "store-1"],
        ["plan", "kill", f"nobody-{value}"],
        ["plan", "latency", f"nowhere-{value}", "ms=5"],
        ["plan", "kill", "store-1", f"{value}"],
        ["analyze", f"/nowhere/{value}"],
    ):
        code = chaos_main(argv)

        assert code in (2, 3), (argv, code)
        assert _is_one_clear_line(_said(capsys)), argv


@pytest.fixture(scope="module")
def door():
    points = Failpoints()
    door = AdminServer("127.0.0.1:0", "store", CollectorRegistry(), points, dict)
    door.start()
    yield door, points
    door.close()


def _raw(address: str, request: bytes) -> bytes:
    host, _, port = address.rpartition(":")
    answer = b""
    with socket.create_connection((host, int(port)), 5) as sock:
        sock.sendall(request)
        with contextlib.suppress(ConnectionResetError):
            while piece := sock.recv(65536):
                answer += piece
    return answer


def _status(answer: bytes) -> int:
    match = re.match(rb"HTTP/1\.[01] (\d{3}) ", answer)
    return int(match[1]) if match else 0


@MANY
@given(
    path=st.one_of(HOSTILE.map(lambda t: t.encode("utf-8", "surrogatepass")),
                   st.binary(max_size=200)),
    quoted=st.booleans(),
    method=st.sampled_from((b"GET", b"PUT", b"DELETE", b"POST", b"X")),
)  # fmt: skip
def test_an_admin_door_answers_any_path_and_lives(door, path, quoted, method):
    admin, points = door
    if quoted:
        path = b"".join(b"%%%02x" % byte for byte in path[:300])
    request = method + b" /nowhere/x/" + path + b" HTTP/1.0\r\n\r\n"
    answer = _raw(admin.address, request)

    # Without a status: HTTP/0.9, which a request line of two words asks for.
    assert _status(answer) in (0, 400, 404, 405, 414, 431, 501), answer[:200]
    assert b"Traceback" not in answer
    assert points.snapshot() == {}
    assert _status(_raw(admin.address, b"GET /health HTTP/1.0\r\n\r\n")) == 200


@pytest.mark.parametrize("length", [b"-1", b"1e9", b"9" * 5000, b"0x10", b"", b"\xb2"])
def test_an_admin_door_does_not_wait_for_a_length_that_is_none(door, length):
    head = b"PUT /failpoints/x HTTP/1.0\r\nContent-Length: " + length + b"\r\n\r\n"

    assert _status(_raw(door[0].address, head)) in (400, 413)


def _api() -> ProxyServer:
    return ProxyServer(Loop())


def _ask(server: ProxyServer, method: str, path: str, document: object = None):
    body = b"" if document is None else json.dumps(document).encode()
    answer = server.handle(HttpRequest(method=method, path=path, headers={}, body=body))
    return answer.status, answer.body


@pytest.fixture
def api():
    loop = Loop()
    server = ProxyServer(loop)
    yield server
    server.close()
    loop.close()


_METRIC = re.compile(r'(# TYPE [a-z_]+ (counter|gauge)|[a-z_]+\{[^\n]*"\} \d+)?')


@MANY
@given(name=HOSTILE, other=HOSTILE)
@example(name="\ud800", other='"} 1\nx{y="')
def test_the_proxys_api_holds_any_name_or_refuses_it(api, name, other):
    document = {
        "name": name,
        "upstream": "127.0.0.1:9",
        "listen": "127.0.0.1:0",
        "enabled": False,
        "toxics": [{"type": "latency", "name": other, "attributes": {"latency": 1}}],
    }
    status, body = _ask(api, "POST", "/proxies", document)
    assert status in (201, 400, 409), body
    assert json.loads(body)
    metrics = _ask(api, "GET", "/metrics")[1].decode()
    for line in metrics.split("\n"):
        assert _METRIC.fullmatch(line), line
    assert json.loads(_ask(api, "GET", "/proxies")[1]) is not None
    _ask(api, "POST", "/reset")
    for made in list(api.proxies):
        api.proxies.pop(made).destroy()


@MANY
@given(path=HOSTILE, method=st.sampled_from(("GET", "POST", "PATCH", "DELETE")))
def test_the_proxys_api_answers_any_path(api, path, method):
    for prefix in ("/proxies/", "/", "/proxies/p/toxics/"):
        status, _ = _ask(api, method, prefix + path.replace("?", "%3f"))

        assert 200 <= status < 500
        assert api.proxies == {}


@MANY
@given(data=st.binary(max_size=300))
@example(data=b"GET / HTTP/1.1\r\nContent-Length: " + b"9" * 5000 + b"\r\n\r\n")
@example(data=b"POST /populate HTTP/1.1\r\nContent-Length: 4\r\n\r\n[[[[")
@example(data=b"GET /proxies/\xff%ff%00 HTTP/1.1\r\nAuthorization: \xff\r\n\r\n")
def test_the_proxys_server_outlives_any_bytes(serving, data):
    for request in (data, b"GET /" + data + b" HTTP/1.0\r\n\r\n"):
        host, _, port = serving.rpartition(":")
        with socket.create_connection((host, int(port)), 5) as sock:
            sock.sendall(request)
            with contextlib.suppress(OSError):  # it may have hung up already
                sock.shutdown(socket.SHUT_WR)
                while sock.recv(65536):
                    pass

    answer = _raw(serving, b"GET /version HTTP/1.0\r\n\r\n")
    assert _status(answer) == 200


@pytest.fixture(scope="module")
def serving():
    """The API on a loop of a thread of its own, as its process runs it."""
    loop = Loop()
    server = ProxyServer(loop, token="")
    listener = socket.create_server(("127.0.0.1", 0))
    bell, ringer = socket.socketpair()
    loop.register(bell.fileno(), lambda _: loop.stop(), 1)
    http = HttpServer(loop, listener, server.handle)
    thread = threading.Thread(target=loop.run)
    thread.start()
    yield "{}:{}".format(*listener.getsockname())
    ringer.send(b"x")
    thread.join(5)
    http.close()
    server.close()
    loop.close()
    bell.close()
    ringer.close()


@MANY
@given(name=HOSTILE, host=HOSTILE, rail=HOSTILE, address=HOSTILE)
def test_the_master_takes_no_name_from_the_network_that_is_none(
    name, host, rail, address
):
    try:
        segment = pool_pb2.Segment(
            id=1,
            name=name,
            host_id=host,
            size=4096,
            rails=[pool_pb2.Rail(name=rail, address=address)],
        )
    except (UnicodeEncodeError, ValueError):
        return  # no message can carry it
    said = ""
    try:
        _require_segment(segment)
    except BadRequest as error:
        said = str(error)
    if said:
        assert _is_one_clear_line(said)
        return

    assert is_name(name)
    assert host == "" or is_name(host)
    assert is_name(rail)
    assert is_plain(address)
