"""The reference system as a system under test: real processes, real proxies."""

from __future__ import annotations

import os
import signal
import socket
import time

import pytest

from chaos.clusters import Clusters
from chaos.errors import UsageError
from chaos.faults.injector import Injector
from chaos.safety.identity import is_alive, wait_until
from chaos.steady import SteadyState
from chaos.systems.base import ClusterSpec, Request

pytestmark = [pytest.mark.slow, pytest.mark.timeout(60)]

SPEC = ClusterSpec(stores=3, engines=2, time_scale=0.1)
NAMES = [f"name-{number}" for number in range(12)]


@pytest.fixture(scope="module")
def clusters(tmp_path_factory):
    run_dir = tmp_path_factory.mktemp("run")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_RUNTIME_DIR", str(tmp_path_factory.mktemp("state")))
        patch.delenv("TOXIPROXY_URL", raising=False)
        patch.setenv("MOONQUAKE_TOXIPROXY", "")
        clusters = Clusters(system="refimpl", run_dir=run_dir, command="tests")
        yield clusters
        clusters.close()


@pytest.fixture
def cluster(clusters):
    return clusters.get(SPEC)


@pytest.fixture
def inject(clusters, cluster):
    injector = Injector(lambda: cluster, lambda: clusters.proxy, clusters.ledger)
    yield injector
    injector.revert_all()
    assert injector.residual == []


def ask(name: str, tokens: int = 2048, block: int = 0) -> Request:
    blocks = tuple(range(block, block + tokens // 512))
    return Request(
        request_id=name,
        session="s",
        at_s=0.0,
        input_length=tokens,
        output_length=8,
        hash_ids=blocks,
    )


def prefill(cluster, name: str, engine: str = "engine-0", **shape):
    request = ask(name, **shape)
    answer = cluster.prefill(engine, request, timeout_s=10)
    assert answer.ok, answer.error
    assert answer.output_hash == cluster.expected_output(request)
    return answer


def kept(cluster, request: Request) -> bool:
    return wait_until(lambda: all(cluster.owners_of(request)), timeout_s=5)


def test_the_same_shape_is_the_same_cluster_empty_again(clusters, cluster) -> None:
    cluster.kv().write(NAMES)
    pids = {role: cluster.process(role).pid for role in cluster.roles}

    again = clusters.get(SPEC)

    assert again is cluster
    assert set(cluster.owned_bytes().values()) == {0}
    assert {role: cluster.process(role).pid for role in cluster.roles} == pids


def test_a_prompt_is_reused_from_the_pool_by_another_engine(cluster) -> None:
    first = prefill(cluster, "a")
    assert kept(cluster, ask("a"))

    second = prefill(cluster, "b", "engine-1")

    assert first.recomputed_tokens == 2048
    assert second.l3_tokens > 0
    assert second.stores == ("store-0",)


def test_owners_and_dropped_pages_are_told_page_by_page(cluster) -> None:
    prefill(cluster, "a")
    assert kept(cluster, ask("a"))
    assert set(cluster.owners_of(ask("a"))) == {("store-0",)}

    assert cluster.drop_pages(ask("a"), [3, 7]) == 2

    lost = [page for page, who in enumerate(cluster.owners_of(ask("a"))) if not who]
    assert lost == [3, 7]


def test_local_only_asks_no_store(cluster) -> None:
    prefill(cluster, "a")
    assert kept(cluster, ask("a"))
    cluster.flush_local("engine-0")
    cluster.local_only("engine-0", True)

    answer = prefill(cluster, "b")

    assert answer.l3_tokens == 0
    assert answer.stores == ()
    cluster.local_only("engine-0", False)


def test_the_probe_reads_what_it_wrote_from_the_store_of_its_host(cluster) -> None:
    probe = cluster.kv("h1")

    assert probe.write(NAMES) == [0] * len(NAMES)
    assert probe.read(NAMES) == ([0] * len(NAMES), 0)
    assert set(probe.owners(NAMES)) == {("store-1",)}
    assert probe.exists([NAMES[0], "never"]) == [0, -704]
    assert probe.write(["elsewhere"], host="h2") == [0]
    assert probe.owners(["elsewhere"]) == [("store-2",)]


def test_limits_are_those_of_the_running_system(cluster) -> None:
    limits = cluster.limits

    assert limits.deadline_s(2048) == pytest.approx(0.1 * (2.0 + 0.2))
    assert limits.poll_s == pytest.approx(0.02)


def test_a_killed_store_is_gone_and_returns_empty(cluster, inject) -> None:
    probe = cluster.kv("h1")
    probe.write(NAMES)
    with inject.kill("store-1") as receipt:
        assert cluster.process("store-1") is None
    assert SteadyState(lambda: cluster)().verdict.value == "PASS"

    assert receipt.had_effect
    assert set(probe.owners(NAMES)) == {()}


@pytest.mark.parametrize("fault", ["nic_down", "blackhole", "pause", "reset"])
def test_requests_survive_and_the_fault_is_proved_and_gone(
    cluster, inject, fault
) -> None:
    prefill(cluster, "a")
    assert kept(cluster, ask("a"))
    cluster.flush_local("engine-0")
    injection = getattr(inject, fault)("store-0")

    with injection as receipt:
        prefill(cluster, "b")

    assert receipt.had_effect, receipt
    assert receipt.residual == ""


@pytest.mark.parametrize("fault", ["latency", "bandwidth"])
def test_slow_links_are_proved(cluster, inject, fault) -> None:
    probe = cluster.kv("h0")
    probe.write(NAMES)
    amount = {"latency": 30, "bandwidth": 2000}[fault]

    with getattr(inject, fault)("store-0", amount) as receipt:
        begin = time.monotonic()
        codes, wrong = probe.read(NAMES)
        took_s = time.monotonic() - begin

    assert (codes, wrong) == ([0] * len(NAMES), 0)
    assert receipt.had_effect
    assert took_s > 0.02


def test_a_partitioned_heartbeat_expires_one_store_and_heals(cluster, inject) -> None:
    with inject.partition("store-2", plane="heartbeat") as receipt:
        gone = wait_until(
            lambda: "store-2" not in cluster.owned_bytes(),
            timeout_s=4 * cluster.limits.client_ttl_s,
        )
        assert gone
        assert set(cluster.owned_bytes()) == {"store-0", "store-1"}

    assert receipt.had_effect
    assert SteadyState(lambda: cluster)().verdict.value == "PASS"


def test_a_delay_outlives_a_restart_of_its_target_and_is_still_undone(
    cluster, inject
) -> None:
    probe = cluster.kv("h0")
    with inject.latency("store-0", 30) as delay:
        with inject.restart("store-0") as restart:
            assert wait_until(
                lambda: probe.write(NAMES, timeout_s=5) == [0] * len(NAMES), timeout_s=5
            )
        assert restart.had_effect

    assert delay.had_effect
    assert delay.residual == ""
    assert probe.read(NAMES) == ([0] * len(NAMES), 0)


def test_an_error_code_from_a_store_counts_its_hits(cluster, inject) -> None:
    probe = cluster.kv("h0")
    probe.write(NAMES)
    with inject.failpoint("store-0", "store.read", "return(-800)") as receipt:
        codes, _ = probe.read(NAMES, timeout_s=0.5)
        assert set(codes) != {0}
    assert receipt.had_effect
    assert probe.read(NAMES)[0] == [0] * len(NAMES)


def test_reset_brings_a_wrecked_cluster_back(clusters, cluster, inject) -> None:
    inject.kill("engine-1").start()
    inject.pause("store-2").start()
    inject.blackhole("store-0").start()
    cluster.set_failpoint("store-1", "store.read", "return(-800)")
    cluster.local_only("engine-0", True)

    cluster.reset()

    assert SteadyState(lambda: cluster)().verdict.value == "PASS"
    prefill(cluster, "a")


def test_a_defect_is_on_in_every_role_and_survives_a_reset(clusters) -> None:
    spec = ClusterSpec(stores=1, engines=1, defects=("placement_random",))
    cluster = clusters.get(spec)
    cluster.reset()

    for role in cluster.roles:
        points = cluster.role_state(role)["failpoints"]
        assert points["defect.placement_random"]["spec"] == "on"


def test_a_setting_that_no_role_has_is_a_usage_error(clusters) -> None:
    with pytest.raises(UsageError, match="flux"):
        clusters.get(ClusterSpec(overrides={"engine": {"flux": 1}}))
    with pytest.raises(UsageError, match="gateway"):
        clusters.get(ClusterSpec(overrides={"gateway": {"x": 1}}))


def test_every_link_answers_its_greeting_with_data_and_keeps_its_laws(clusters) -> None:
    cluster = clusters.get(ClusterSpec(stores=1, engines=1))

    for link in cluster.links:
        host, _, port = link.listen.rpartition(":")
        with socket.create_connection((host, int(port)), timeout=5) as connection:
            connection.sendall(link.greeting)
            assert connection.recv(1), link.name
    assert {link.plane for link in cluster.links} == {"data", "rpc", "heartbeat"}
    assert cluster.conservation() == []


def test_a_stopped_cluster_leaves_no_process_and_no_proxy(clusters) -> None:
    cluster = clusters.get(ClusterSpec(stores=1, engines=1))
    processes = [cluster.process(role) for role in cluster.roles]

    clusters.stop_cluster()

    assert not any(is_alive(p.pid, p.start_ticks) for p in processes)
    assert clusters.proxy.proxies() == {}


def test_a_proxy_server_that_died_is_replaced_with_the_cluster(clusters) -> None:
    spec = ClusterSpec(stores=1, engines=1)
    first = clusters.get(spec)
    os.kill(clusters._proxy.pid, signal.SIGKILL)
    assert wait_until(lambda: not clusters._proxy.alive(), timeout_s=5)

    second = clusters.get(spec)

    assert second is not first
    prefill(second, "a")
