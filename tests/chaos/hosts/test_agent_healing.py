"""However a run ends, the host heals: who dies, and who does the work then."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from chaos.errors import AgentError, HostUnreachable, UsageError
from chaos.hosts.connectors import AGENT_PROGRAM

HEAL_S = 5.0
SLOW = ["sh", "-c", "sleep 30; true"]


class Broken:
    """A host with a role, a paused stranger, a child and files; all newest first."""

    def __init__(self, link, kit, victim, tmp_path):
        self.link, self.kit, self.victim = link, kit, victim
        self.home = Path(link.connector.state_dir) / "run-1"
        self.log = tmp_path / "undo order"
        self.log.touch()
        self.filler = tmp_path / "filler"
        self.role = kit.spawn(link)
        link.wait_line("role-0", "ready", timeout_s=5)
        self._arm("first", kit.note(self.log, "first"), victim.pause_step())
        fill = {"op": "fill", "path": str(self.filler), "leave_bytes": 0}
        fill["max_bytes"] = 4096
        [_, child, _] = self._arm(
            "second",
            kit.note(self.log, "second"),
            {
                "do": {"op": "start", "name": "c", "argv": ["sleep", "600"]},
                "undo": {"op": "end", "name": "c"},
                "verify": {"op": "gone", "name": "c"},
            },
            {"do": fill, "undo": {"op": "unlink", "path": str(self.filler)}},
        )
        self.child = child
        assert victim.state == "T"

    def _arm(self, fault_id, *steps):
        return self.link.arm(fault_id, kind="k", target="t", steps=steps)

    @property
    def ended(self):
        """The processes that the agent had started are gone."""
        role, child = self.role, self.child
        return not (
            self.kit.is_alive(role.pid, role.start_ticks)
            or self.kit.is_alive(child["pid"], child["start_ticks"])
        )

    @property
    def healed(self):
        return (
            self.victim.state != "T"
            and self.ended
            and not self.filler.exists()
            and self.log.read_text().split() == ["second", "first"]
            and not self.home.exists()
        )


@pytest.fixture
def broken(fleet, kit, victim, tmp_path):
    return lambda **options: Broken(fleet.agent(**options), kit, victim, tmp_path)


# --- the controller goes --------------------------------------------------------------


def test_a_lease_that_runs_out_heals_everything_newest_first(broken, kit):
    host = broken()
    began = kit.now()
    host.link.renew(1.0)

    assert kit.within(1.0 + HEAL_S, lambda: host.healed)
    assert kit.now() - began > 0.9
    with pytest.raises(HostUnreachable, match="no agent serves") as caught:
        host.link.hello()
    assert caught.value.gone


@pytest.mark.slow
def test_a_renewed_lease_does_not_run_out(fleet, kit):
    link = fleet.agent(ttl_s=2.0)
    for _ in range(5):
        time.sleep(0.5)
        link.renew(2.0)

    assert link.hello().expires_in_s > 0


@pytest.mark.slow
def test_asking_is_not_renewing(fleet, kit):
    link = fleet.agent(ttl_s=0.6)

    def gone():
        try:
            link.hello()
        except HostUnreachable:
            return True
        return False

    assert kit.within(15, gone)


@pytest.mark.slow
def test_the_death_of_the_controller_heals(fleet, kit, tmp_path):
    """A real controller: another interpreter, killed where it stands."""
    state_dir = fleet.directory() / "s"
    made = tmp_path / "made"
    code = (
        "import sys\n"
        "from chaos.hosts.connectors import NamespaceConnector\n"
        "from chaos.hosts.lease import Lease\n"
        "from chaos.hosts.link import Agent\n"
        "agent = Agent(NamespaceConnector('h', state_dir=sys.argv[1]))\n"
        "agent.start(run='r', ttl_s=1.5)\n"
        "Lease(agent, ttl_s=1.5).start()\n"
        "steps = [{'do': {'run': ['touch', sys.argv[2]]},"
        " 'undo': {'run': ['rm', sys.argv[2]]}}]\n"
        "agent.arm('f', kind='k', target='t', steps=steps)\n"
        "print('armed', flush=True)\n"
        "sys.stdin.read()\n"
    )
    argv = [sys.executable, "-c", code, str(state_dir), str(made)]
    controller = subprocess.Popen(argv, stdin=-1, stdout=-1)
    assert controller.stdout.readline() == b"armed\n"
    time.sleep(2.0)
    held = made.exists()
    controller.kill()
    controller.communicate()

    assert held
    assert kit.within(1.5 + HEAL_S, lambda: not made.exists())
    assert kit.within(15, lambda: not state_dir.exists())


@pytest.mark.slow
def test_an_arm_in_flight_is_cut_off_and_undone_when_the_lease_runs_out(
    fleet, kit, tmp_path
):
    link = fleet.agent(ttl_s=0.8)
    made, began = tmp_path / "made", kit.now()
    slow = {"do": {"run": SLOW, "timeout_s": 40}}
    with pytest.raises(AgentError, match="the lease ran out"):
        link.arm("f", kind="k", target="t", steps=[kit.touch(made), slow])

    assert kit.now() - began < 0.8 + HEAL_S
    assert kit.within(15, lambda: not made.exists())
    assert kit.within(15, lambda: not Path(link.connector.state_dir).exists())


@pytest.mark.slow
def test_a_fault_that_takes_long_delays_no_renewal_and_no_other_heal(
    fleet, kit, tmp_path
):
    link = fleet.agent()
    made = tmp_path / "made"
    slow = {"do": {"run": SLOW, "timeout_s": 40}}
    with ThreadPoolExecutor(1) as pool:
        arming = pool.submit(link.arm, "slow", kind="k", target="t", steps=[slow])
        assert kit.within(15, lambda: link.fault("slow").state == "armed")
        link.arm("f", kind="k", target="t", steps=[kit.touch(made)], confirm_s=0.3)
        began = kit.now()
        link.renew(60)
        renewed_s = kit.now() - began
        assert kit.within(15, lambda: not made.exists())
        assert link.disarm("slow") == ""
        with pytest.raises(AgentError, match="it was disarmed meanwhile"):
            arming.result()

    assert renewed_s < 2


# --- the agent is killed --------------------------------------------------------------


def test_the_warden_heals_when_the_worker_is_killed(broken, kit):
    host = broken()
    kit.kill(host.link.connector.pid)

    assert kit.within(HEAL_S, lambda: host.healed)
    assert kit.within(15, lambda: kit.ended(host.link.connector.warden))


def test_the_worker_heals_when_the_warden_is_killed(broken, kit):
    host = broken()
    kit.kill(host.link.connector.warden)

    assert kit.within(HEAL_S, lambda: host.healed)
    assert kit.within(15, lambda: not Path(host.link.connector.state_dir).exists())


@pytest.mark.parametrize("whom", ["pid", "warden"])
def test_sigterm_ends_the_agent_orderly(broken, kit, whom):
    host = broken()
    kit.kill(getattr(host.link.connector, whom), signal.SIGTERM)

    assert kit.within(HEAL_S, lambda: host.healed)


def test_a_hang_up_of_the_terminal_does_not_end_it(fleet, kit):
    link = fleet.agent()
    kit.kill(link.connector.warden, signal.SIGHUP)
    kit.kill(link.connector.pid, signal.SIGHUP)

    assert link.hello().run == "run-1"


@pytest.mark.slow
def test_a_worker_that_stands_still_does_not_hold_the_heal(broken, kit):
    host = broken()
    host.link.renew(1.0)
    kit.kill(host.link.connector.pid, signal.SIGSTOP)

    assert kit.within(1.0 + HEAL_S, lambda: host.healed)


@pytest.mark.slow
def test_an_undo_does_not_overtake_the_command_that_it_undoes(fleet, kit, tmp_path):
    """The step runs while the worker is killed: it is dead before its undo runs."""
    link = fleet.agent()
    state = tmp_path / "state"
    code = f"import time; time.sleep(0.5); open({str(state)!r}, 'a').write('done ')"
    step = {
        "do": {"run": [sys.executable, "-c", code]},
        "undo": {"run": ["tee", "-a", str(state)], "stdin": "undone "},
    }
    line = {"id": "x:1", "op": "arm", "fault_id": "f", "kind": "", "steps": [step]}
    with socket.socket(socket.AF_UNIX) as peer:
        peer.connect(f"{link.connector.state_dir}/run-1/agent.sock")
        peer.sendall(json.dumps(line).encode() + b"\n")
        assert kit.within(15, lambda: link.fault("f").steps_done == 1)
        kit.kill(link.connector.pid)

    assert kit.within(HEAL_S, lambda: state.exists() and "undone" in state.read_text())
    time.sleep(0.6)
    assert state.read_text() == "undone "


def kill_both(kit, connector):
    """The warden stands still, so that it cannot heal before its turn to die."""
    kit.kill(connector.warden, signal.SIGSTOP)
    kit.kill(connector.pid)
    kit.kill(connector.warden)


def test_when_both_are_killed_roles_die_and_recover_heals_the_rest(broken, kit):
    host = broken()
    kill_both(kit, host.link.connector)

    assert kit.within(15, lambda: host.ended)
    assert host.victim.state == "T"
    rows = host.link.connector.recover()
    assert host.healed
    states = [(row.get("fault_id"), row.get("state")) for row in rows]
    assert states[:2] == [("second", "reverted"), ("first", "reverted")]
    assert host.link.connector.recover() == []
    assert not Path(host.link.connector.state_dir).exists()


def test_the_next_run_heals_what_dead_agents_left(broken, kit, fleet):
    host = broken()
    kill_both(kit, host.link.connector)
    fleet.agent(host.link.connector.state_dir, run="next")

    assert host.healed


@pytest.mark.slow
def test_recover_leaves_a_living_run_alone(broken):
    host = broken()
    [row] = host.link.connector.recover()

    assert (row["run"], row["state"]) == ("run-1", "live")
    assert host.victim.state == "T"


@pytest.mark.slow
def test_recover_of_another_run_leaves_this_one(broken, kit):
    host = broken()
    kill_both(kit, host.link.connector)

    assert host.link.connector.recover("other") == []
    assert host.victim.state == "T"
    host.link.connector.recover("run-1")
    assert host.healed


def test_a_shutdown_whose_answer_is_lost_asks_the_ledger(broken, kit):
    host = broken()
    kill_both(kit, host.link.connector)

    assert host.link.shutdown() == "first: active, second: active"
    host.link.connector.recover()
    assert host.link.shutdown() == ""


@pytest.mark.slow
def test_a_torn_last_row_does_not_stop_a_recovery(broken, kit):
    host = broken()
    kill_both(kit, host.link.connector)
    with (host.home / "ledger.jsonl").open("ab") as ledger:
        ledger.write(b'{"row":"step","fault_id":"fir')
    host.link.connector.recover()

    assert host.healed


@pytest.mark.slow
def test_after_a_reboot_pids_of_the_ledger_are_strangers(broken, kit):
    host = broken()
    kill_both(kit, host.link.connector)
    ledger = host.home / "ledger.jsonl"
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    ledger.write_text(ledger.read_text().replace(boot, "an-earlier-boot"))
    host.link.connector.recover()

    assert host.victim.state == "T"  # it is somebody else's now
    assert not host.filler.exists()
    assert not host.home.exists()
    os.kill(host.victim.pid, signal.SIGCONT)


def test_an_orphan_of_a_role_does_not_escape(fleet, kit):
    """A role's child in a session of its own, which is nobody's child any more."""
    link = fleet.agent()
    code = (
        "import subprocess, time\n"
        "p = subprocess.Popen(['sh', '-c', 'setsid sleep 600 & echo $!'], stdout=-1)\n"
        "print('orphan', p.stdout.readline().decode(), flush=True)\n"
        "time.sleep(600)\n"
    )
    kit.spawn(link, "role-0", code)
    pid = int(link.wait_line("role-0", "orphan", timeout_s=5).split()[1])
    assert not kit.ended(pid)
    kit.kill(link.connector.pid)

    assert kit.within(HEAL_S, lambda: kit.ended(pid))


@pytest.mark.slow
def test_a_damaged_undo_does_not_keep_the_others_from_healing(fleet, kit, tmp_path):
    link = fleet.agent()
    made = tmp_path / "made"
    bad = {"do": {"run": ["true"]}, "undo": {"run": ["false"]}}
    link.arm("good", kind="k", target="t", steps=[kit.touch(made)])
    link.arm("bad", kind="k", target="t", steps=[bad])
    link.renew(0.8)

    assert kit.within(0.8 + HEAL_S, lambda: not made.exists())
    home = Path(link.connector.state_dir) / "run-1"
    assert kit.within(
        2, lambda: [path.name for path in home.iterdir()] == ["ledger.jsonl"]
    )
    [row] = link.connector.status()
    assert [(one["fault_id"], one["state"]) for one in row["faults"]] == [
        ("bad", "residual")
    ]


# --- the network ----------------------------------------------------------------------

TABLE = (
    "table inet moonquake_t {\n"
    "  set peers { type ipv4_addr; flags timeout; }\n"
    "  chain out { type filter hook output priority 0; policy accept;\n"
    "    ip daddr @peers counter drop\n  }\n}\n"
)
ELEMENT = "add element inet moonquake_t peers { 192.0.2.1 timeout 2s }\n"
RENEWED = "delete element inet moonquake_t peers { 192.0.2.1 }\n" + ELEMENT


def nft(text):
    return {"run": ["nft", "-f", "-"], "stdin": text}


def partition_steps():
    table = {
        "do": nft(TABLE),
        "undo": {"run": ["nft", "delete", "table", "inet", "moonquake_t"]},
        "verify": {
            "run": ["nft", "list", "tables"],
            "stdout_lacks": "moonquake_t",
        },
    }
    element = {"do": nft(ELEMENT), "undo": None, "renew": nft(RENEWED)}
    link_down = {
        "do": {"run": ["ip", "link", "set", "lo", "down"]},
        "undo": {"run": ["ip", "link", "set", "lo", "up"]},
        "verify": {"run": ["ip", "link", "show", "lo"], "stdout_has": "LOOPBACK,UP"},
    }
    return [table, element, link_down]


@pytest.fixture
def partitioned(fleet, kit, namespace):
    assert kit.inside(namespace, "ip", "link", "set", "lo", "up") == ""
    link = fleet.agent(enter=namespace)
    link.arm("cut", kind="partition", target="t", steps=partition_steps())
    assert "192.0.2.1" in kit.inside(namespace, "nft", "list", "ruleset")
    return link


def test_nft_and_links_of_a_namespace_are_armed_and_healed(partitioned, kit, namespace):
    root = kit.inside((), "nft", "list", "tables")

    assert "moonquake_t" not in root
    assert partitioned.disarm("cut") == ""
    assert kit.inside(namespace, "nft", "list", "ruleset") == ""
    assert "LOOPBACK,UP" in kit.inside(namespace, "ip", "link", "show", "lo")


@pytest.mark.slow
def test_a_renewal_extends_the_timeouts_of_the_kernel(partitioned, kit, namespace):
    for _ in range(3):
        time.sleep(0.9)
        assert partitioned.renew(60).failed == {}

    assert "192.0.2.1" in kit.inside(namespace, "nft", "list", "ruleset")


@pytest.mark.slow
def test_traffic_heals_by_the_kernel_when_both_are_killed(partitioned, kit, namespace):
    kill_both(kit, partitioned.connector)

    def passes():
        return "192.0.2.1" not in kit.inside(namespace, "nft", "list", "ruleset")

    assert kit.within(2 + HEAL_S, passes)
    assert "moonquake_t" in kit.inside(namespace, "nft", "list", "tables")
    partitioned.connector.recover()
    assert kit.inside(namespace, "nft", "list", "ruleset") == ""
    assert "LOOPBACK,UP" in kit.inside(namespace, "ip", "link", "show", "lo")


def recover_from_here(state_dir):
    argv = [
        sys.executable,
        str(AGENT_PROGRAM),
        "recover",
        "--state-dir",
        str(state_dir),
    ]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=30)
    return [json.loads(line) for line in done.stdout.splitlines()], done.returncode


def test_recover_goes_to_the_namespace_of_the_ledger(partitioned, kit, namespace):
    """Run anywhere on the machine, it never undoes in the wrong network."""
    kill_both(kit, partitioned.connector)
    rows, code = recover_from_here(partitioned.connector.state_dir)

    assert (rows[0]["state"], code) == ("reverted", 0)
    assert kit.inside(namespace, "nft", "list", "ruleset") == ""
    assert "LOOPBACK,UP" in kit.inside(namespace, "ip", "link", "show", "lo")


def test_a_namespace_that_is_gone_took_its_faults_along(fleet, kit, tmp_path):
    if os.geteuid() != 0:
        pytest.skip("needs a network namespace: run as root")
    link = fleet.agent(enter=("unshare", "--net", "--"))
    ran, made = tmp_path / "ran", tmp_path / "made"
    trap = {"do": {"run": ["true"]}, "undo": {"run": [_fake_ip(tmp_path, ran), "x"]}}
    link.arm("f", kind="k", target="t", steps=[kit.touch(made), trap])
    kill_both(kit, link.connector)
    rows, code = recover_from_here(link.connector.state_dir)

    assert (rows[0]["state"], code) == ("reverted", 0)
    assert not made.exists()
    assert not ran.exists()  # a network tool would have hit another namespace


def _fake_ip(tmp_path, ran):
    tool = tmp_path / "ip"
    tool.write_text(f"#!/bin/sh\ntouch '{ran}'\n")
    tool.chmod(0o755)
    return str(tool)


# --- files that others made -----------------------------------------------------------


def test_a_state_directory_of_others_is_refused(fleet):
    directory = fleet.directory()
    (directory / "s").symlink_to(directory)

    with pytest.raises(Exception, match="is not a directory of ours") as caught:
        fleet.agent(directory / "s")
    assert not isinstance(caught.value, UsageError)
