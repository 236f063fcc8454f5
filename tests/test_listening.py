"""Nothing listens wider than asked: roles and the fault proxy, by the kernel's list.

Ports are 0 instead of the defaults, so that no other cluster of this host is in the
way; the addresses are those of the defaults.
"""

from __future__ import annotations

import contextlib
import ipaddress
import json
import os
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from pathlib import Path

import grpc
import pytest

from chaos.proxy.token import TOKEN_VARIABLE as PROXY_TOKEN
from refimpl.cluster import UpSettings
from refimpl.engine.settings import EngineSettings
from refimpl.master.settings import MasterSettings
from refimpl.proto import pool_pb2, pool_pb2_grpc
from refimpl.security.token import TOKEN_VARIABLE, is_loopback
from refimpl.settings import options_of
from refimpl.store.settings import StoreSettings

ROOT = Path(__file__).parent.parent
TOKEN = "0123456789abcdef0123456789abcdef"
SETTINGS = {"master": MasterSettings, "store": StoreSettings, "engine": EngineSettings}
_LISTEN = "0A"


def _default_listens(role: str) -> list[str]:
    """Flags that say the defaults of every address to listen on, with a free port."""
    flags: list[str] = []
    for option in options_of(SETTINGS[role]):
        if option.name.endswith("listen") and option.default:
            host = option.default.rpartition(":")[0]
            flags += [option.flag, f"{host}:0"]
    return flags


def _quick(role: str) -> list[str]:
    """Defaults, and little patience with a master that is not there."""
    more = ["--ping-interval-s", "0.1", "--grace-s", "0"] if role == "store" else []
    return [*_default_listens(role), *more]


@contextlib.contextmanager
def _running(*command: str, token: str = "", marker: str = " ready "):
    """A process that said that it is ready; (pid, what it said)."""
    clean = {k: v for k, v in os.environ.items() if not k.startswith("REFIMPL_")}
    given = {TOKEN_VARIABLE: token, PROXY_TOKEN: token} if token else {}
    process = subprocess.Popen(
        [sys.executable, "-m", *command],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        cwd=ROOT,
        env={**clean, **given},
    )
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        assert marker in line, f"{command}: {line!r}"
        yield process.pid, json.loads(line[line.index("{") :])
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(10)
        process.stdout.close()


def _family_of(pid: int) -> list[int]:
    """A process and its children; threads and processes may end as we look."""
    children: list[int] = []
    for task in _entries(Path(f"/proc/{pid}/task")):
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            children += map(int, (task / "children").read_text().split())
    return [pid, *(one for child in children for one in _family_of(child))]


def _entries(folder: Path) -> list[Path]:
    with contextlib.suppress(FileNotFoundError, ProcessLookupError):
        return list(folder.iterdir())
    return []


def _inodes(pid: int) -> set[str]:
    found = set()
    for file in _entries(Path(f"/proc/{pid}/fd")):
        with contextlib.suppress(FileNotFoundError):
            found.add(str(file.readlink()))
    return {text[8:-1] for text in found if text.startswith("socket:[")}


def _address(text: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address:
    """`0100007F` of /proc/net/tcp, or the 32 digits of tcp6: words in host order."""
    words = [int(text[at : at + 8], 16) for at in range(0, len(text), 8)]
    found = ipaddress.ip_address(struct.pack(f"={len(words)}I", *words))
    return getattr(found, "ipv4_mapped", None) or found


def _listening(pid: int) -> set[str]:
    """Addresses that a process and its children listen on, TCP and UDP."""
    inodes = {inode for one in _family_of(pid) for inode in _inodes(one)}
    found = set()
    for name in ("tcp", "tcp6", "udp", "udp6"):
        for line in Path(f"/proc/net/{name}").read_text().splitlines()[1:]:
            fields = line.split()
            listens = fields[3] == _LISTEN or name.startswith("udp")
            if listens and fields[9] in inodes:
                found.add(str(_address(fields[1].partition(":")[0])))
    return found


def _all_on_loopback(found: set[str]) -> bool:
    return bool(found) and all(ipaddress.ip_address(one).is_loopback for one in found)


def test_the_kernels_list_tells_wide_from_loopback():
    """The instrument first: it must see what it is to forbid."""
    for host in ("127.0.0.1", "0.0.0.0"):
        with socket.create_server((host, 0)):
            assert host in _listening(os.getpid())
    with socket.create_server(("::", 0), family=socket.AF_INET6):
        assert not _all_on_loopback(_listening(os.getpid()))


@pytest.mark.parametrize("role", ["master", "store", "engine"])
def test_a_role_with_defaults_listens_on_loopback_only(role):
    with _running("refimpl", role, *_quick(role)) as (pid, _):
        assert _all_on_loopback(_listening(pid))


def test_a_whole_cluster_listens_on_loopback_only():
    command = ("refimpl", "up", "--stores", "1", "--engines", "1", "--status-s", "60")
    assert UpSettings().load == 0
    process = subprocess.Popen(
        [sys.executable, "-m", *command],
        stdout=subprocess.PIPE,
        text=True,
        cwd=ROOT,
    )
    assert process.stdout is not None
    try:
        while not process.stdout.readline().startswith("break it"):
            assert process.poll() is None
        found = _listening(process.pid)
        assert len(_family_of(process.pid)) >= 4
        assert _all_on_loopback(found)
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(15)
        process.stdout.close()


def test_the_fault_proxy_and_its_proxies_listen_on_loopback_only():
    with _running("chaos.proxy", "--listen", "127.0.0.1:0") as (pid, facts):
        body = json.dumps({"name": "p", "upstream": "127.0.0.1:9"}).encode()
        request = urllib.request.Request(f"{facts['url']}/proxies", body)
        urllib.request.urlopen(request, timeout=5).close()

        assert _all_on_loopback(_listening(pid))


def test_every_default_address_is_loopback():
    for cls in SETTINGS.values():
        for option in options_of(cls):
            if option.name.endswith("listen") and option.default:
                assert is_loopback(option.default.rpartition(":")[0]), option.name
    assert all(
        is_loopback(rail.listen.rpartition(":")[0]) for rail in StoreSettings().rails
    )


WIDE = ("0.0.0.0:0", "[::]:0", "192.0.2.7:0", "example.org:0")


def _refusal(*command: str, **environ: str) -> str:
    """The one line of a process that refuses to start."""
    done = subprocess.run(
        [sys.executable, "-m", *command],
        capture_output=True,
        text=True,
        timeout=30,
        cwd=ROOT,
        env={**os.environ, **environ},
    )
    assert done.returncode == 2, done
    assert done.stdout == ""
    assert done.stderr.count("\n") == 1
    return done.stderr


@pytest.mark.parametrize("role", ["master", "store", "engine"])
@pytest.mark.parametrize("wide", [WIDE[0], WIDE[1]])
def test_an_admin_door_off_loopback_without_a_token_refuses_to_start(role, wide):
    flags = [*_default_listens(role), "--admin-listen", wide]
    said = _refusal("refimpl", role, *flags)

    assert said.startswith(f"refimpl {role}: the admin door (--admin-listen)")
    assert "needs a token: set REFIMPL_TOKEN or --token-file" in said


@pytest.mark.parametrize("token", ["short", " " * 20])
def test_a_bad_token_refuses_to_start_and_is_not_repeated(token):
    environ = {TOKEN_VARIABLE: token}
    said = _refusal("refimpl", "master", *_default_listens("master"), **environ)

    assert "token" in said.lower()
    assert token not in said


def test_there_is_no_flag_for_a_secret_itself():
    for role in SETTINGS:
        for flag in ("--token", "--data-secret"):
            said = _refusal("refimpl", role, flag, TOKEN)
            assert "unrecognized arguments" in said


@pytest.mark.parametrize("wide", WIDE)
def test_the_fault_proxy_off_loopback_without_a_token_refuses_to_start(wide):
    assert "needs a token" in _refusal("chaos.proxy", "--listen", wide)


def _status(url: str, header: str = "", method: str = "GET", body: bytes | None = None):
    headers = {"Authorization": header} if header else {}
    request = urllib.request.Request(url, body, headers, method=method)
    try:
        with urllib.request.urlopen(request, timeout=5) as answer:
            return answer.status
    except urllib.error.HTTPError as error:
        with error:
            offered = error.headers["WWW-Authenticate"]
            return error.code if error.code != 401 or offered == "Bearer" else 0


def test_a_door_behind_a_token_may_be_wide_and_asks_for_it_everywhere():
    flags = [*_default_listens("master"), "--admin-listen", "0.0.0.0:0"]
    with _running("refimpl", "master", *flags, token=TOKEN) as (pid, facts):
        door = f"http://127.0.0.1:{facts['admin'].rpartition(':')[2]}"
        paths = ("/health", "/metrics", "/state", "/failpoints", "/nowhere")
        good, bad = f"Bearer {TOKEN}", f"Bearer {TOKEN[:-1]}x"

        assert "0.0.0.0" in _listening(pid)
        assert {_status(door + path) for path in paths} == {401}
        assert {_status(door + path, bad) for path in paths} == {401}
        assert [_status(door + path, good) for path in paths] == [200] * 4 + [404]
        point = f"{door}/failpoints/master.lookup"
        assert _status(point, method="PUT", body=b"on") == 401
        assert _status(point, bad, method="PUT", body=b"x" * 4000) == 401
        assert _status(point, method="DELETE") == 401
        assert _status(point, good, method="PUT", body=b"on") == 200
        assert _status(point, good, method="DELETE") == 204
        assert TOKEN not in Path(f"/proc/{pid}/cmdline").read_text()


def test_wrong_tokens_take_no_longer_the_nearer_they_are():
    """Not a proof of constant time, but a comparison that stops early shows here."""
    from refimpl.security.token import read_token

    token = read_token(environ={TOKEN_VARIABLE: "s" * 4096})
    assert token is not None
    near, far = "Bearer " + "s" * 4095 + "x", "x" * 4103
    times: dict[str, list[float]] = {near: [], far: []}
    for _ in range(300):
        for header, took in times.items():
            began = time.perf_counter()
            token.admits(header)
            took.append(time.perf_counter() - began)

    assert min(times[near]) < 1.5 * min(times[far])


def _pages(facts: dict, names: tuple[str, ...]) -> str:
    """What an admin door shows to whoever has the token."""
    texts = []
    for name in names:
        url = f"http://{facts['admin']}/{name}"
        headers = {"Authorization": f"Bearer {TOKEN}"}
        request = urllib.request.Request(url, headers=headers)
        with urllib.request.urlopen(request, timeout=5) as answer:
            texts.append(answer.read().decode())
    return "\n".join(texts)


def test_roles_tell_nobody_their_secrets(tmp_path):
    """Output, pages, command lines, and what a store hands on to its heartbeat."""
    secret = "planted-data-secret-0123456789"
    environ = {**os.environ, TOKEN_VARIABLE: TOKEN, "REFIMPL_DATA_SECRET": secret}
    seen = ""
    with contextlib.ExitStack() as stack:
        started: dict[str, dict] = {}
        for role in ("master", "store", "engine"):
            flags = _quick(role)
            if role != "master":
                flags += ["--master", started["master"]["listen"]]
            if role == "store":
                flags += ["--heartbeat", started["master"]["heartbeat"]]
            log = stack.enter_context((tmp_path / role).open("w"))
            process = subprocess.Popen(
                [sys.executable, "-m", "refimpl", role, *flags],
                stdout=log,
                stderr=subprocess.STDOUT,
                cwd=ROOT,
                env=environ,
            )
            stack.callback(process.wait, 10)
            stack.callback(process.terminate)
            started[role] = _ready_line(tmp_path / role, process)
            names = {"master": ("role",), "engine": ("settings",)}.get(role, ())
            seen += _pages(started[role], ("health", "metrics", "state", *names))
            for one in _family_of(process.pid):
                seen += Path(f"/proc/{one}/cmdline").read_text()
                if one != process.pid:
                    seen += Path(f"/proc/{one}/environ").read_text()
    for role in ("master", "store", "engine"):
        seen += (tmp_path / role).read_text()

    assert '"heartbeat"' in seen
    assert TOKEN not in seen
    assert secret not in seen


def _ready_line(log: Path, process: subprocess.Popen) -> dict:
    end = time.monotonic() + 15
    while time.monotonic() < end and process.poll() is None:
        for line in log.read_text().splitlines():
            if " ready {" in line:
                return json.loads(line[line.index("{") :])
        threading.Event().wait(0.02)
    raise AssertionError(log.read_text())


def _control(address: str, header: str = "") -> str:
    """The answer to a `Control` call, or the name of its refusal."""
    metadata = [("authorization", header)] if header else []
    with grpc.insecure_channel(address) as channel:
        stub = pool_pb2_grpc.EngineStub(channel)
        try:
            asked = pool_pb2.Json(text='{"op": "settings"}')
            return stub.Control(asked, timeout=5, metadata=metadata).text
        except grpc.RpcError as error:
            return error.code().name


@pytest.mark.parametrize(
    ("listen", "token", "free"),
    [("127.0.0.1", "", True), ("127.0.0.1", TOKEN, False), ("0.0.0.0", "", False)],
)
def test_an_engines_control_is_an_admin_door_too(listen, token, free):
    flags = ["--listen", f"{listen}:0", "--admin-listen", "127.0.0.1:0"]
    with _running("refimpl", "engine", *flags, token=token) as (_, facts):
        address = f"127.0.0.1:{facts['listen'].rpartition(':')[2]}"

        assert ("deadline" in _control(address)) is free
        if not free:
            assert _control(address) == "UNAUTHENTICATED"
            assert _control(address, "Bearer nobody") == "UNAUTHENTICATED"
        if token:
            assert "deadline" in _control(address, f"Bearer {token}")
        with grpc.insecure_channel(address) as channel:
            request = pool_pb2.PrefillRequest(
                request_id="r", input_length=512, hash_ids=bytes(8)
            )
            assert pool_pb2_grpc.EngineStub(channel).Prefill(request, timeout=10).ok
