"""A cluster behind mutual TLS and the data secret: real processes and certificates."""

from __future__ import annotations

import contextlib
import json
import socket
import threading
import time
import urllib.request
from pathlib import Path

import grpc
import pytest

from refimpl.client import PoolClient
from refimpl.core.codes import Code
from refimpl.core.hashing import object_key
from refimpl.master import MasterSettings
from refimpl.master.process import Master
from refimpl.processes import RoleProcess
from refimpl.proto import pool_pb2, pool_pb2_grpc
from refimpl.security.secret import Secret
from refimpl.security.tls import load_tls
from refimpl.store.registration import Registration
from refimpl.store.settings import StoreSettings

DATA_SECRET = "the data secret of this test cluster"
ANY = "127.0.0.1:0"
KEY = object_key("page")
VALUE = bytes(range(256)) * 16
QUICK = ("--ping-interval-s", "0.1", "--grace-s", "0")


class Cluster:
    """A master and stores; the flags of TLS are the caller's."""

    def __init__(self, stack: contextlib.ExitStack, secret_file: str) -> None:
        self._stack = stack
        self._secret_file = secret_file
        self.master: dict = {}

    def start(self, role: str, name: str, *flags: str) -> RoleProcess:
        process = RoleProcess(role, name, flags)
        self._stack.callback(lambda: process.stop(time.monotonic() + 5))
        return process

    def start_master(self, *flags: str, listen: str = ANY, beat: str = ANY):
        where = ("--listen", listen, "--heartbeat-listen", beat, "--admin-listen", ANY)
        process = self.start("master", "master", *where, *QUICK[:2], *flags)
        self.master = dict(process.wait_ready(15))
        return process

    def start_store(self, *flags: str) -> RoleProcess:
        return self.start(
            *("store", "store-0", "--rail", f"a={ANY}", "--data-secret-file"),
            *(self._secret_file, "--size", "16MiB", *QUICK),
            *("--master", self.master["listen"]),
            *("--heartbeat", self.master["heartbeat"], *flags),
        )

    def client(self, tls, secret: str = DATA_SECRET) -> PoolClient:
        data_secret = Secret(secret.encode()) if secret else None
        client = PoolClient(self.master["listen"], tls=tls, data_secret=data_secret)
        self._stack.callback(client.close)
        return client


@pytest.fixture
def cluster(secret_file):
    with contextlib.ExitStack() as stack:
        yield Cluster(stack, secret_file(DATA_SECRET))


@pytest.fixture(scope="session")
def pairs(authority):
    return {
        name: authority.issue(name) for name in ("master", "store-0", "engine-0", "app")
    }


@pytest.fixture(scope="session")
def app(pairs):
    return load_tls(**pairs["app"].paths, side="client")


def _state(address: str) -> dict:
    with urllib.request.urlopen(f"http://{address}/state", timeout=5) as answer:
        return json.load(answer)


def _eventually(condition, within_s: float = 8.0) -> bool:
    end = time.monotonic() + within_s
    while not condition() and time.monotonic() < end:
        threading.Event().wait(0.02)
    return condition()


def _put(client: PoolClient) -> int:
    return int(client.put(KEY, [VALUE], timeout_s=3).codes[0])


def _get(client: PoolClient) -> tuple[int, bytes]:
    buffer = bytearray(len(VALUE))
    code = int(client.get(KEY, [buffer], timeout_s=3).codes[0])
    return code, bytes(buffer)


def test_a_cluster_works_behind_tls_and_the_secret(cluster, pairs, app):
    cluster.start_master(*pairs["master"].flags)
    store = cluster.start_store(*pairs["store-0"].flags).wait_ready(15)
    client = cluster.client(app)

    assert store["mounted"]
    assert _put(client) == Code.OK
    assert _get(client) == (Code.OK, VALUE)
    assert _eventually(lambda: _state(store["admin"])["heartbeat"]["said"] == "known")
    own = _state(cluster.master["admin"])["own"]
    assert own["master_ping_requests_total"] > 0
    assert own["master_ping_failures_total"] == own["master_ping_forged_total"] == 0

    stranger = cluster.client(app, secret="the data secret of another cluster")
    code, value = _get(stranger)
    assert (code, value) == (Code.NOT_AUTHENTICATED, bytes(len(VALUE)))
    assert stranger.stats()["counts"]["get_keys_not_authenticated"] == 1
    assert _eventually(
        lambda: _state(store["admin"])["rails"]["a"]["not_authenticated"] > 0
    )
    assert _get(cluster.client(app, secret=""))[0] == Code.NOT_AUTHENTICATED


def test_an_engine_serves_through_tls_and_the_secret(cluster, pairs, secret_file):
    cluster.start_master(*pairs["master"].flags)
    cluster.start_store(*pairs["store-0"].flags).wait_ready(15)
    engine = cluster.start(
        *("engine", "engine-0", "--listen", ANY, "--admin-listen", ANY),
        *("--master", cluster.master["listen"], *pairs["engine-0"].flags),
        *("--data-secret-file", secret_file(DATA_SECRET, "engines")),
        *("--time-scale", "0.1"),
    ).wait_ready(15)
    with grpc.insecure_channel(engine["listen"]) as channel:
        stub = pool_pb2_grpc.EngineStub(channel)
        ids = b"".join(n.to_bytes(8, "little") for n in range(2))
        for _ in range(2):
            request = pool_pb2.PrefillRequest(
                request_id="r", input_length=1024, hash_ids=ids
            )
            assert stub.Prefill(request, timeout=10).ok
            assert _eventually(
                lambda: (
                    _state(cluster.master["admin"])["gauges"]["master_key_count"] == 16
                )
            )
            flush = json.dumps({"op": "flush", "tiers": ["l1", "l2"]})
            stub.Control(pool_pb2.Json(text=flush), timeout=5)
        answer = stub.Prefill(request, timeout=10)

    assert answer.ok
    assert answer.l3_tokens > 0


def test_whoever_shows_no_certificate_of_the_ca_is_not_served(
    cluster, pairs, new_authority
):
    cluster.start_master(*pairs["master"].flags)
    strange = new_authority("strange").issue("strange")
    own_ca = {"cert": strange.cert, "key": strange.key, "ca": strange.ca}
    theirs = load_tls(**own_ca, side="client")
    master_ca = Path(pairs["master"].ca).read_bytes()
    nothing_to_show = grpc.ssl_channel_credentials(master_ca)
    impostor = grpc.ssl_channel_credentials(master_ca, theirs.key, theirs.cert)

    for tls in (None, theirs):
        assert _put(cluster.client(tls)) in (Code.RPC_FAIL, Code.RPC_TIMEOUT)
    for credentials in (nothing_to_show, impostor):
        with grpc.secure_channel(cluster.master["listen"], credentials) as channel:
            stub = pool_pb2_grpc.MasterStub(channel)
            with pytest.raises(grpc.RpcError) as caught:
                stub.ListSegments(pool_pb2.ListSegmentsRequest(), timeout=3)
            assert caught.value.code() == grpc.StatusCode.UNAVAILABLE


def test_a_store_that_is_refused_says_why(cluster, pairs, new_authority):
    cluster.start_master(*pairs["master"].flags)
    strange = new_authority("strangers").issue("store-0")
    store = cluster.start_store(*strange.flags)

    assert not store.wait_ready(15)["mounted"]
    assert any("CERTIFICATE_VERIFY_FAILED" in line for line in store.lines)


def test_another_name_in_the_certificate_has_to_be_said(cluster, authority, pairs):
    elsewhere = authority.issue("elsewhere.example", host="192.0.2.1")
    cluster.start_master(*elsewhere.flags)
    paths = pairs["app"].paths
    named = load_tls(**paths, server_name="elsewhere.example", side="client")

    assert _put(cluster.client(load_tls(**paths, side="client"))) != Code.OK
    assert _put(cluster.client(named)) == Code.NO_AVAILABLE_HANDLE


def test_a_store_mounts_again_at_a_new_master_behind_tls(cluster, pairs):
    first = cluster.start_master(*pairs["master"].flags)
    store = cluster.start_store(*pairs["store-0"].flags).wait_ready(15)
    segment = _state(store["admin"])["segment"]
    first.stop(time.monotonic() + 5)
    again = {"listen": cluster.master["listen"], "beat": cluster.master["heartbeat"]}
    cluster.start_master(*pairs["master"].flags, **again)

    assert _eventually(lambda: _state(store["admin"])["mounts"] == 2)
    assert _state(store["admin"])["segment"] != segment
    assert _state(store["admin"])["heartbeat"]["refuted"] == 0


def test_who_mounts_without_a_key_is_refused_where_beats_are_signed(pairs, app):
    settings = MasterSettings(
        listen=ANY,
        heartbeat_listen=ANY,
        admin_listen=ANY,
        **{f"tls_{name}": path for name, path in pairs["master"].paths.items()},
    )
    segment = pool_pb2.Segment(
        id=1, name="s", size=4096, rails=[pool_pb2.Rail(name="a", address="x:1")]
    )
    with Master(settings) as master:
        credentials = app.channel_credentials()
        with grpc.secure_channel(master.addresses["listen"], credentials) as channel:
            stub = pool_pb2_grpc.MasterStub(channel)
            with pytest.raises(grpc.RpcError, match="beat_key"):
                stub.MountSegment(
                    pool_pb2.MountRequest(segment=segment, client=1), timeout=5
                )


def test_a_false_hint_that_we_are_unknown_is_refuted_by_the_master():
    settings = MasterSettings(listen=ANY, heartbeat_listen=ANY, admin_listen=ANY)
    now = [0.0]
    with Master(settings) as master, contextlib.ExitStack() as stack:
        registration = Registration(
            StoreSettings(master=master.addresses["listen"], ping_interval_s=0.05),
            {"a": "127.0.0.1:1"},
            lambda _number: None,
            segment=5,
            client=6,
            clock=lambda: now[0],
            beat_key=b"k" * 32,
        )
        registration.start()
        stack.callback(registration.leave)
        assert registration.first_mount.wait(5)
        now[0] = 1.0

        registration.remount()
        assert _eventually(lambda: registration.hints_refuted == 1)
        assert (registration.mounts, registration.segment) == (1, 5)

        channel = grpc.insecure_channel(master.addresses["listen"])
        stack.callback(channel.close)
        pool_pb2_grpc.MasterStub(channel).UnmountSegment(
            pool_pb2.UnmountRequest(id=5, client=6), timeout=5
        )
        registration.remount()
        assert _eventually(lambda: registration.mounts == 2)
        assert registration.segment != 5


def test_a_bad_certificate_stops_a_role_before_it_listens(cluster, authority, pairs):
    expired = authority.issue("expired", days=(-9, -1))
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = "{}:{}".format(*taken.getsockname())
        for role in ("master", "engine"):
            process = cluster.start(role, "x", "--listen", address, *expired.flags)
            with pytest.raises(Exception, match="certificate has expired"):
                process.wait_ready(15)
            assert process.exit_code == 2
    store = cluster.start("store", "x", *pairs["app"].flags[:4])
    with pytest.raises(Exception, match="--tls-ca is not set"):
        store.wait_ready(15)
    assert store.exit_code == 2
