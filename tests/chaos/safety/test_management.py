"""The guard: every way to cut the controller off is refused, and faults still pass."""

from __future__ import annotations

from dataclasses import replace

import pytest

from chaos.errors import UsageError
from chaos.faults import nft, qdisc
from chaos.faults.programs import EMPTY_CGROUP, FLAP, python
from chaos.faults.steps import Step, end, operation, restore, run, signal, start, write
from chaos.safety.management import Device, HostFacts, Refused, check, judge

CONTROLLER = "198.19.8.1"
FACTS = HostFacts(
    host="h0",
    devices=(
        Device(name="lo"),
        Device(name="mgmt0", other_names=("enp1s0", "oob"), master="br-mgmt"),
        Device(name="br-mgmt"),
        Device(name="port1", master="br-mgmt"),
        Device(name="ctl0"),
        Device(name="rail0", other_names=("ib0",)),
        Device(name="vlan7", parent="rail1"),
        Device(name="rail1"),
        Device(name="rail2", root_qdisc="htb"),
    ),
    carriers=frozenset({"mgmt0"}),
    management="mgmt0",
    controllers=(CONTROLLER,),
    ssh_ports=(22, 2222),
    metrics_ports=(9100,),
    protected_pids=frozenset({1, 77}),
    protected_cgroups=frozenset({"/sys/fs/cgroup/memory/system.slice/sshd"}),
    mounts={"/": "/dev/vda1", "/scratch": "/dev/vdb", "/scratch/x": "/dev/vda1"},
    available_bytes=8 << 30,
)
SPARED = nft.Spare(peers=(CONTROLLER,), ports=(22, 2222, 9100))


def judged(*actions: dict, facts: HostFacts = FACTS) -> str:
    return judge(facts, [Step(do=action).to_json() for action in actions])


def script(*rules: str, chain: str = "input", hook: str = "input") -> dict:
    """A table with nothing but these rules, as somebody who forgot us would write."""
    table = "inet moonquake_r1_f1"
    opening = f"type filter hook {hook} priority -190; policy accept;"
    lines = [f"add table {table}", f"add chain {table} {chain} {{ {opening} }}"]
    lines += [f"add rule {table} {chain} {rule}" for rule in rules]
    return run("nft", "-f", "-", stdin="\n".join(lines) + "\n")


def words(text: str) -> list[str]:
    return text.split()


def tc(*words: str) -> dict:
    return run("tc", "qdisc", "add", *words)


def link(*words: str) -> dict:
    return run("ip", "link", "set", *words)


CUTS = {
    "link down of the management device": link("dev", "mgmt0", "down"),
    "link down by another name of it": link("dev", "enp1s0", "down"),
    "link down of the bridge that it is a port of": link("dev", "br-mgmt", "down"),
    "link down of another port of that bridge": link("dev", "port1", "down"),
    "link down of a group of devices": link("group", "default", "down"),
    "link down without the word dev": link("mgmt0", "down"),
    "a flapping management device": start("f", python(FLAP, "oob", "1", "1")),
    "drop of the controller's address": script(f"ip saddr {CONTROLLER} drop"),
    "drop of what goes to the controller": script(
        f"ip daddr {CONTROLLER} drop", hook="output"
    ),
    "drop of a network that has the controller": script("ip saddr 198.18.0.0/15 drop"),
    "drop of a range that has the controller": script(
        "ip saddr 198.19.0.0-198.19.255.255 drop"
    ),
    "drop of the whole address space": script("ip saddr 0.0.0.0/0 drop"),
    "drop of the controller in IPv6 clothes": script(
        f"ip6 saddr ::ffff:{CONTROLLER} drop"
    ),
    "drop of a mapped network": script("ip6 saddr ::ffff:198.18.0.0/111 drop"),
    "drop of SSH": script("tcp dport 22 drop"),
    "drop of SSH by its name": script("tcp dport ssh drop"),
    "drop of a range of ports with SSH": script("tcp dport 1-1024 drop"),
    "drop of the port that the session came by": script("tcp dport { 80, 2222 } drop"),
    "reset of SSH": script("tcp dport 22 reject with tcp reset"),
    "loss of SSH": script("tcp dport 22 numgen random mod 100 < 1 drop"),
    "a limit of SSH": script("tcp dport 22 limit rate over 9 bytes/second drop"),
    "drop of DNS": script("udp dport 53 drop", hook="output"),
    "drop of DNS answers": script("udp sport 53 drop"),
    "drop of NTP": script("udp dport 123 drop", hook="output"),
    "drop of the metrics port": script("tcp dport 9100 drop"),
    "drop of everything": script("drop"),
    "drop of everything on the way out": script("counter drop", hook="output"),
    "drop of TCP": script("meta l4proto tcp drop"),
    "drop on the management device": script('iifname "mgmt0" drop'),
    "drop by another name of it": script('iifname "enp1s0" drop'),
    "drop by a pattern of devices": script('iifname "mgm*" drop'),
    "drop by a pattern of everything": script('oifname "*" drop', hook="output"),
    "drop at an earlier hook": script(f"ip saddr {CONTROLLER} drop", hook="prerouting"),
    "drop by default": run(
        "nft",
        "-f",
        "-",
        stdin="add table inet moonquake_a\n"
        "add chain inet moonquake_a i { type filter hook input priority 0;"
        " policy drop; }\n",
    ),
    "an accept that comes too late": script(
        "ip saddr 0.0.0.0/0 drop", f"ip saddr {CONTROLLER} accept"
    ),
    "an accept that only sometimes comes": script(
        f"ip saddr {CONTROLLER} numgen random mod 2 < 1 accept", "drop"
    ),
    "an accept of somebody else": script("ip saddr 198.19.8.2 accept", "drop"),
    "a negation": script("ip saddr != 10.0.0.1 drop"),
    "a device that the host does not have": script('iifname "eth9" drop'),
    "flushing everything": run("nft", "-f", "-", stdin="flush ruleset\n"),
    "flushing without a script": run("nft", "flush", "ruleset"),
    "deleting a table of somebody else": run(
        "nft", "-f", "-", stdin="delete table inet filter\n"
    ),
    "adding to a chain of somebody else": run(
        "nft", "-f", "-", stdin="add rule inet filter input drop\n"
    ),
    "an included file": run("nft", "-f", "-", stdin='include "/etc/x.nft"\n'),
    "a script from a file": run("nft", "-f", "/etc/x.nft"),
    "tbf on the management device": qdisc.tbf("mgmt0", 1, 1000).do,
    "netem on the management device": qdisc.step("oob", 1, "netem", "loss", "1%").do,
    "tbf on a port of its bridge": qdisc.tbf("port1", 1, 1000).do,
    "a rate of 0": tc(
        *words("dev rail0 root handle 4d01: tbf rate 0bit burst 16k limit 16k")
    ),
    "a limit of 0": script('iifname "rail0" limit rate over 0 bytes/second drop'),
    "a shaper without a handle of ours": tc("dev", "rail0", "root", "netem"),
    "a qdisc over one of somebody else": qdisc.tbf("rail2", 1, 1000).do,
    "replacing a root qdisc": run(
        *words("tc qdisc replace dev rail0 root handle 4d01: tbf rate 1bit")
    ),
    "an ingress policer": tc("dev", "mgmt0", "ingress"),
    "deleting a route": run("ip", "route", "del", "default"),
    "flushing routes": run("ip", "route", "flush", "table", "main"),
    "a default route over the management device": run(
        *words("ip route replace default via 198.19.8.9 dev mgmt0")
    ),
    "a route over the management device": run(
        *words("ip route replace 198.19.8.0/24 dev mgmt0")
    ),
    "a network with the controller over a rail": run(
        *words("ip route replace 198.19.0.0/16 dev rail0")
    ),
    "a default route over a rail": run(
        *words("ip route replace default via 198.18.10.9 dev rail0")
    ),
    **{
        f"a default route over a rail in table {table}": run(
            *words(f"ip route replace default dev rail0 table {table}")
        )
        for table in ("main", "254", "0xfe", "0376", "101 table main")
    },
    "a rule of routing": run("ip", "rule", "add", "blackhole"),
    "a neighbour on the management device": run(
        *words("ip neigh replace 198.19.8.1 lladdr 02:00:00:00:00:09"),
        *words("nud permanent dev mgmt0"),
    ),
    "deleting the management device": run("ip", "link", "del", "mgmt0"),
    "moving it to another namespace": link("dev", "mgmt0", "netns", "7"),
    "renaming it": link("dev", "mgmt0", "name", "rail9"),
    "its MTU": link("dev", "mgmt0", "mtu", "68"),
    "taking its address": run("ip", "addr", "flush", "dev", "mgmt0"),
    "an address on it": run("ip", "addr", "replace", "10.0.0.1/8", "dev", "mgmt0"),
    "stopping the agent": signal(77, 1, "STOP"),
    "killing init": signal(1, 1, "KILL"),
    "a pid without its start time": signal(900, 0, "KILL"),
    "sitting on the SSH port": operation("listen", name="l", address="::", port=22),
    "sitting on the metrics port": operation("listen", name="l", address="", port=9100),
    "limiting the SSH daemon": write(
        "/sys/fs/cgroup/memory/system.slice/sshd/memory.limit_in_bytes", "1"
    ),
    "limiting everything": write("/sys/fs/cgroup/memory/memory.limit_in_bytes", "1"),
    "limiting everything, by detours": write(
        "/sys/fs/cgroup/memory/x/../memory.limit_in_bytes", "1"
    ),
    "a sysctl": write("/proc/sys/net/ipv4/ip_forward", "0"),
    "a file of the host": write("/etc/resolv.conf", ""),
    "filling the root disk": operation("fill", path="/x", leave_bytes=0, max_bytes=1),
    "filling /run": operation("fill", path="/run/x", leave_bytes=0, max_bytes=1),
    "filling by detours": operation(
        "fill", path="/scratch/../x", leave_bytes=0, max_bytes=1
    ),
    "filling a bind of the root disk": operation(
        "fill", path="/scratch/x/y", leave_bytes=0, max_bytes=1
    ),
    "taking all memory": operation("memory", name="m", bytes=8 << 30),
    "a shell": run("sh", "-c", "ip link set mgmt0 down"),
    "another firewall": run("iptables", "-F"),
    "another tool": run("ethtool", "-s", "mgmt0", "speed", "10"),
    "the right tool by a path": run("/sbin/ip", "link", "set", "dev", "mgmt0", "down"),
    "a program of one's own": start("p", ["python3", "-I", "-S", "-c", "print(1)"]),
    "a program that only looks like ours": start(
        "p", ["python3", "-c", FLAP, "rail0", "1", "1"]
    ),
    "emptying a cgroup of the system": run(
        *python(EMPTY_CGROUP, "/sys/fs/cgroup/memory/system.slice", "/sys/fs/cgroup")
    ),
    "an unknown operation": {"op": "reboot"},
    "an unknown word of nft": script("ip saddr 10.0.0.1 jump elsewhere"),
    "nothing at all": {},
}


def test_there_are_more_than_ten_ways_to_be_cut_off() -> None:
    assert len(CUTS) > 10


@pytest.mark.parametrize("way", CUTS)
def test_this_way_to_cut_the_controller_off_is_refused(way) -> None:
    assert judged(CUTS[way]), way


@pytest.mark.parametrize("part", ["undo", "renew"])
def test_undoing_and_renewing_are_judged_as_well(part) -> None:
    harmless = run("ip", "link", "set", "dev", "rail0", "up")
    bad = CUTS["link down of the management device"]
    step = Step(do=harmless, **{part: bad})

    assert "mgmt0" in judge(FACTS, [step.to_json()])


@pytest.mark.parametrize(
    "verify",
    [
        {"run": ["ip", "link", "set", "dev", "mgmt0", "down"]},
        {"run": ["nft", "-f", "/etc/x"]},
        {"run": ["tc", "qdisc", "del", "dev", "mgmt0", "root"]},
        {"run": ["sh", "-c", "true"]},
        {"op": "reboot"},
    ],
)
def test_a_check_may_only_read(verify) -> None:
    harmless = run("ip", "link", "set", "dev", "rail0", "up")

    assert judge(FACTS, [{"do": harmless, "verify": verify}])


def test_elements_that_a_renewal_adds_are_judged_with_the_rules() -> None:
    table = "inet moonquake_r1_f1"
    made = script("ip saddr @on drop")["stdin"].splitlines()
    made.insert(1, f"add set {table} on {{ type ipv4_addr; flags timeout; }}")
    renewed = f"add element {table} on {{ {CONTROLLER} timeout 9s }}\n"
    step = Step(
        do=run("nft", "-f", "-", stdin="\n".join(made)),
        renew=run("nft", "-f", "-", stdin=renewed),
    )

    assert CONTROLLER in judge(FACTS, [step.to_json()])
    assert judge(FACTS, [replace(step, renew=None).to_json()]) == ""


def _table(**match) -> Step:
    table = nft.Table(
        name="moonquake_r1_f1",
        matches=(nft.Match(**match),),
        effect=nft.DROP,
        ttl_s=30,
        spare=SPARED,
    )
    return nft.step(table)


FAULTS = {
    "a rail that goes down": [
        Step(do=link("dev", "rail0", "down"), undo=link("dev", "rail0", "up"))
    ],
    "a rail that flaps": [
        Step(do=start("f", python(FLAP, "rail0", "1", "1")), undo=end("f"))
    ],
    "a socket that is silent": [
        _table(device="rail0", local="198.18.10.3", local_port=7100)
    ],
    "a device that is silent": [_table(device="ctl0")],
    "a peer that is not heard": [_table(device="rail0", remote="198.18.10.4")],
    "a rate": [qdisc.tbf("rail0", 1, 1000)],
    "a delay": [qdisc.step("ib0", 1, "netem", "delay", "40ms")],
    "a VLAN's parent that carries nothing of ours": [qdisc.tbf("rail1", 1, 1000)],
    "a pause": [Step(do=signal(900, 5, "STOP"), undo=signal(900, 5, "CONT"))],
    "a route that comes back": [
        Step(do=run(*words("ip -4 route replace 10.1.0.0/16 via 10.0.0.1 dev rail0")))
    ],
    "a default route in the table of a rail": [
        Step(do=run(*words("ip -4 route replace default dev rail0 table 101")))
    ],
    "a limit of memory": [
        Step(
            do=run("mkdir", "/sys/fs/cgroup/memory/moonquake_1"),
            undo=run(
                *python(
                    EMPTY_CGROUP,
                    "/sys/fs/cgroup/memory/moonquake_1",
                    "/sys/fs/cgroup/memory",
                )
            ),
        ),
        Step(
            do=write("/sys/fs/cgroup/memory/moonquake_1/memory.limit_in_bytes", "1"),
            undo=restore("/sys/fs/cgroup/memory/moonquake_1/memory.limit_in_bytes"),
        ),
    ],
    "a full scratch disk": [
        Step(
            do=operation("fill", path="/scratch/f", leave_bytes=0, max_bytes=1),
            undo=operation("unlink", path="/scratch/f"),
        )
    ],
    "some memory": [Step(do=operation("memory", name="m", bytes=1 << 30))],
    "busy processors": [Step(do=operation("cpu", name="c", workers=2))],
    "a taken port": [Step(do=operation("listen", name="l", address="", port=7100))],
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_that_spares_management_passes(fault) -> None:
    assert judge(FACTS, [step.to_json() for step in FAULTS[fault]]) == ""


def test_without_its_first_rules_a_table_on_the_controllers_device_is_refused() -> None:
    """One device for everything: sockets may be cut there, the device may not."""
    facts = replace(FACTS, management="", carriers=frozenset({"rail0"}))
    step = _table(device="rail0", local_port=7100)
    bare = nft.Table(
        name="moonquake_r1_f1",
        matches=(nft.Match(device="rail0"),),
        effect=nft.DROP,
        ttl_s=30,
        spare=nft.Spare(ports=(), services=()),
    )

    assert judge(facts, [step.to_json()]) == ""
    assert CONTROLLER in judge(facts, [nft.step(bare).to_json()])
    assert "rail0" in judge(facts, [qdisc.tbf("rail0", 1, 1000).to_json()])


def test_nothing_of_the_network_passes_while_the_controller_is_unknown() -> None:
    facts = replace(FACTS, management="", controllers=(), carriers=frozenset())

    assert "cannot be told" in judge(facts, [_table(device="rail0").to_json()])


def test_a_parent_of_what_carries_management_is_untouchable() -> None:
    facts = replace(FACTS, carriers=frozenset({"vlan7"}), management="")

    assert facts.untouchable == {"vlan7", "rail1"}
    assert "rail1" in judge(facts, [qdisc.tbf("rail1", 1, 1000).to_json()])


def test_neighbour_discovery_survives_where_the_controller_is_ipv6() -> None:
    facts = replace(FACTS, controllers=("fd00::1",))

    rules = script(
        "ip6 saddr fd00::1 accept", 'iifname "mgmt0" tcp sport 0-65535 accept'
    )
    rules["stdin"] += "add rule inet moonquake_r1_f1 input meta l4proto icmpv6 drop\n"

    assert "neighbour" in judged(rules, facts=replace(facts, management=""))
    assert judged(rules, facts=replace(facts, controllers=("10.0.0.1",)))


def test_a_refusal_is_a_usage_error_that_names_fault_host_and_reason() -> None:
    step = Step(do=link("dev", "mgmt0", "down"))

    with pytest.raises(Refused, match=r"nic_down\(x\) is refused on h0: .*mgmt0"):
        check(FACTS, [step.to_json()], fault="nic_down(x)")
    assert issubclass(Refused, UsageError)
    assert Refused("x").exit_code == 2


def test_a_fault_without_steps_is_refused() -> None:
    assert judge(FACTS, []) == "a fault without steps does nothing"
