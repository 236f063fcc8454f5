"""How long `preflight` judges a fleet: 1,000 nodes with 8 rails, 64 million rail pairs.

`python -m benchmarks.preflight [--json] [--quick]` writes the facts documents of a
healthy fleet to a directory, and judges them in a process of its own, as `preflight
judge DIR` does: load, parse, judge. Every rail is predicted to every rail of every
other node; the report says how many pairs, and they are counted here.

| row | target |
|---|---|
| judge | the whole of loading and judging, less than 30 s on two cores |
| memory | the greatest resident sets of judge and helper together, less than 2 GiB |
| pairs | every (rail, rail of another node), predicted or soundly collapsed |
| one node | `preflight` of this host from start to end, less than 3 s |

The fleet is judged by as many processes as there are processors, so on two cores the
time is that of two; other work on the machine counts into it. For the one node, the
files of a healthy node with eight ports lie below a `--sysroot`, so that its counters
are read twice, 2 s apart; the commands are those of this host.

Exit code: 0 when every target is met, 1 when one is missed, 3 when one could not be
judged.
"""

from __future__ import annotations

import argparse
import json
import re
import resource
import subprocess
import sys
import tempfile
import time
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any

NODES, QUICK_NODES = 1000, 100
RAILS = 8
NEIGHBOURS = 15
LIMIT_S = 30.0
LIMIT_MIB = 2048
NODE_LIMIT_S = 3.0
_HEALTHY = Path(__file__).parents[1] / "tests" / "checks" / "healthy.py"
_COUNTED = re.compile(r"^(\d+) (?:peers|rails of peers) over ")


def _healthy() -> Any:
    """The healthy cohort of the tests: what a good node says, for any plan."""
    spec = spec_from_file_location("benchmarks_healthy", _HEALTHY)
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def _fleet_of(healthy: Any, nodes: int) -> list[Any]:
    """Plans of a greater fleet: a /16 for every rail, some neighbours for each."""

    class Rail(healthy.RailPlan):  # type: ignore[misc]
        prefixlen = 16

        @property
        def ip(self) -> str:
            high, low = divmod(self.node, 250)
            return f"10.{100 + self.index}.{high}.{low + 1}"

        @property
        def network(self) -> str:
            return f"10.{100 + self.index}.0.0/16"

        @property
        def gateway(self) -> str:
            return f"10.{100 + self.index}.255.254"

        @property
        def mac(self) -> str:
            high, low = divmod(self.node + 1, 256)
            return f"02:00:5f:{self.index:02x}:{high:02x}:{low:02x}"

    class Node(healthy.Plan):  # type: ignore[misc]
        @property
        def name(self) -> str:
            return f"node-{self.index:04d}"

        hostname = name

        @property
        def ip(self) -> str:
            high, low = divmod(self.index, 250)
            return f"172.16.{high}.{low + 1}"

        @property
        def mgmt_mac(self) -> str:
            high, low = divmod(self.index + 1, 256)
            return f"02:00:5e:ff:{high:02x}:{low:02x}"

        @property
        def rails(self) -> tuple[Any, ...]:
            return tuple(Rail(self.index, rail) for rail in range(RAILS))

        @property
        def peers(self) -> tuple[Any, ...]:
            steps = range(1, min(NEIGHBOURS, nodes - 1) + 1)
            return tuple(Node((self.index + step) % nodes) for step in steps)

    return [Node(index) for index in range(nodes)]


def write_fleet(directory: Path, nodes: int) -> int:
    """Writes one document a node; returns how many bytes."""
    healthy = _healthy()
    cohort = healthy.Healthy()
    size = 0
    for plan in _fleet_of(healthy, nodes):
        path = directory / f"{plan.name}.json"
        size += path.write_text(json.dumps(cohort._document(plan)))
    return size


def judge(directory: Path) -> dict[str, Any]:
    """Loads and judges a directory, in this process; times, memory, counts."""
    from checks.documents import load_documents
    from checks.judge import judge as judged
    from checks.shares import processors

    began = time.monotonic()
    documents = load_documents([directory])
    loaded = time.monotonic()
    report = judged(documents, processes=processors())
    ended = time.monotonic()
    pairs = sum(
        int(found[1])
        for finding in report.findings
        if finding.id in {"route-peer-same-rail", "route-cross-rail"}
        and (found := _COUNTED.match(finding.observed))
    )
    return {
        "nodes": len(report.nodes),
        "checks": len({finding.id for finding in report.findings}),
        "findings": len(report.findings),
        "bad": sum(finding.bad for finding in report.findings),
        "own_faults": len(report.own_faults),
        "pairs": pairs,
        "load_s": round(loaded - began, 2),
        "judge_s": round(ended - loaded, 2),
        "total_s": round(ended - began, 2),
        "processes": processors(),
        "peak_mib": sum(
            map(_peak_mib, (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
        ),
    }


def _peak_mib(who: int) -> int:
    """Of this process, or of its greatest helper, whose shared pages count again."""
    return resource.getrusage(who).ru_maxrss >> 10


def measure(nodes: int) -> dict[str, Any]:
    """Writes a fleet and judges it in a child process."""
    with tempfile.TemporaryDirectory(prefix="preflight-") as directory:
        size = write_fleet(Path(directory), nodes)
        command = [sys.executable, "-m", "benchmarks.preflight", "--judge", directory]
        done = subprocess.run(command, capture_output=True, text=True, timeout=600)
    if done.returncode != 0:
        raise RuntimeError(f"the judging process failed: {done.stderr.strip()[-500:]}")
    return {**json.loads(done.stdout), "facts_mib": size >> 20}


def one_node() -> float:
    """Seconds of one `preflight` of a host with eight ports, best of three."""
    with tempfile.TemporaryDirectory(prefix="preflight-") as directory:
        cohort = _healthy().Healthy()
        _write_root(Path(directory), cohort.document()["files"])
        command = [sys.executable, "-c", "from checks.cli import main; exit(main())"]
        times = []
        for _ in range(3):
            began = time.monotonic()
            done = subprocess.run(
                [*command, "--sysroot", directory],
                capture_output=True,
                text=True,
                timeout=60,
            )
            times.append(time.monotonic() - began)
            if "verdict:" not in done.stdout:
                raise RuntimeError(f"preflight failed: {done.stderr.strip()[-500:]}")
    return round(min(times), 2)


def _write_root(root: Path, files: dict[str, Any]) -> None:
    """The files of a document below a directory; the newest sample of each."""
    for path, found in files.items():
        entry = found[-1] if isinstance(found, list) else found
        place = root / path.lstrip("/")
        if "entries" in entry:
            place.mkdir(parents=True, exist_ok=True)
        elif "text" in entry or "link" in entry:
            place.parent.mkdir(parents=True, exist_ok=True)
            if "link" in entry:
                place.symlink_to(entry["link"])
            else:
                place.write_text(entry["text"])


def verdicts(seen: dict[str, Any], nodes: int) -> dict[str, bool]:
    """Which targets are met. A smaller fleet has a share of the time."""
    every = nodes * RAILS * (nodes - 1) * RAILS
    return {
        f"judge {seen['total_s']} s < {LIMIT_S * nodes / NODES:g} s": seen["total_s"]
        < LIMIT_S * nodes / NODES,
        f"memory {seen['peak_mib']} MiB < {LIMIT_MIB} MiB": seen["peak_mib"]
        < LIMIT_MIB,
        f"pairs {seen['pairs']:,} of {every:,}": seen["pairs"] == every,
        "no fault of our own": seen["own_faults"] == 0,
        f"one node {seen['one_node_s']} s < {NODE_LIMIT_S:g} s": seen["one_node_s"]
        < NODE_LIMIT_S,
    }


def main(argv: list[str] | None = None) -> int:
    """Runs the benchmark; prints its rows and returns its exit code."""
    parser = argparse.ArgumentParser(description="judging a fleet of 1,000 nodes")
    parser.add_argument("--json", action="store_true", help="one JSON object")
    parser.add_argument("--quick", action="store_true", help=f"{QUICK_NODES} nodes")
    parser.add_argument("--judge", type=Path, help=argparse.SUPPRESS)
    args = parser.parse_args(argv)
    if args.judge is not None:
        print(json.dumps(judge(args.judge)))
        return 0
    nodes = QUICK_NODES if args.quick else NODES
    seen = {**measure(nodes), "one_node_s": one_node()}
    met = verdicts(seen, nodes)
    if args.json:
        print(json.dumps({**seen, "targets": met}, indent=2))
    else:
        print(
            f"{seen['nodes']} nodes x {RAILS} rails, {seen['checks']} checks,"
            f" {seen['findings']:,} findings, {seen['facts_mib']} MiB of facts;"
            f" load {seen['load_s']} s, judge {seen['judge_s']} s"
        )
        for row, good in met.items():
            print(f"  {'met   ' if good else 'MISSED'}  {row}")
    return 0 if all(met.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
