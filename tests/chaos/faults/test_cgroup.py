"""Limits of a role's own cgroup, on either version, as steps and as evidence."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from chaos.errors import NotHere, UsageError
from chaos.faults import on_hosts
from chaos.faults.host_fault import Part
from chaos.hosts.host import Host
from chaos.hosts.link import CommandResult
from chaos.safety.management import Device, HostFacts, judge
from chaos.systems.base import Process

V1 = (
    "cgroup /sys/fs/cgroup/memory cgroup rw,memory 0 0\n"
    "cgroup /sys/fs/cgroup/blkio cgroup rw,blkio 0 0\n"
    "cgroup2 /sys/fs/cgroup/unified cgroup2 rw 0 0\n"
)
V2 = "cgroup2 /sys/fs/cgroup cgroup2 rw 0 0\n"
FACTS = HostFacts(
    host="h0", devices=(Device(name="mgmt0"),), controllers=("198.19.0.1",)
)


class FakeAgent:
    """Answers as a host with this version of cgroups would."""

    run_id = "r"

    def __init__(self, version: str) -> None:
        self.version = version
        self.files = {
            "/proc/self/mounts": V1 if version == "v1" else V2,
            "/proc/self/mountinfo": "31 1 254:17 / /scratch rw - ext4 /dev/vdb1 rw\n",
            "/proc/7/cgroup": "4:memory:/a\n3:blkio:/b\n0::/c\n",
            "/sys/fs/cgroup/cgroup.controllers": "cpu io memory\n",
            "/sys/dev/block/254:17/partition": "1\n",
            "/sys/dev/block/254:17/../dev": "254:16\n",
        }

    def probe(self):
        return {"root": True, "cgroup": self.version}

    def run(self, argv, *, stdin="", timeout_s=5.0):
        text = self.files.get(argv[-1])
        rc = 0 if text is not None else 1
        return CommandResult(rc=rc, stdout=text or "", stderr="", timed_out=False)


@pytest.fixture(params=["v1", "v2"])
def host(request):
    return Host(
        name="h0",
        roles=("store-0",),
        agent=FakeAgent(request.param),
        scratch="/scratch",
    )


def cluster(host, process=Process(role="store-0", pid=7, start_ticks=9)):  # noqa: B008
    return SimpleNamespace(
        hosts=SimpleNamespace(all=(host,), of=lambda role: host),
        process=lambda role: process,
    )


def steps_of(fault, host):
    return list(fault.steps(host, FACTS))


def written(steps) -> dict[str, str]:
    return {
        s.do["path"].rpartition("/")[2]: s.do["text"] for s in steps if "path" in s.do
    }


def test_memory_is_limited_by_the_file_of_the_version(host) -> None:
    steps = steps_of(on_hosts.memory_limit(cluster(host), "store-0", 1000), host)
    name = {"v1": "memory.limit_in_bytes", "v2": "memory.max"}[host.agent.version]

    assert written(steps) == {name: "1000", "cgroup.procs": "7"}


def test_a_partition_is_slowed_down_by_its_whole_disk_both_ways(host) -> None:
    steps = steps_of(on_hosts.slow_disk(cluster(host), "store-0", 2), host)
    found = written(steps)
    found.pop("cgroup.procs")

    if host.agent.version == "v1":
        assert found == {
            "blkio.throttle.read_bps_device": "254:16 2000",
            "blkio.throttle.write_bps_device": "254:16 2000",
        }
    else:
        assert found == {"io.max": "254:16 rbps=2000 wbps=2000"}


def test_the_role_goes_back_to_where_it_was(host) -> None:
    made, *_ = steps_of(on_hosts.memory_limit(cluster(host), "store-0", 1000), host)
    back = {"v1": "/sys/fs/cgroup/memory/a", "v2": "/sys/fs/cgroup/c"}

    assert made.undo["run"][-1] == back[host.agent.version]
    assert made.undo["run"][-2] == made.do["run"][1]


def test_the_guard_lets_a_limit_of_one_role_pass(host) -> None:
    for fault in (
        on_hosts.memory_limit(cluster(host), "store-0", 1000),
        on_hosts.slow_disk(cluster(host), "store-0", 2),
    ):
        steps = [step.to_json() for step in steps_of(fault, host)]

        assert judge(FACTS, steps) == ""


def test_the_limit_goes_up_before_the_role_moves_in(host) -> None:
    steps = steps_of(on_hosts.memory_limit(cluster(host), "store-0", 1000), host)

    assert steps[0].do["run"][0] == "mkdir"
    assert steps[-1].do["path"].endswith("/cgroup.procs")


def test_evidence_is_how_often_the_limit_was_met(host) -> None:
    fault = on_hosts.memory_limit(cluster(host), "store-0", 1000)
    (made, *_) = steps_of(fault, host)
    folder = made.do["run"][1]
    part = Part(host=host, facts=FACTS, steps=(made,))

    assert fault.effect(part)[0] == 0
    host.agent.files[f"{folder}/memory.failcnt"] = "3\n"
    host.agent.files[f"{folder}/memory.events"] = "low 9\nhigh 0\nmax 2\noom 1\n"
    assert fault.effect(part)[0] == 3


def test_evidence_of_a_slow_disk_is_what_went_through_the_throttle(host) -> None:
    fault = on_hosts.slow_disk(cluster(host), "store-0", 2)
    (made, *_) = steps_of(fault, host)
    folder = made.do["run"][1]
    part = Part(host=host, facts=FACTS, steps=(made,))

    assert fault.effect(part)[0] == 0
    host.agent.files[f"{folder}/blkio.throttle.io_service_bytes"] = (
        "254:16 Read 100\n254:16 Write 200\n254:16 Sync 300\n254:16 Total 300\n"
    )
    host.agent.files[f"{folder}/io.stat"] = "254:16 rbytes=100 wbytes=200 rios=1 wios=1"
    assert fault.effect(part)[0] == 300


def test_a_host_without_cgroups_says_so(host) -> None:
    host.agent.probe = lambda: {"root": True, "why_not": {"cgroup": "none mounted"}}

    with pytest.raises(NotHere, match="none mounted"):
        steps_of(on_hosts.memory_limit(cluster(host), "store-0", 1000), host)


def test_a_role_that_does_not_run_cannot_be_limited(host) -> None:
    fault = on_hosts.memory_limit(cluster(host, process=None), "store-0", 1000)

    with pytest.raises(UsageError, match="not running"):
        steps_of(fault, host)


@pytest.mark.parametrize("limit", [0, -1])
def test_a_limit_of_nothing_is_refused(host, limit) -> None:
    with pytest.raises(UsageError):
        on_hosts.memory_limit(cluster(host), "store-0", limit)
    with pytest.raises(UsageError):
        on_hosts.slow_disk(cluster(host), "store-0", limit)
