"""How an agent keeps its word: answers of ids, rows of the ledger, lines of logs."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys

import pytest

from chaos.hosts import agent


def run(work):
    return asyncio.run(work)


class Counted:
    """Something to execute; says how often it was."""

    def __init__(self, answer=b"{}"):
        self.answer = answer
        self.times = 0

    async def __call__(self):
        self.times += 1
        await asyncio.sleep(0)
        return self.answer


def test_an_id_is_executed_once_and_answered_as_often_as_asked():
    async def work():
        answers, thing = agent.Answers(), Counted(b"said")
        got = [await answers.once("c:1", b"d", thing) for _ in range(3)]
        both = await asyncio.gather(
            answers.once("c:2", b"d", thing), answers.once("c:2", b"d", thing)
        )
        return got, both, thing.times

    assert run(work()) == ([b"said"] * 3, [b"said"] * 2, 2)


def test_an_id_belongs_to_one_request():
    async def work():
        answers = agent.Answers()
        await answers.once("c:1", b"one", Counted())
        with pytest.raises(agent.Refused, match="another request before"):
            answers.once("c:1", b"two", Counted())

    run(work())


@pytest.mark.parametrize("request_id", ["", "nonumber", "c:", ":1", "c:-1", "c:x"])
def test_an_id_has_a_client_and_a_number(request_id):
    async def work():
        with pytest.raises(agent.Refused, match="<client>:<number>"):
            agent.Answers().once(request_id, b"d", Counted())

    run(work())


def test_an_id_whose_answer_was_dropped_is_refused_and_not_executed_again():
    async def work():
        answers, thing = agent.Answers(), Counted()
        for number in range(agent.MAX_ANSWERS + 2):
            await answers.once(f"c:{number}", b"d", thing)
            await asyncio.sleep(0)
        times = thing.times
        with pytest.raises(agent.Refused, match="too old"):
            answers.once("c:0", b"d", thing)
        await answers.once(f"c:{agent.MAX_ANSWERS + 1}", b"d", thing)
        assert thing.times == times
        return len(answers._kept)

    assert run(work()) == agent.MAX_ANSWERS


def test_the_bytes_of_kept_answers_are_bounded():
    async def work():
        answers, thing = agent.Answers(), Counted(b"x" * (1 << 20))
        for number in range(40):
            await answers.once(f"c:{number}", b"d", thing)
            await asyncio.sleep(0)
        return answers._bytes, len(answers._kept)

    size, count = run(work())
    assert size <= agent.MAX_ANSWER_BYTES
    assert 0 < count <= 16


def test_requests_in_flight_are_bounded():
    async def work():
        answers, gate = agent.Answers(), asyncio.Event()

        async def waits():
            await gate.wait()
            return b""

        waiting = [
            answers.once(f"c:{n}", b"d", waits) for n in range(agent.MAX_IN_FLIGHT)
        ]
        with pytest.raises(agent.Refused, match="too many"):
            answers.once("c:9999", b"d", waits)
        gate.set()
        await asyncio.gather(*waiting)

    run(work())


# --- the ledger -----------------------------------------------------------------------


def book_with_a_fault(path):
    book = agent.Book.create(path, {"run": "r", "boot_id": "b"})
    row = {"row": "fault", "fault_id": "f", "kind": "k", "target": "t"}
    book.write({**row, "steps": [{"do": {"run": ["true"]}}] * 3})
    book.write({"row": "step", "fault_id": "f", "index": 0})
    book.write({"row": "step", "fault_id": "f", "index": 1})
    book.write({"row": "kept", "fault_id": "f", "path": "/p", "text": "\udcff old"})
    book.write({"row": "kept", "fault_id": "f", "path": "/p", "text": "newer"})
    book.write(
        {"row": "child", "fault_id": "f", "name": "c", "pid": 7, "start_ticks": 8}
    )
    book.write({"row": "role", "role": "store-0", "pid": 5, "start_ticks": 6})
    book.close()


def test_a_ledger_is_read_back_as_it_was(tmp_path):
    path = tmp_path / "ledger.jsonl"
    book_with_a_fault(path)
    book = agent.Book.read(path)
    fault = book.faults["f"]

    assert (fault.started, fault.state, fault.open) == (2, "armed", True)
    assert fault.kept == {"/p": "\udcff old"}
    assert fault.children == {"c": (7, 8)}
    assert (book.roles, book.header["boot_id"]) == ({"store-0": (5, 6)}, "b")


def test_reading_a_ledger_changes_nothing(tmp_path):
    path = tmp_path / "ledger.jsonl"
    book_with_a_fault(path)
    path.write_bytes(path.read_bytes() + b'{"row":"to')
    before = path.read_bytes()
    book = agent.Book.read(path)

    assert (book.torn_rows, path.read_bytes()) == (1, before)


def test_a_row_after_a_torn_one_is_whole(tmp_path):
    path = tmp_path / "ledger.jsonl"
    book_with_a_fault(path)
    path.write_bytes(path.read_bytes() + b'{"row":"to')
    book = agent.Book.load(path)
    state = {"row": "state", "fault_id": "f", "state": "reverted"}
    book.note({**state, "detail": "", "residual": ""})
    book.close()

    assert not agent.Book.read(path).faults["f"].open
    assert json.loads(path.read_bytes().splitlines()[-1])["state"] == "reverted"


def test_a_row_that_the_disk_tore_takes_no_later_row_with_it(tmp_path, monkeypatch):
    """Else a fault that is armed next could not be healed by anybody but its agent."""
    path = tmp_path / "ledger.jsonl"
    book = agent.Book.create(path, {"run": "r", "boot_id": "b"})
    row = {"row": "fault", "kind": "k", "target": "t", "steps": []}
    whole = agent.os.write
    monkeypatch.setattr(agent.os, "write", lambda d, line: whole(d, line[:9]))
    with pytest.raises(OSError, match="only a part"):
        book.write({**row, "fault_id": "torn"})
    monkeypatch.undo()
    book.write({**row, "fault_id": "next"})
    book.write({"row": "step", "fault_id": "next", "index": 0})
    book.close()

    assert list(agent.Book.read(path).faults) == ["next"]
    assert agent.Book.read(path).faults["next"].started == 1


def test_a_child_that_the_ledger_does_not_take_is_ended(tmp_path, monkeypatch):
    path = tmp_path / "ledger.jsonl"
    book = agent.Book.create(path, {"run": "r", "boot_id": "b"})
    bench = agent.Bench(book, agent.Commands())
    fault = agent.Fault("f", "k", "t", [])
    started = []

    def full(row):
        started.append((row["pid"], row["start_ticks"]))
        raise OSError(28, "no room")

    monkeypatch.setattr(book, "write", full)
    action = {"op": "start", "name": "c", "argv": ["sleep", "60"]}
    with pytest.raises(OSError, match="no room"):
        run(bench.act(fault, action))
    book.close()

    assert not agent.session_alive(*started[0])
    assert bench.popens == {}


def test_a_fault_that_begins_to_heal_cannot_be_confirmed(tmp_path):
    async def work():
        book = agent.Book.create(tmp_path / "l", {"run": "r", "boot_id": "b"})
        worker = agent.Worker(
            run="r",
            directory=tmp_path,
            book=book,
            ttl_s=60.0,
            beat=agent.Beat(),
            alive=-1,
        )
        steps = [{"do": {"run": ["true"]}, "undo": {"run": ["true"]}}]
        await worker._op_arm({"fault_id": "f", "steps": steps, "confirm_s": 0.001})
        await asyncio.sleep(0.01)
        worker._tick()  # the heal is ordered, and has not begun
        with pytest.raises(agent.Refused, match="not active"):
            await worker._op_confirm({"fault_id": "f"})
        await worker._healing["f"]
        book.close()
        return book.faults["f"].state

    assert run(work()) == "reverted"


def test_a_full_disk_stops_an_arm_and_not_a_heal(tmp_path):
    book_with_a_fault(tmp_path / "ledger.jsonl")
    book = agent.Book.read(tmp_path / "ledger.jsonl")
    state = {"row": "state", "fault_id": "f", "detail": "", "residual": ""}
    with open("/dev/full", "wb", buffering=0) as full:  # noqa: PTH123
        book._descriptor = full.fileno()
        with pytest.raises(OSError, match="No space"):
            book.write({**state, "state": "active"})
        assert book.faults["f"].state == "armed"
        book.note({**state, "state": "reverted"})

    assert book.faults["f"].state == "reverted"


def test_a_namespace_is_not_known_by_a_number_that_is_used_again():
    here = {"net_ns": agent.network_of(), "net_cookie": agent.network_cookie()}
    if not here["net_cookie"]:
        pytest.skip("needs Linux 5.14: network namespaces have no cookie before")

    assert agent._enter_network(here)
    assert not agent._enter_network({**here, "net_cookie": here["net_cookie"] + 1})


# --- tools that say that their target is gone -----------------------------------------


@pytest.mark.parametrize(
    ("argv", "stderr", "gone"),
    [
        (["ip", "link"], 'Device "rail0" does not exist.', True),
        (["/sbin/ip", "link"], 'Cannot find device "rail0"', True),
        (["tc", "qdisc"], "Error: Cannot delete qdisc with handle of zero.", True),
        (["nft", "delete"], "Error: No such file or directory", True),
        (["nft", "-f"], "Error: syntax error, unexpected newline", False),
        (["ip", "link"], "RTNETLINK answers: Operation not permitted", False),
        (["nsenter", "nft"], "nsenter: No such file or directory", False),
        (["cat", "/x"], "cat: /x: No such file or directory", False),
    ],
)
def test_only_a_tools_own_words_mean_that_its_target_is_gone(argv, stderr, gone):
    assert agent.is_gone(argv, agent.Completed(1, b"", stderr.encode())) is gone


def test_a_command_that_was_killed_says_nothing_about_its_target():
    late = agent.Completed(-9, b"", b"Cannot find device")
    late.timed_out = True

    assert not agent.is_gone(["ip"], late)


# --- logs -----------------------------------------------------------------------------


def test_lines_of_a_log_are_whole_and_told_once(tmp_path):
    path = tmp_path / "log"
    path.write_bytes(b"before\n")
    lines = agent.Lines(path, 7)
    told = []
    for more in (b"one\ntw", b"o\n", b"", b"thr"):
        path.write_bytes(path.read_bytes() + more)
        told.append(lines.more())

    assert told == [["one"], ["two"], [], []]


def test_a_log_that_was_emptied_is_read_from_its_start(tmp_path):
    path = tmp_path / "log"
    path.write_bytes(b"a long line\n")
    lines = agent.Lines(path, 0)
    lines.more()
    path.write_bytes(b"new\n")

    assert lines.more() == ["new"]


def test_a_log_past_its_bound_is_emptied(tmp_path, monkeypatch):
    class Noisy:
        out, err = tmp_path / "r.out", tmp_path / "r.err"
        out_from = err_from = 0

    roles = agent.Roles(None, tmp_path)
    roles.roles["r"] = Noisy
    Noisy.err.touch()
    with Noisy.out.open("wb") as file:
        file.truncate(agent.LOG_BYTES + 1)
    roles.bound_logs()

    assert Noisy.out.stat().st_size == 0


# --- whom a session's number means ----------------------------------------------------

_LEAVES_ONE_BEHIND = """
import os, subprocess
left = subprocess.Popen(["sleep", "60"], stdin=subprocess.DEVNULL, stdout=3, stderr=3)
print(left.pid, flush=True)
""".replace("3", "subprocess.DEVNULL")


@pytest.mark.parametrize(("env", "ours"), [(agent.marked({}), True), (None, False)])
def test_a_session_whose_leader_has_ended_is_ours_by_our_mark_alone(env, ours):
    """A stranger's daemon may have the number that a process of ours once had."""
    leader = subprocess.Popen(
        [sys.executable, "-S", "-c", _LEAVES_ONE_BEHIND],
        stdout=subprocess.PIPE,
        env=env,
        start_new_session=True,
    )
    ticks = agent.ticks_of(leader.pid)
    left = int(leader.communicate()[0])
    began = agent.ticks_of(left)
    try:
        assert agent.session_alive(leader.pid, ticks) is ours
        assert agent.kill_session(leader.pid, ticks) is ours
    finally:
        agent.send_signal(left, began, 9)
