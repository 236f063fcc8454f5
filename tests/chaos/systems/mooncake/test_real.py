"""The real Mooncake, started, asked, broken and ended. Minutes, so slow."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest

from chaos.errors import NotHere
from chaos.safety.identity import is_alive, send_signal, wait_until
from chaos.systems.base import Request
from chaos.systems.mooncake import start_mooncake, why_no_etcd, why_not
from chaos.systems.mooncake.client import HUNG
from chaos.systems.seen import Found
from chaos.targets.namespaces import why_no_namespaces

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(120),
    pytest.mark.skipif(bool(why_not()), reason=why_not() or "it can run here"),
]
NAMES = [f"name-{number}" for number in range(24)]
LONG_S = 20.0


@pytest.fixture(scope="module")
def private(tmp_path_factory):
    """Leases of our own, and no proxy of somebody else."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_RUNTIME_DIR", str(tmp_path_factory.mktemp("state")))
        patch.delenv("TOXIPROXY_URL", raising=False)
        patch.setenv("MOONQUAKE_TOXIPROXY", "")
        yield


@pytest.fixture(scope="module")
def shared(private, tmp_path_factory):
    with start_mooncake(tmp_path_factory.mktemp("run"), profile="tuned") as cluster:
        yield cluster


@pytest.fixture
def cluster(shared):
    """The same for all that break nothing."""
    for names in (NAMES,):
        shared.probe().remove(names, timeout_s=LONG_S)
    return shared


def test_what_runs_is_told_by_version_and_build(cluster) -> None:
    assert cluster.package.version in cluster.version
    assert "git" in cluster.version


@pytest.mark.parametrize("path", ["plain", "batched", "ranges", "session"])
def test_every_path_of_reading_gives_every_byte(cluster, path) -> None:
    probe = cluster.probe()
    assert probe.write(NAMES, size_bytes=40_000, timeout_s=LONG_S) == [0] * len(NAMES)

    seen = probe.read_by(path, NAMES, size_bytes=40_000, timeout_s=LONG_S)

    assert {(one.code, one.found) for one in seen} == {(0, Found.WHOLE)}


@pytest.mark.parametrize("path", ["plain", "batched", "ranges", "session"])
def test_a_missing_name_has_a_code_of_its_own_beside_good_ones(cluster, path) -> None:
    probe = cluster.probe()
    probe.write(NAMES[:2], timeout_s=LONG_S)

    seen = probe.read_by(path, [NAMES[0], "missing", NAMES[1]], timeout_s=LONG_S)

    assert [one.code for one in seen] == [0, -704, 0]


def test_a_variant_is_told_from_the_value(cluster) -> None:
    probe = cluster.probe()
    probe.write(["varied"], variant=9, timeout_s=LONG_S)
    seen = probe.read_by("batched", ["varied"], timeout_s=LONG_S)
    plain = probe.read(["varied"], timeout_s=LONG_S)
    probe.remove(["varied"], timeout_s=LONG_S)

    assert (seen[0].found, seen[0].variant) == (Found.WHOLE, 9)
    assert plain == ([0], 1)


def test_values_lie_on_the_store_that_was_asked_for(cluster) -> None:
    probe = cluster.probe()
    for store in cluster.stores:
        names = [f"{store}/{number}" for number in range(3)]
        assert probe.write_to(store, names, timeout_s=LONG_S) == [0, 0, 0]
        assert probe.owners(names, timeout_s=LONG_S) == [(store,)] * 3
        probe.remove(names, timeout_s=LONG_S)


def test_replicas_lie_on_different_stores(cluster) -> None:
    probe = cluster.probe()
    assert probe.write(["twice"], replicas=2, timeout_s=LONG_S) == [0]
    owners = probe.owners(["twice"], timeout_s=LONG_S)[0]
    probe.remove(["twice"], timeout_s=LONG_S)

    assert len(set(owners)) == 2


def test_bytes_are_counted_where_they_lie_and_gone_when_removed(cluster) -> None:
    probe = cluster.probe()
    probe.write_to("store-1", NAMES, size_bytes=16 << 10, timeout_s=LONG_S)
    held = cluster.owned_bytes()
    probe.remove(NAMES, timeout_s=LONG_S)

    assert held["store-1"] >= len(NAMES) * (16 << 10)
    assert wait_until(lambda: not any(cluster.owned_bytes().values()), timeout_s=5)


def test_what_listens_on_every_address_is_known(cluster) -> None:
    """By the kernel's list: Mooncake's handshake and data ports, whatever is said."""
    probe = cluster.probe()
    probe.join()
    pids = {cluster.process(role).pid: role for role in cluster.roles}
    pids[probe.client.process.pid] = "worker"

    wide = {role for pid, role in pids.items() if _listens_everywhere(pid)}

    assert wide <= {*cluster.stores, "worker"}


def test_what_was_written_is_gone_after_a_reset(shared) -> None:
    probe = shared.probe()
    probe.write(NAMES, timeout_s=LONG_S)
    probe.exists(NAMES, timeout_s=LONG_S)  # leased: reset removes it all the same
    shared.reset()

    assert shared.probe().exists(NAMES, timeout_s=LONG_S) == [-704] * len(NAMES)


def test_what_masters_say_reaches_whoever_listens(shared) -> None:
    told = []
    shared.observe_into(lambda role, value: told.append((role, dict(value))))

    assert wait_until(lambda: bool(told), timeout_s=5)
    assert told[0][0] == "master"
    assert len(told[0][1]["segments"]) == len(shared.stores)


def test_a_stopped_store_hangs_a_read_and_never_the_harness(
    private, tmp_path, freeze
) -> None:
    with start_mooncake(tmp_path, stores=2) as cluster:
        probe = cluster.probe()
        probe.write_to("store-0", ["sick"], timeout_s=LONG_S)
        probe.write_to("store-1", ["healthy"], timeout_s=LONG_S)
        process = cluster.process("store-0")
        freeze(process.pid)
        try:
            begin_s = time.monotonic()
            codes, wrong = probe.read(["sick"], timeout_s=3.0)
            waited_s = time.monotonic() - begin_s
            healthy = probe.read(["healthy"], timeout_s=LONG_S)
        finally:
            send_signal(process.pid, process.start_ticks, signal.SIGCONT)

        assert (codes, wrong) == ([HUNG], 0)
        assert 3.0 <= waited_s < 8.0
        assert [(h.op, h.names) for h in probe.hangs] == [("read_by", ("sick",))]
        assert healthy == ([0], 0)


def test_a_killed_store_is_back_empty_under_its_name(private, tmp_path) -> None:
    with start_mooncake(tmp_path, stores=2, profile="tuned") as cluster:
        probe = cluster.probe()
        probe.write_to("store-0", NAMES[:4], timeout_s=LONG_S)
        process = cluster.process("store-0")
        send_signal(process.pid, process.start_ticks, signal.SIGKILL)
        assert wait_until(lambda: cluster.process("store-0") is None, timeout_s=5)
        gone = wait_until(lambda: "store-0" not in cluster.mounted(), timeout_s=15)
        cluster.start_role("store-0")

        assert gone
        assert cluster.mounted() == {"store-0", "store-1"}
        codes, _ = cluster.probe().read(NAMES[:4], timeout_s=LONG_S)
        assert set(codes) == {-704}


@pytest.mark.skipif(bool(why_no_etcd()), reason=why_no_etcd() or "it can run here")
@pytest.mark.parametrize("oplog", [False, True])
def test_elected_masters_serve_and_say_who_leads(private, tmp_path, oplog) -> None:
    with start_mooncake(
        tmp_path, stores=2, profile="tuned", masters=2, oplog=oplog
    ) as cluster:
        probe = cluster.probe()
        written = probe.write(NAMES, timeout_s=LONG_S)

        assert cluster.leader() in cluster.masters
        assert written == [0] * len(NAMES)
        assert probe.read(NAMES, timeout_s=LONG_S) == ([0] * len(NAMES), 0)


def test_an_engine_over_mooncake_reuses_what_another_one_wrote(
    private, tmp_path
) -> None:
    with start_mooncake(
        tmp_path, stores=2, engines=2, profile="tuned", time_scale=1.0
    ) as cluster:
        asked = Request(
            request_id="a",
            session="s",
            at_s=0.0,
            input_length=2048,
            output_length=8,
            hash_ids=(1, 2, 3, 4),
        )
        first = cluster.prefill("engine-0", asked, timeout_s=LONG_S)
        kept = wait_until(lambda: all(cluster.owners_of(asked)), timeout_s=LONG_S)
        second = cluster.prefill("engine-1", asked, timeout_s=LONG_S)
        broken = cluster.conservation()

        assert first.ok, first.error
        assert kept
        assert second.ok, second.error
        assert second.l3_tokens == 2048
        assert second.output_hash == cluster.expected_output(asked)
        assert set(second.stores) <= set(cluster.stores)
        assert broken == []


@pytest.mark.skipif(
    bool(why_no_namespaces()), reason=why_no_namespaces() or "it can run here"
)
def test_on_hosts_a_probe_of_its_own_host_writes_and_reads(private, tmp_path) -> None:
    with start_mooncake(tmp_path, stores=2, profile="tuned", target="netns") as cluster:
        probe = cluster.kv()

        assert probe.write(NAMES, timeout_s=LONG_S) == [0] * len(NAMES)
        assert probe.read(NAMES, timeout_s=LONG_S) == ([0] * len(NAMES), 0)
        assert set(map(len, probe.owners(NAMES, timeout_s=LONG_S))) == {1}
        assert cluster.mounted() == set(cluster.stores)
        with pytest.raises(NotHere):
            cluster.probe()


def test_nothing_outlives_a_harness_that_is_killed(private, tmp_path) -> None:
    program = textwrap.dedent("""
        import sys, time
        from pathlib import Path
        from chaos.systems.mooncake import start_mooncake
        with start_mooncake(Path(sys.argv[1]), stores=2) as cluster:
            probe = cluster.probe()
            probe.join()
            found = [cluster.process(role) for role in cluster.roles]
            found.append(probe.client.process)
            print(" ".join(f"{p.pid}:{p.start_ticks}" for p in found), flush=True)
            time.sleep(60)
    """)
    with subprocess.Popen(
        [sys.executable, "-c", program, str(tmp_path)],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[4])},
    ) as harness:
        line = harness.stdout.readline()
        pids = [tuple(map(int, word.split(":"))) for word in line.split()]
        harness.kill()
    gone = wait_until(lambda: not any(is_alive(*each) for each in pids), timeout_s=5)

    assert len(pids) == 4
    assert gone


def _listens_everywhere(pid: int) -> bool:
    """Whether a process has a TCP socket that listens on every address."""
    mine = set()
    for entry in Path(f"/proc/{pid}/fd").iterdir():
        try:
            mine.add(str(entry.readlink()))
        except FileNotFoundError:
            continue
    for table, anywhere in (("tcp", "0" * 8), ("tcp6", "0" * 32)):
        rows = Path(f"/proc/{pid}/net/{table}").read_text().splitlines()[1:]
        for fields in map(str.split, rows):
            listens = fields[3] == "0A" and fields[1].startswith(anywhere)
            if listens and f"socket:[{fields[9]}]" in mine:
                return True
    return False
