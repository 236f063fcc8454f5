"""The route engine against the kernel's own `ip route get`, for random sets.

Every set is rules, tables and routes in a private namespace with four veth rails, one
without a carrier. The kernel's dumps are the engine's only input; its answers to
`ip route get` are the truth.
"""

from __future__ import annotations

import json
import random
import time
from dataclasses import dataclass, field
from ipaddress import ip_network

import pytest

from checks.facts import Facts
from checks.routing.decision import ERRORS, FOREIGN, UNREACHABLE
from checks.routing.host import fib_of
from checks.routing.query import UDP, Query, number

RAILS = ("r0", "r1", "r2", "r3")
SOURCES = ("10.0.0.1", "10.1.0.1", "10.2.0.1", "10.3.0.1", "10.2.1.1")
TABLES = ("101", "102", "103", "104", "main")
PROTO = "77"
QUERIES = 8


def prefix(rng):
    length = rng.choice((0, 8, 14, 15, 16, 23, 24, 25, 30, 31, 32))
    if length == 0:
        return "default"
    value = number(destination(rng)) >> (32 - length) << (32 - length)
    return f"{dotted(value)}/{length}"


def destination(rng):
    if rng.random() < 0.1:
        return rng.choice(("192.0.2.9", "172.16.0.1", *SOURCES, "10.1.0.255"))
    return f"10.{rng.randrange(6)}.{rng.randrange(3)}.{rng.choice((2, 3, 77, 130))}"


def dotted(value):
    return ".".join(str(value >> shift & 255) for shift in (24, 16, 8, 0))


def hop(rng):
    rail = rng.randrange(4)
    if rng.random() < 0.3:
        return f"dev r{rail}"
    return f"via 10.{rail}.0.{rng.randrange(2, 9)} dev r{rail}"


def route(rng):
    table = rng.choice(TABLES)
    dst = prefix(rng)
    kind = rng.random()
    tail = f"table {table} proto {PROTO}"
    if rng.random() < 0.3:
        tail += f" metric {rng.choice((5, 50, 500))}"
    if rng.random() < 0.1:
        tail += " tos 0x10"
    if kind < 0.15:
        refusal = rng.choice(("blackhole", "unreachable", "prohibit", "throw"))
        return f"route append {refusal} {dst} {tail}"
    if kind < 0.25:
        hops = " ".join(
            f"nexthop {hop(rng)} weight {rng.randrange(1, 4)}" for _ in "ab"
        )
        return f"route append {dst} {tail} {hops}"
    if kind < 0.28:
        return f"route append local {dst} dev lo {tail}"
    # a default with the same metric twice is one that the kernel may choose by turns
    return f"route append {dst} {hop(rng)} {tail}"


def selector(rng):
    words = []
    if rng.random() < 0.6:
        words += ["from", rng.choice((*SOURCES, "10.2.0.0/16", "10.0.0.0/8", "all"))]
    if rng.random() < 0.3:
        words += ["to", prefix(rng).replace("default", "0.0.0.0/0")]
    if rng.random() < 0.15:
        words += ["fwmark", rng.choice(("0x200/0xf00", "0x10", "0x0/0xff"))]
    if rng.random() < 0.1:
        words += ["tos", "0x10"]
    if rng.random() < 0.1:
        words += ["iif", rng.choice(("lo", "r1", "nope"))]
    if rng.random() < 0.1:
        words += ["oif", rng.choice(("r2", "nope"))]
    if rng.random() < 0.1:
        words += ["ipproto", rng.choice(("udp", "tcp"))]
    if rng.random() < 0.08:
        words += ["dport", rng.choice(("4791", "4000-5000"))]
    if rng.random() < 0.08:
        words += ["uidrange", rng.choice(("0-0", "1000-2000"))]
    if rng.random() < 0.12:
        words = ["not", *words]
    return words or ["from", "all"]


def action(rng, priority):
    kind = rng.random()
    if kind < 0.06:
        return ["goto", str(rng.choice((priority + 7, 32766, 300)))]
    if kind < 0.1:
        return [rng.choice(("blackhole", "unreachable", "prohibit"))]
    words = ["lookup", rng.choice((*TABLES, "105"))]
    if rng.random() < 0.2:
        words += ["suppress_prefixlength", str(rng.choice((0, 8, 16, 24)))]
    return words


def rule(rng):
    priority = rng.randrange(1, 220)
    words = ["rule add pref", str(priority), *selector(rng), *action(rng, priority)]
    return " ".join(words)


def query(rng):
    dst = destination(rng)
    src = (
        rng.choice((*SOURCES, *SOURCES, "10.9.9.9", "")) if rng.random() < 0.95 else ""
    )
    words = ["route get", dst, *(["from", src] if src else [])]
    asked = {"dst": number(dst), "src": number(src) if src else 0}
    if rng.random() < 0.1:
        asked["oif"] = rng.choice(RAILS)
        words += ["oif", asked["oif"]]
    if rng.random() < 0.15:
        asked["mark"] = rng.choice((0x200, 0x10, 0x310))
        words += ["mark", hex(asked["mark"])]
    if rng.random() < 0.15:
        asked["tos"] = 0x10
        words += ["tos", "0x10"]
    if rng.random() < 0.15:
        asked["protocol"], name = rng.choice(((UDP, "udp"), (6, "tcp")))
        asked["dport"] = rng.choice((4791, 80))
        words += ["ipproto", name, "dport", str(asked["dport"])]
    return " ".join(words), Query(**asked)


@dataclass
class Batch:
    """Lines for `ip -batch`, and what to make of their outputs."""

    lines: list = field(default_factory=list)
    kept: dict = field(default_factory=dict)

    def add(self, line, keep=None):
        self.lines.append(line)
        if keep is not None:
            self.kept[len(self.lines)] = keep

    def run(self, namespace, version=4):
        """{keep: (output, error)} of every line that is kept."""
        text = "\n".join(self.lines) + "\n"
        options = (f"-{version}", "-j", "-force", "-batch", "-")
        done = namespace.run("ip", *options, text=text, check=False)
        errors, message = {}, ""
        for told in done.stderr.splitlines():
            if told.startswith("Command failed -:"):
                errors[int(told.rpartition(":")[2])] = message
            message = told
        # a flush that found nothing prints an empty list; no dump of ours is empty
        outputs = iter([line for line in done.stdout.splitlines() if line != "[]"])
        found = {
            keep: ("", errors[at]) if at in errors else (next(outputs), "")
            for at, keep in self.kept.items()
        }
        assert next(outputs, None) is None, "an output that belongs to no line"
        return found


def generate(batch, rng, at, *, ruled):
    """One set: what was before goes, rules and routes come, dumps and answers."""
    batch.add(f"route flush table all proto {PROTO}")
    if ruled:
        batch.add("rule flush")
        batch.add("rule add pref 32766 from all lookup main")
        batch.add("rule add pref 32767 from all lookup default")
        for _ in range(rng.randrange(1, 8)):
            batch.add(rule(rng))
        batch.add("rule add pref 32000 from 203.0.113.0/24 lookup main")
    for _ in range(rng.randrange(1, 14)):
        batch.add(route(rng))
    batch.add("rule show", (at, "rule"))
    batch.add("route show table all", (at, "route"))
    asked = []
    for n in range(QUERIES):
        line, question = query(rng)
        batch.add(line, (at, n))
        asked.append((line, question))
    return asked


def prepare(namespace, *, quiet):
    made = namespace()
    made.ip("link set lo up")
    for at, name in enumerate(RAILS):
        more = ("10.2.1.1/23",) if at == 2 else ()
        made.rail(name, f"10.{at}.0.1/24", *more, carrier=at != 3)
    leaf = "conf/all/ignore_routes_with_linkdown"
    made.sysctl(leaf, quiet)
    addresses = made.ip("-j -d addr")
    files = {f"/proc/sys/net/ipv4/{leaf}": f"{quiet}\n"}
    return made, addresses, files


def differs(decision, output, error):
    """What the engine says differently from the kernel; "" where they agree."""
    if error:
        told = error.removeprefix("RTNETLINK answers: ")
        refused = {FOREIGN: {UNREACHABLE, ERRORS["blackhole"]}}
        agrees = told in refused.get(decision.error, {decision.error})
        return "" if agrees else f"kernel: {told}; engine: {decision}"
    (row,) = json.loads(output)
    if decision.error:
        return f"kernel: {row}; engine: {decision.error}"
    kind = row.get("type", "unicast")
    same = kind == ("unicast" if decision.type == "unicast" else decision.type)
    hops = {(each.dev, each.gateway) for each in decision.hops}
    gateway = row.get("gateway", "")
    known = (row["dev"], gateway) in hops or (decision.is_local and row["dev"] == "lo")
    table = row.get("table", "main")
    placed = table == (decision.table or "main")
    return "" if same and known and placed else f"kernel: {row}; engine: {decision}"


def compare(bench, namespace, sets, seed, *, ruled, quiet, chunk=200):
    """(questions, disagreements, decisions that leave the kernel a choice)."""
    rng = random.Random(seed)
    made, addresses, files = prepare(namespace, quiet=quiet)
    questions = open_ = 0
    wrong = []
    for start in range(0, sets, chunk):
        batch = Batch()
        every = range(start, min(start + chunk, sets))
        asked = {at: generate(batch, rng, at, ruled=ruled) for at in every}
        found = batch.run(made)
        for at in every:
            cmds = {
                "ip -j -d addr": addresses,
                "ip -j -4 rule": found[at, "rule"][0],
                "ip -j -4 route show table all": found[at, "route"][0],
            }
            fib = fib_of(Facts(bench.doc(cmds=cmds, files=files)), 4)
            for n, (line, question) in enumerate(asked[at]):
                decision = fib.lookup(question)
                questions += 1
                open_ += len(decision.hops) > 1
                told = differs(decision, *found[at, n])
                if told:
                    wrong.append((at, line, told, cmds["ip -j -4 rule"]))
    return questions, wrong, open_


def total(bench, namespace, sets):
    """All kinds of namespaces; the sets are spread over them."""
    kinds = [(True, 0, 0.55), (True, 1, 0.25), (False, 0, 0.1), (False, 1, 0.1)]
    questions = open_ = 0
    wrong = []
    for seed, (ruled, quiet, share) in enumerate(kinds):
        part = compare(
            bench, namespace, int(sets * share), seed, ruled=ruled, quiet=quiet
        )
        questions += part[0]
        wrong += part[1]
        open_ += part[2]
    return questions, wrong, open_


def test_the_kernel_agrees_on_some_random_sets(bench, namespace):
    questions, wrong, _ = total(bench, namespace, 200)

    assert questions == 200 * QUERIES
    assert wrong == []


@pytest.mark.slow
@pytest.mark.timeout(240)
def test_the_kernel_agrees_on_ten_thousand_random_sets(bench, namespace):
    questions, wrong, open_ = total(bench, namespace, 10_000)

    assert questions == 10_000 * QUERIES
    assert wrong == []
    assert open_ < questions / 10, "nearly every decision names one device only"


# IPv6: fewer kinds of selectors, sources need not be our own


SOURCES_V6 = tuple(f"fd00:{rail}::1" for rail in range(4))


def destination_v6(rng):
    return f"fd00:{rng.randrange(6)}:{rng.randrange(3)}::{rng.choice((2, 3, 77))}"


def prefix_v6(rng):
    length = rng.choice((0, 16, 32, 47, 48, 64, 128))
    if length == 0:
        return "default"
    return str(ip_network(f"{destination_v6(rng)}/{length}", strict=False))


def hop_v6(rng):
    rail = rng.randrange(4)
    if rng.random() < 0.3:
        return f"dev r{rail}"
    return f"via fd00:{rail}::{rng.randrange(2, 9)} dev r{rail}"


def route_v6(rng):
    tail = f"table {rng.choice(TABLES)} proto {PROTO}"
    dst, kind = prefix_v6(rng), rng.random()
    if rng.random() < 0.3:
        tail += f" metric {rng.choice((5, 50, 500))}"
    if kind < 0.15:
        refusal = rng.choice(("blackhole", "unreachable", "prohibit", "throw"))
        return f"route append {refusal} {dst} {tail}"
    if kind < 0.25:
        hops = " ".join(f"nexthop {hop_v6(rng)} weight 1" for _ in "ab")
        return f"route append {dst} {tail} {hops}"
    return f"route append {dst} {hop_v6(rng)} {tail}"


def rule_v6(rng):
    words = []
    if rng.random() < 0.6:
        every = (*SOURCES_V6, "fd00:2::/32", "fd00::/16", "all")
        words += ["from", rng.choice(every)]
    if rng.random() < 0.3:
        words += ["to", prefix_v6(rng).replace("default", "::/0")]
    if rng.random() < 0.15:
        words += ["fwmark", rng.choice(("0x200/0xf00", "0x10"))]
    if rng.random() < 0.1:
        words += ["iif", rng.choice(("lo", "r1", "nope"))]
    if rng.random() < 0.1:
        words += ["ipproto", rng.choice(("udp", "tcp"))]
    if rng.random() < 0.12:
        words = ["not", *words]
    priority = rng.randrange(1, 220)
    words = words or ["from", "all"]
    every = ["rule add pref", str(priority), *words, *action(rng, priority)]
    return " ".join(every)


def generate_v6(batch, rng, at):
    batch.add(f"route flush table all proto {PROTO}")
    batch.add("rule flush")
    batch.add("rule add pref 32766 from all lookup main")
    for _ in range(rng.randrange(0, 7)):
        batch.add(rule_v6(rng))
    for _ in range(rng.randrange(1, 14)):
        batch.add(route_v6(rng))
    batch.add("rule show", (at, "rule"))
    batch.add("route show table all", (at, "route"))
    asked = []
    for n in range(QUERIES):
        dst, src = destination_v6(rng), rng.choice((*SOURCES_V6, *SOURCES_V6, ""))
        mark = rng.choice((0, 0, 0, 0x200, 0x10))
        words = ["route get", dst, *(["from", src] if src else [])]
        line = " ".join([*words, *(["mark", hex(mark)] if mark else [])])
        batch.add(line, (at, n))
        source = number(src) if src else 0
        asked.append((line, Query(dst=number(dst), src=source, mark=mark)))
    return asked


def differs_v6(decision, output, error):
    if error:
        told = error.removeprefix("RTNETLINK answers: ")
        return "" if decision.error == told else f"kernel: {told}; engine: {decision}"
    (row,) = json.loads(output)
    if row.get("type", "unicast") in ERRORS:
        return "" if decision.error else f"kernel: {row}; engine: {decision}"
    known = row["dev"] in decision.devices or decision.is_local
    placed = row.get("table", "main") == decision.table
    return "" if known and placed else f"kernel: {row}; engine: {decision}"


def compare_v6(bench, namespace, sets, chunk=100):
    rng = random.Random(6)
    made = namespace()
    made.ip("link set lo up")
    for at, name in enumerate(RAILS):
        made.rail(name)
        made.ip(f"-6 addr add fd00:{at}::1/64 dev {name} nodad")
    settled(made)
    addresses = made.ip("-j -d addr")
    questions, wrong = 0, []
    for start in range(0, sets, chunk):
        batch = Batch()
        every = range(start, start + chunk)
        asked = {at: generate_v6(batch, rng, at) for at in every}
        found = batch.run(made, 6)
        for at in every:
            cmds = {
                "ip -j -d addr": addresses,
                "ip -j -6 rule": found[at, "rule"][0],
                "ip -j -6 route show table all": found[at, "route"][0],
            }
            fib = fib_of(Facts(bench.doc(cmds=cmds)), 6)
            for n, (line, question) in enumerate(asked[at]):
                questions += 1
                told = differs_v6(fib.lookup(question), *found[at, n])
                if told:
                    wrong.append((at, line, told))
    return questions, wrong


def settled(made, tries=100):
    """Waits until the links have a carrier in the eyes of IPv6."""
    for _ in range(tries):
        if "tentative" not in (told := made.ip("-6 addr")) and "LOWER_UP" in told:
            return
        time.sleep(0.05)
    pytest.fail("the links of the namespace do not settle")


def test_the_kernel_agrees_on_some_random_sets_of_ipv6(bench, namespace):
    questions, wrong = compare_v6(bench, namespace, 100)

    assert questions == 100 * QUERIES
    assert wrong == []


@pytest.mark.slow
@pytest.mark.timeout(240)
def test_the_kernel_agrees_on_three_thousand_random_sets_of_ipv6(bench, namespace):
    questions, wrong = compare_v6(bench, namespace, 3000)

    assert questions == 3000 * QUERIES
    assert wrong == []
