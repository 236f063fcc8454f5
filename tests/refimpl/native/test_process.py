"""The client in a process of its own, over a stand-in for the wheel that misbehaves."""

from __future__ import annotations

import errno
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from refimpl.core.codes import Code
from refimpl.errors import UsageError
from refimpl.native.client import Gone, NativeOptions, NotConnected
from refimpl.native.memory import SharedMemory
from refimpl.native.process import ProcessOpener

WHEEL = Path(__file__).with_name("wheel")
ROOT = Path(__file__).parents[3]


@pytest.fixture
def master():
    """Somebody listens; the stand-in asks nobody."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield f"127.0.0.1:{server.getsockname()[1]}"


@pytest.fixture
def setup(tmp_path, monkeypatch):
    """The file that is there when the stand-in is being set up."""
    path = tmp_path / "setup"
    monkeypatch.setenv("WHEEL_SETUP", str(path))
    return path


@pytest.fixture
def opener_of(monkeypatch, master):
    """Openers over the stand-in, with something wrong with it."""
    made = []

    def build(wrong=""):
        monkeypatch.setenv("PYTHONPATH", f"{WHEEL}{os.pathsep}{ROOT}")
        monkeypatch.setenv("WHEEL", wrong)
        made.append(ProcessOpener(NativeOptions(master=master)))
        return made[-1]

    yield build
    for opener in made:
        opener.close()


@pytest.fixture
def memory():
    return SharedMemory(1 << 20)


@pytest.fixture
def opener(opener_of):
    return opener_of()


@pytest.fixture
def client(opener, memory):
    found = opener()
    assert found.register(memory) == 0
    return found


def until(condition, timeout_s=20.0):
    end_s = time.monotonic() + timeout_s
    while time.monotonic() < end_s and not condition():
        time.sleep(0.005)
    return bool(condition())


def runs(pid):
    """Whether a process is there and no zombie."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="ascii", errors="replace")
    except (FileNotFoundError, ProcessLookupError):
        return False
    return stat.rpartition(")")[2].split()[0] != "Z"


def pid_of(opener):
    return opener._worker.pid


def test_bytes_go_through_memory_that_both_see(client, memory):
    memory.array[4096:4100] = [1, 2, 3, 4]
    start = memory.address
    wrote = client.write(["a"], [start + 4096], [4], replicas=1, segment="")
    codes = client.read(["a", "b"], [start, start + 8], [4, 4])

    assert wrote == [0]
    assert codes == [4, Code.OBJECT_NOT_FOUND]
    assert memory.array[:4].tolist() == [1, 2, 3, 4]


def test_every_call_reaches_the_client(client, memory):
    client.write(["a"], [memory.address], [4], replicas=1, segment="s")

    assert client.exist(["a", "b"]) == [1, 0]
    assert client.places(["a", "b"]) == ["s:1", ""]
    assert client.remove("a") == 0
    assert client.remove("a") == Code.OBJECT_NOT_FOUND


def test_what_a_call_raises_is_raised_here_and_the_client_goes_on(client):
    with pytest.raises(RuntimeError, match="exist: ValueError: no such name"):
        client.exist(["raise"])

    assert client.exist(["a"]) == [0]


def test_a_call_that_hangs_holds_back_no_other_thread(client):
    with ThreadPoolExecutor(5) as pool:
        hung = pool.submit(client.exist, ["hang"])
        others = [pool.submit(client.exist, ["a"]) for _ in range(4)]

        assert [one.result(20) for one in others] == [[0]] * 4
        assert not hung.done()
        client.close()
        with pytest.raises(Gone):
            hung.result(20)


def test_a_worker_weighs_less_than_its_engine_and_what_is_given_up_least(
    opener, client
):
    hanging = threading.Thread(
        target=pytest.raises, args=[Gone, client.exist, ["hang"]]
    )
    hanging.start()
    tasks = Path(f"/proc/{pid_of(opener)}/task")
    assert until(lambda: len(list(tasks.iterdir())) == 2)
    called = max(int(task.name) for task in tasks.iterdir())
    before = os.getpriority(os.PRIO_PROCESS, called)
    assert until(lambda: client._threads.get(hanging.native_id, 0) > 0)
    client.make_way(hanging.native_id)

    assert before == min(19, os.getpriority(os.PRIO_PROCESS, 0) + 10)
    assert os.getpriority(os.PRIO_PROCESS, called) == 19
    client.close()
    hanging.join(20)


def test_nobody_is_asked_to_make_way_who_does_not_call(client):
    client.make_way(threading.get_native_id())

    assert client._threads == {}


def test_who_is_given_up_before_its_line_stands_makes_way_all_the_same(opener, client):
    """The worker is late, the call hangs as soon as it arrives."""
    os.kill(pid_of(opener), signal.SIGSTOP)
    calling = threading.Thread(
        target=pytest.raises, args=[Gone, client.exist, ["hang"]]
    )
    calling.start()
    assert until(lambda: calling.native_id in client._threads)
    client.make_way(calling.native_id)
    os.kill(pid_of(opener), signal.SIGCONT)
    tasks = Path(f"/proc/{pid_of(opener)}/task")

    def least():
        called = [int(task.name) for task in tasks.iterdir()]
        return 19 in [os.getpriority(os.PRIO_PROCESS, one) for one in called]

    assert until(least)
    client.close()
    calling.join(20)


def test_a_thread_that_ended_is_forgotten(client):
    calling = threading.Thread(target=client.exist, args=[["a"]])
    calling.start()
    calling.join(20)

    assert until(lambda: client._threads == {})


def test_an_engine_without_descriptors_blames_nobody(client, monkeypatch):
    def full(*_):
        raise OSError(errno.EMFILE, "Too many open files")

    monkeypatch.setattr(socket, "socketpair", full)
    with pytest.raises(Gone, match="Too many open files"):
        client.exist(["a"])


@pytest.mark.parametrize("end", ["killed", "breaks down"])
def test_a_client_that_is_gone_is_told_at_once_and_opened_anew(
    opener, client, memory, end
):
    waiting = threading.Thread(target=client.wait)
    waiting.start()
    first = pid_of(opener)
    with ThreadPoolExecutor(2) as pool:
        hung = pool.submit(client.exist, ["hang"])
        assert until(lambda: client._threads)
        if end == "killed":
            os.kill(first, signal.SIGKILL)
        else:
            with pytest.raises(Gone):
                client.exist(["break down"])
        with pytest.raises(Gone):
            hung.result(20)
    waiting.join(20)
    with pytest.raises(Gone):
        client.exist(["a"])
    client.close()
    again = opener()

    assert not waiting.is_alive()
    assert again.register(memory) == 0
    assert again.exist(["a"]) == [0]
    assert pid_of(opener) != first


def opened_beside(opener):
    """Opens in a thread, and answers what it ends with."""
    ended = []

    def open_it():
        try:
            ended.append(opener())
        except NotConnected as error:
            ended.append(error)

    thread = threading.Thread(target=open_it)
    thread.start()
    return thread, ended


def test_a_worker_that_dies_while_it_opens_is_a_master_not_reached(opener_of, setup):
    opener = opener_of("keeps")
    opening, ended = opened_beside(opener)
    assert until(setup.exists)
    os.kill(pid_of(opener), signal.SIGKILL)
    opening.join(20)

    assert isinstance(ended[0], NotConnected)
    assert "the worker ended" in str(ended[0])


def test_a_setup_that_raises_is_told_and_the_worker_ends(opener_of, capfd):
    opener = opener_of("raises")
    with pytest.raises(NotConnected, match="the worker ended"):
        opener()

    assert not runs(pid_of(opener))
    assert "incompatible function arguments" in capfd.readouterr().err


def test_what_is_closed_starts_no_other_worker(opener):
    opener.close()
    with pytest.raises(NotConnected, match="closed"):
        opener()

    assert not runs(pid_of(opener))


def test_a_worker_that_hears_nothing_is_given_up_and_started_anew(opener, monkeypatch):
    stopped = pid_of(opener)
    opener._worker.control.settimeout(0.2)
    os.kill(stopped, signal.SIGSTOP)
    with pytest.raises(NotConnected, match="timed out"):
        opener()
    again = opener()

    assert not runs(stopped)
    assert again.register(SharedMemory(4096)) == 0


def test_a_setup_that_fails_is_tried_again_in_the_same_process(opener_of, memory):
    opener = opener_of("refuses")
    first = pid_of(opener)
    with pytest.raises(NotConnected, match="-900"):
        opener()

    assert opener().register(memory) == 0
    assert pid_of(opener) == first


def test_where_nobody_listens_setup_is_not_tried(opener_of, master, monkeypatch):
    opener = opener_of("keeps")
    with socket.create_server(("127.0.0.1", 0)) as server:
        nobody = f"127.0.0.1:{server.getsockname()[1]}"
    monkeypatch.setattr(opener, "_options", NativeOptions(master=nobody))
    began_s = time.monotonic()
    with pytest.raises(NotConnected, match="-900"):
        opener()

    assert time.monotonic() - began_s < 20


@pytest.mark.parametrize(
    ("wrong", "told"), [("broken", "libibverbs.so.1: cannot open"), ("dies", "ended")]
)
def test_a_wheel_that_cannot_be_loaded_is_told_with_the_remedy(opener_of, wrong, told):
    with pytest.raises(UsageError, match=told) as raised:
        opener_of(wrong)

    assert "pip install" in str(raised.value)
    assert "libibverbs1" in str(raised.value)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize("calls", ["none", "one that hangs"])
def test_close_ends_the_process(opener, client, calls):
    pid = pid_of(opener)
    with ThreadPoolExecutor(1) as pool:
        if calls != "none":
            pool.submit(client.exist, ["hang"])
            assert until(lambda: client._threads)
        client.close()
        client.close()

    assert not runs(pid)


def test_a_setup_that_keeps_the_interpreter_is_ended_too(opener_of, setup):
    opener = opener_of("keeps")
    pid = pid_of(opener)
    opening, ended = opened_beside(opener)
    assert until(setup.exists)
    opener.close()
    opening.join(20)

    assert isinstance(ended[0], NotConnected)
    assert not runs(pid)


@pytest.mark.parametrize("wrong", ["", "keeps"])
def test_no_worker_outlives_an_engine_that_is_killed(master, setup, wrong):
    """Not even one whose native call keeps the interpreter: it hears nothing."""
    program = (
        "import sys, threading\n"
        "from refimpl.native.client import NativeOptions\n"
        "from refimpl.native.process import ProcessOpener\n"
        "opener = ProcessOpener(NativeOptions(master=sys.argv[1]))\n"
        "threading.Thread(target=opener, daemon=True).start()\n"
        "print(opener._worker.pid, flush=True)\n"
        "threading.Event().wait()\n"
    )
    paths = f"{WHEEL}{os.pathsep}{ROOT}"
    engine = subprocess.Popen(
        [sys.executable, "-c", program, master],
        env={**os.environ, "PYTHONPATH": paths, "WHEEL": wrong},
        stdout=subprocess.PIPE,
        text=True,
    )
    with engine:
        pid = int(engine.stdout.readline())
        assert until(setup.exists)
        assert runs(pid)
        engine.kill()

    assert until(lambda: not runs(pid))


def test_what_native_code_prints_is_not_taken_for_the_engines_words(opener_of, capfd):
    opener_of()
    printed = capfd.readouterr()

    assert printed.out == ""
    assert "the wheel is loaded" in printed.err
