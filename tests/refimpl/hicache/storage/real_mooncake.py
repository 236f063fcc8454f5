"""A program: MooncakeStorage on a real master and two stores, one of them stopped.

Prints one JSON document and leaves without asking the native client, which may hang.
Arguments: three free loopback addresses (master, store, store).
"""

from __future__ import annotations

import importlib.util
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

PACKAGE = Path(importlib.util.find_spec("mooncake").submodule_search_locations[0])
RPC, ADMIN = 50051, 9003
SIZE = 16 << 10
DEADLINE_S = 0.5
QUIET = {"GLOG_minloglevel": "2", "GLOG_logtostderr": "1"}


def main() -> None:
    master, *stores = sys.argv[1:]
    started = [start_master(master)]
    try:
        wait_until(lambda: known(master) == {})
        started += [start_store(master, at, n) for n, at in enumerate(stores)]
        wait_until(lambda: len(known(master)) == len(stores))
        told = measure(master, started)
    finally:
        for process in started:
            process.kill()
        for process in started:
            process.wait()
    print(json.dumps(told), flush=True)
    os._exit(0)


def start_master(address):
    return start(
        "mooncake_master",
        f"--rpc_address={address}",
        f"--rpc_port={RPC}",
        f"--metrics_host={address}",
        f"--metrics_port={ADMIN}",
    )


def start_store(master, address, number):
    return start(
        "mooncake_client",
        f"--host={address}",
        f"--port={50100 + os.getpid() % 5000 * 2 + number}",
        "--global_segment_size=64MB",
        f"--master_server_address={master}:{RPC}",
        "--metadata_server=P2PHANDSHAKE",
        "--protocol=tcp",
        env={"MC_TCP_BIND_ADDRESS": address},
    )


def start(program, *flags, env=None):
    return subprocess.Popen(
        [str(PACKAGE / program), *flags],
        env={**os.environ, **QUIET, **(env or {})},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )


def known(master):
    from refimpl.hicache.storage.segments import fetch_from

    try:
        return fetch_from(f"{master}:{ADMIN}")()
    except (OSError, ValueError):
        return None


def wait_until(state, timeout_s=20.0):
    end_s = time.monotonic() + timeout_s
    while not state():
        if time.monotonic() > end_s:
            raise SystemExit("waited too long for Mooncake")
        time.sleep(0.05)


def storage_on(master):
    from refimpl.hicache.storage.mooncake import MooncakeSettings, MooncakeStorage
    from refimpl.native.client import NativeOptions
    from refimpl.native.process import ProcessOpener

    host, admin = master, f"{master}:{ADMIN}"
    opener = ProcessOpener(
        NativeOptions(master=f"{master}:{RPC}", host=host, admin=admin)
    )
    storage = MooncakeStorage(opener, MooncakeSettings(admin=admin))
    wait_until(lambda: storage.stats()["connected"] and storage.stats()["segments"])
    return storage


def measure(master, started):
    os.environ.update(QUIET)
    storage = storage_on(master)
    keys = [bytes([n]) * 32 for n in range(1, 17)]
    values = [bytes([n]) * SIZE for n in range(1, 17)]
    put = storage.put(
        b"".join(keys), [memoryview(bytearray(v)) for v in values], timeout_s=5
    )
    whole = get(storage, keys, 5.0)
    endpoints = sorted(storage.stats()["segments"])
    canary = [storage.probe(one, timeout_s=2.0) for one in endpoints]
    os.kill(started[-1].pid, signal.SIGSTOP)
    stat = Path(f"/proc/{started[-1].pid}/stat")
    wait_until(lambda: stat.read_text().rpartition(")")[2].split()[0] == "T")
    mixed = get(storage, keys, DEADLINE_S)
    hung = storage.stats()["lanes"]["hung"]
    sick = next(iter(hung), "")
    again = get(storage, keys, DEADLINE_S, avoid=frozenset({sick}))
    probes = {e: storage.probe(e, timeout_s=DEADLINE_S) for e in endpoints}
    os.kill(started[-1].pid, signal.SIGCONT)
    wait_until(lambda: not storage.stats()["lanes"]["hung"])
    return {
        "put": put.codes.tolist(),
        "whole": whole,
        "canary": canary,
        "mixed": mixed,
        "sick": sick,
        "again": again,
        "probes": probes,
        "stats": storage.stats(),
    }


def get(storage, keys, timeout_s, **how):
    """Codes, whose bytes came right, blamed endpoints and seconds."""
    buffers = [bytearray(SIZE) for _ in keys]
    began_s = time.monotonic()
    result = storage.get(
        b"".join(keys), [memoryview(b) for b in buffers], timeout_s=timeout_s, **how
    )
    return {
        "took_s": time.monotonic() - began_s,
        "codes": result.codes.tolist(),
        "right": [
            bytes(b) == key[:1] * SIZE for key, b in zip(keys, buffers, strict=True)
        ],
        "endpoints": {name: int(code) for name, code in result.endpoints.items()},
    }


if __name__ == "__main__":
    main()
