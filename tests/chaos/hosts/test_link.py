"""A call is executed at most once, whatever becomes of its connection."""

from __future__ import annotations

import itertools
import json
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from chaos.errors import AgentError, HostUnreachable
from chaos.hosts.link import Agent, AgentGone

PHASES = ("connect", "before", "short", "sent", "answering", "answered")


class Cut:
    """A connection that is lost at a phase; afterwards the other end is closed."""

    def __init__(self, channel, phase):
        self.channel = channel
        self.phase = phase

    def send(self, data, *, timeout_s):
        if self.phase == "before":
            self._lose()
        if self.phase == "short":  # by its last byte, the end of the line
            self.channel.send(data[:-1], timeout_s=timeout_s)
            self._lose()
        self.channel.send(data, timeout_s=timeout_s)
        if self.phase == "sent":
            self._lose()

    def recv(self, size, *, timeout_s):
        if self.phase == "answering":
            self.channel.recv(3, timeout_s=timeout_s)
            self._lose()
        data = self.channel.recv(size, timeout_s=timeout_s)
        if self.phase == "answered":
            self._lose()
        return data

    def close(self):
        self.channel.close()

    def _lose(self):
        self.channel.close()
        raise ConnectionResetError("cut")


class Cutting:
    """A connector whose first connections are cut, each at its phase."""

    def __init__(self, connector, phases):
        self.name = connector.name
        self.connector = connector
        self.phases = list(phases)
        self.connections = 0

    def connect(self, *, timeout_s):
        self.connections += 1
        phase = self.phases.pop(0) if self.phases else ""
        if phase == "connect":
            raise ConnectionRefusedError("cut")
        return Cut(self.connector.connect(timeout_s=timeout_s), phase)

    def close(self):
        pass


@pytest.fixture
def cut(shared):
    links = []

    def make(*phases):
        links.append(Agent(Cutting(shared.connector, phases)))
        return links[-1]

    yield make
    for link in links:
        link.close()


@pytest.mark.parametrize("phase", PHASES)
def test_a_command_runs_once_wherever_the_connection_is_lost(cut, tmp_path, phase):
    log = tmp_path / "log"
    done = cut(phase).run(["tee", "-a", str(log)], stdin="x")

    assert (done.rc, done.stdout, log.read_text()) == (0, "x", "x")


@pytest.mark.parametrize("phases", list(itertools.product(PHASES, repeat=2)))
def test_a_fault_is_armed_once_though_the_connection_is_lost_twice(
    cut, tmp_path, phases
):
    log = tmp_path / "log"
    link = cut(*phases)
    do = {"run": ["tee", "-a", str(log)], "stdin": "x"}
    fault_id = "-".join(phases)
    link.arm(fault_id, kind="k", target="t", steps=[{"do": do}])

    assert log.read_text() == "x"
    assert link.fault(fault_id).state == "active"
    assert link.disarm(fault_id) == ""


def test_a_repeated_request_waits_for_the_first_one(shared, cut, tmp_path):
    """The answer is lost while the command still runs."""
    log = tmp_path / "log"
    script = "sleep 0.4; echo x >> " + str(log)
    done = cut("sent", "sent").run(["sh", "-c", script])

    assert (done.rc, log.read_text()) == (0, "x\n")


def test_a_refusal_is_remembered_as_well(cut):
    with pytest.raises(AgentError, match="argv: needs a list"):
        cut("answering", "sent").call("run", {"argv": []})


def test_connections_are_used_again(cut, shared):
    link = cut()
    for _ in range(5):
        link.hello()

    assert link.connector.connections == 1


def test_a_call_that_waits_does_not_hold_up_the_others(shared, kit):
    kit.spawn(shared, "quiet", "import time; time.sleep(600)")
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(shared.wait_line, "quiet", "never", timeout_s=2.0)
        began = kit.now()
        shared.renew(120)
        took_s = kit.now() - began
        with pytest.raises(AgentError, match="not ready in 2 s"):
            waiting.result()
    shared.stop("quiet", timeout_s=5)

    assert took_s < 1.9


def test_many_threads_may_share_a_link(shared):
    with ThreadPoolExecutor(8) as pool:
        said = list(pool.map(lambda n: shared.run(["echo", str(n)]).stdout, range(40)))

    assert said == [f"{n}\n" for n in range(40)]


# --- without an agent -----------------------------------------------------------------


class Clock:
    """Time that passes only when somebody waits."""

    def __init__(self):
        self.now_s = 0.0
        self.waits = []

    def __call__(self):
        return self.now_s

    def wait(self, seconds):
        self.waits.append(seconds)
        self.now_s += max(seconds, 0.001)


class Scripted:
    """A connector and a channel in one: says what it was told to say."""

    name = "host-7"

    def __init__(self, answers=(), error=None):
        self.answers = list(answers)
        self.error = error
        self.sent = []
        self.closed = 0

    def connect(self, *, timeout_s):
        if self.error is not None:
            raise self.error
        return self

    def send(self, data, *, timeout_s):
        self.sent.append(json.loads(data))

    def recv(self, size, *, timeout_s):
        answer = self.answers.pop(0) if self.answers else b""
        return answer(self.sent[-1]) if callable(answer) else answer

    def close(self):
        self.closed += 1


def good(request):
    answer = {"id": request["id"], "ok": True, "result": {"residual": ""}}
    return json.dumps(answer).encode() + b"\n"


def test_an_unreachable_host_is_told_within_the_deadline():
    clock = Clock()
    link = Agent(Scripted(error=OSError("no route")), clock=clock, wait=clock.wait)
    with pytest.raises(HostUnreachable) as caught:
        link.hello()

    assert str(caught.value) == (
        "host host-7 does not answer to hello: no answer within 20 s (no route)"
    )
    assert not caught.value.gone
    assert 20 <= clock.now_s < 20.5
    assert max(clock.waits) <= 1.0
    assert len(clock.waits) < 30


class Silent(Scripted):
    """Takes the request and says nothing, for as long as one waits."""

    def __init__(self, clock, answers):
        super().__init__(answers)
        self.clock = clock

    def recv(self, size, *, timeout_s):
        if self.answers[0] is None:
            self.answers.pop(0)
            self.clock.now_s += timeout_s
            raise TimeoutError("nothing came")
        return super().recv(size, timeout_s=timeout_s)


def test_a_connection_that_died_in_silence_costs_an_attempt_and_not_the_call():
    clock = Clock()
    connector = Silent(clock, [None, good])
    link = Agent(connector, clock=clock, wait=clock.wait)
    link.call("confirm", {"fault_id": "f"})

    assert connector.sent[0] == connector.sent[1]
    assert 4 <= clock.now_s < 5


def test_an_agent_that_is_gone_is_told_at_once():
    clock = Clock()
    link = Agent(Scripted(error=AgentGone("it went")), clock=clock, wait=clock.wait)
    with pytest.raises(HostUnreachable, match="it went") as caught:
        link.hello()

    assert (caught.value.gone, clock.now_s) == (True, 0.0)


@pytest.mark.parametrize(
    "garbage",
    [b"not json\n", b"[1]\n", b'{"id":"another","ok":true,"result":{}}\n', b""],
)
def test_an_answer_that_is_none_is_asked_for_again_with_the_same_id(garbage):
    clock = Clock()
    connector = Scripted([garbage, good])
    link = Agent(connector, clock=clock, wait=clock.wait)

    assert link.disarm("f") == ""
    assert len(connector.sent) == 2
    assert connector.sent[0] == connector.sent[1]
    assert connector.closed == 1


def test_ids_are_never_used_twice():
    connector = Scripted([good] * 3)
    link, other = Agent(connector), Agent(connector)
    link.disarm("f")
    link.disarm("f")
    other.disarm("f")

    assert len({request["id"] for request in connector.sent}) == 3


def test_an_answer_without_end_is_bounded():
    clock = Clock()
    connector = Scripted([b"x" * (17 << 20), good])
    link = Agent(connector, clock=clock, wait=clock.wait)

    assert link.disarm("f") == ""


def test_a_closed_link_does_not_connect_again():
    link = Agent(Scripted([good]))
    link.close()
    link.close()

    with pytest.raises(HostUnreachable, match="the link is closed"):
        link.disarm("f")
    assert threading.active_count() >= 1
