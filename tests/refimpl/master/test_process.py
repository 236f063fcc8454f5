"""A master as a process: doors, ready line, taken ports, orderly end."""

from __future__ import annotations

import json
import socket
import time

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

SERVICE = "moonquake.refimpl.v1.Master"


def keys(count: int, first: int = 0) -> bytes:
    return b"".join((first + i).to_bytes(32, "little") for i in range(1, count + 1))


def test_all_doors_are_open_when_the_ready_line_is_there(start_master) -> None:
    master = start_master("--name", "m-1")

    assert master.mount(1) == 0
    assert master.state()["name"] == "m-1"
    with master.beats() as door:
        assert door.beat(1) == 0
    assert json.loads(master.page("/health"))["status"] == "ok"
    assert master.page("/role") == "leader"


def test_health_checking_and_reflection_answer(master) -> None:
    channel = master.channel()
    health = health_pb2_grpc.HealthStub(channel)
    checks = [
        health.Check(health_pb2.HealthCheckRequest(service=name), timeout=5).status
        for name in ("", SERVICE)
    ]
    listing = reflection_pb2.ServerReflectionRequest(list_services="")
    answers = reflection_pb2_grpc.ServerReflectionStub(channel).ServerReflectionInfo(
        iter([listing]), timeout=5
    )
    listed = [s.name for a in answers for s in a.list_services_response.service]

    assert checks == [health_pb2.HealthCheckResponse.SERVING] * 2
    assert SERVICE in listed


@pytest.mark.parametrize(
    ("flag", "what"),
    [
        ("--listen", "--listen"),
        ("--management-listen", "--management-listen"),
        ("--heartbeat-listen", "--heartbeat-listen"),
        ("--admin-listen", "--admin-listen"),
    ],
)
def test_taken_port_is_refused_in_one_line_that_names_it(run_master, flag, what):
    flags = {
        "--listen": "127.0.0.1:0",
        "--heartbeat-listen": "127.0.0.1:0",
        "--admin-listen": "127.0.0.1:0",
    }
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        flags[flag] = address
        began = time.monotonic()
        ended = run_master(*(word for pair in flags.items() for word in pair))

    assert ended.returncode == 2
    assert time.monotonic() - began < 5
    assert ended.stdout == ""
    (line,) = ended.stderr.splitlines()
    assert address in line
    assert what in line
    assert "EADDRINUSE" in line


def test_sigterm_ends_it_orderly_within_a_second(start_master) -> None:
    master = start_master()
    master.mount(1)
    with master.beats() as door:
        door.beat(1)
        began = time.monotonic()
        code = master.stop()

    assert code == 0
    assert time.monotonic() - began < 1.0


def test_sigterm_ends_it_although_workers_hang_in_a_failpoint(start_master) -> None:
    master = start_master(REFIMPL_FAILPOINTS="master.lookup=pause")
    calls = [master.stub.Lookup.future(master_lookup(), timeout=20) for _ in range(12)]
    time.sleep(0.1)
    began = time.monotonic()
    code = master.stop()
    took_s = time.monotonic() - began

    assert code == 0
    assert took_s < 1.5
    assert all(call.done() for call in calls)


def master_lookup():
    from refimpl.proto import pool_pb2

    return pool_pb2.LookupRequest(keys=keys(1))


def test_settings_come_from_environment_and_file_too(start_master, tmp_path) -> None:
    config = tmp_path / "cluster.toml"
    config.write_text('[master]\nallocation_strategy = "free_ratio_first"\n')
    master = start_master(
        "--config",
        str(config),
        REFIMPL_DEFAULT_KV_LEASE_TTL_S="4",
        REFIMPL_TIME_SCALE="0.5",
    )
    master.mount(1)
    master.put(keys(1))

    assert master.lookup(keys(1)).lease_ms == 2000
    assert master.state()["settings"]["allocation_strategy"] == "free_ratio_first"


def test_bad_columns_are_the_callers_mistake(master) -> None:
    stub = master.stub
    from refimpl.proto import pool_pb2 as pb

    bad = [
        (stub.Lookup, pb.LookupRequest(keys=b"x" * 33)),
        (stub.PutStart, pb.PutStartRequest(keys=keys(2), sizes=bytes(4))),
        (stub.PutStart, pb.PutStartRequest(keys=keys(1), sizes=bytes(4), pin="x")),
        (stub.PutEnd, pb.PutEndRequest(keys=keys(1), token=bytes(8))),
        (stub.PutEnd, pb.PutEndRequest(keys=keys(1), checksum=bytes(8))),
        (stub.PutRevoke, pb.PutEndRequest(keys=keys(1), token=bytes(9))),
        (stub.Remove, pb.RemoveRequest(keys=b"y")),
        (stub.MountSegment, pb.MountRequest(client=1)),
        (stub.UnmountSegment, pb.UnmountRequest(grace_s=float("nan"))),
    ]
    errors = []
    for call, request in bad:
        with pytest.raises(grpc.RpcError) as caught:
            call(request, timeout=5)
        errors.append(caught.value)

    assert {e.code() for e in errors} == {grpc.StatusCode.INVALID_ARGUMENT}
    assert all(e.details().startswith("INVALID_PARAMS: ") for e in errors)
    assert master.metric("master_batch_get_replica_list_failures_total") == 1


def test_message_of_many_megabytes_passes(master) -> None:
    answer = master.lookup(keys(1) * (1 << 18))

    assert len(answer.status) == 2 << 18
