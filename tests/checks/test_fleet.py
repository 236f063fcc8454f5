"""Every host of an inventory becomes a document, whatever it does to us."""

from __future__ import annotations

import threading

import pytest

from checks import collector
from checks.fleet import CollectOptions, collect_fleet
from checks.judge import judge
from inventory import Completed, HostEntry, SshError, SshProblem

PLAIN = {
    "schema": "preflight.facts/1",
    "node": {"hostname": "own"},
    "cmds": {},
    "files": {},
}


def host(name, **more):
    return HostEntry(name=name, address="192.0.2.1", **more)


class FakeSession:
    """Answers as told; an exception is raised."""

    def __init__(self, answer):
        self.answer = answer
        self.asked = []
        self.closed = 0

    def run_python(self, source, args=(), *, timeout_s):
        self.asked.append((bytes(source), list(args), timeout_s))
        if isinstance(self.answer, Exception):
            raise self.answer
        rc, stdout, stderr = self.answer
        return Completed(argv=("python3",), rc=rc, stdout=stdout, stderr=stderr)

    def close(self):
        self.closed += 1


def good(document=PLAIN):
    return (0, collector.framed(document).encode(), b"")


def collected(answers, hosts=None, **options):
    hosts = hosts or [host(name) for name in answers]
    sessions = {name: FakeSession(answer) for name, answer in answers.items()}
    documents = collect_fleet(
        hosts, CollectOptions(**options), session=lambda entry: sessions[entry.name]
    )
    return documents, sessions


@pytest.mark.parametrize("kind", list(SshProblem))
def test_each_way_of_failing_is_reported_as_exactly_that(kind):
    problem = SshError(kind, host="node-b", detail="it did not work")

    documents, _ = collected({"node-a": good(), "node-b": problem})

    error = documents[1]["collector"]["error"]
    assert error["kind"] == kind
    assert "it did not work" in error["reason"]
    assert documents[1]["node"]["hostname"] == "node-b"


@pytest.mark.parametrize(
    ("answer", "kind"),
    [
        ((0, b"", b""), "empty"),
        ((0, b"motd only\n", b""), "garbage"),
        ((0, collector.framed(PLAIN).encode()[:60], b""), "truncated"),
        ((1, b"", b"Traceback\nSyntaxError: boom\n"), "failed"),
        (RuntimeError("unforeseen"), "failed"),
    ],
)
def test_an_answer_that_is_no_document_is_reported_as_what_it_is(answer, kind):
    documents, sessions = collected({"node-a": answer})

    assert documents[0]["collector"]["error"]["kind"] == kind
    assert sessions["node-a"].closed == 1


def test_a_lost_node_is_unknown_and_the_run_undetermined():
    problem = SshError(SshProblem.REFUSED, host="node-b", detail="nobody listens")
    documents, _ = collected({"node-a": good(), "node-b": problem})

    report = judge(documents)

    (finding,) = [
        f for f in report.findings if f.id == "meta-reachable" and f.node == "node-b"
    ]
    assert finding.status == "UNKNOWN"
    assert "refused" in finding.observed
    others = {f.status for f in report.findings if f.node == "node-b"} - {"UNKNOWN"}
    assert others == {"SKIP"}
    assert report.exit_code() == 3
    assert "node-b" in report.undetermined_nodes


def test_the_inventory_names_the_node_its_role_and_its_cohort():
    hosts = [host("node-a", roles=("store", "engine"), cohort="h100")]

    documents, _ = collected({"node-a": good()}, hosts)

    assert documents[0]["node"] == {
        "hostname": "node-a",
        "own_hostname": "own",
        "role": "engine+store",
        "cohort": "h100",
    }


def test_one_round_trip_a_node_with_the_collector_as_it_is():
    _, sessions = collected({"node-a": good()}, nics=("mlx5_0",), nft=True)

    ((source, args, _),) = sessions["node-a"].asked
    assert source.startswith(b'"""Collects the facts of one node')
    assert args == ["--nics", "mlx5_0", "--nft"]
    assert collector.arguments(args).nics == ["mlx5_0"]


def test_with_active_a_node_is_collected_and_then_acts_in_a_second_round_trip():
    _, sessions = collected({"node-a": good()}, active=True)

    (_, args, _), (source, _, _) = sessions["node-a"].asked
    assert args == ["--ping-bytes", "1472", "--active"]
    assert source.startswith(b'"""Acts for `preflight --active` on one node')


def test_who_acts_is_told_before_it_acts():
    told = []
    sessions = {name: FakeSession(good()) for name in ("node-a", "node-b")}
    asked = CollectOptions(active=True)

    collect_fleet(
        [host(name) for name in sessions],
        asked,
        session=lambda entry: sessions[entry.name],
        acting=lambda names: told.append(
            (*names, *(len(each.asked) for each in sessions.values()))
        ),
    )

    assert told == [("node-a", "node-b", 1, 1)]


def test_nodes_ask_for_live_routes_to_their_neighbour_in_the_inventory():
    def rails(last):
        return [
            {"name": f"rail{n}", "device": f"eth{n}", "address": f"198.18.{n}.{last}"}
            for n in range(2)
        ]

    hosts = [host("node-a", rails=rails(1)), host("node-b", port=23, rails=rails(2))]
    _, sessions = collected({"node-a": good(), "node-b": good()}, hosts)

    args = sessions["node-a"].asked[0][1]
    assert collector.arguments(args).peers == [
        "198.18.0.1>198.18.0.2",
        "198.18.0.1>198.18.1.2",
        "198.18.1.1>198.18.1.2",
        "198.18.1.1>198.18.0.2",
    ]


def test_at_most_so_many_nodes_at_a_time_and_all_in_order():
    gate, running, most = threading.Lock(), [0], [0]

    class Counting(FakeSession):
        def run_python(self, source, args=(), *, timeout_s):
            with gate:
                running[0] += 1
                most[0] = max(most[0], running[0])
            threading.Event().wait(0.002)
            with gate:
                running[0] -= 1
            return super().run_python(source, args, timeout_s=timeout_s)

    hosts = [host(f"node-{n:02d}") for n in range(40)]
    seen = []
    documents = collect_fleet(
        hosts,
        CollectOptions(),
        session=lambda entry: Counting(good()),
        done=lambda name, problem: seen.append(name),
        parallel=8,
    )

    assert most[0] <= 8
    assert [d["node"]["hostname"] for d in documents] == [h.name for h in hosts]
    assert sorted(seen) == [h.name for h in hosts]
