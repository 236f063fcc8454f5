"""A real chronyd in a namespace of its own, collected by the collector and judged.

It never touches the clock of the machine: every chronyd runs with `-x`. A second one is
its time server; `offset` makes the first believe that it is far off.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import time
from pathlib import Path

import pytest

from checks import collector
from checks.framing import decode
from checks.judge import judge

TOOLS = ("chronyd", "chronyc", "unshare", "nsenter")
pytestmark = [
    pytest.mark.skipif(os.geteuid() != 0, reason="needs root: run as root"),
    pytest.mark.skipif(
        any(shutil.which(tool) is None for tool in TOOLS),
        reason="needs chronyd: apt-get install chrony util-linux",
    ),
]
SERVER = "local stratum 3\nallow 127.0.0.0/8\ncmdport 0\n"
CLIENT = "server 127.0.0.1 minpoll -4 maxpoll -4 {more}\nport 0\n"
WAIT_S = 15.0


class Clocks:
    """A network namespace with loopback, and the chronyds in it."""

    def __init__(self, directory):
        self.directory = directory
        quiet = "test ! -d /run/chrony || mount -t tmpfs tmpfs /run/chrony; "
        self.processes = []
        holder = self._start(
            ["unshare", "--net", "--mount", "sh", "-c", f"{quiet}echo ready; exec cat"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        assert holder.stdout.readline() == b"ready\n"
        spaces = f"/proc/{holder.pid}/ns"
        self.inside = ["nsenter", f"--net={spaces}/net", f"--mount={spaces}/mnt"]
        self.run("ip", "link", "set", "lo", "up")

    def _start(self, argv, **pipes):
        process = subprocess.Popen(argv, **pipes)
        self.processes.append(process)
        return process

    def run(self, *argv, text=None):
        done = subprocess.run(
            [*self.inside, *argv], capture_output=True, input=text, timeout=60
        )
        assert done.returncode == 0 or argv[0] == "chronyc", (argv, done.stderr)
        return done.stdout

    def chronyd(self, name, config):
        """Starts one that only looks: `-x` leaves the machine's clock alone."""
        place = self.directory / name
        place.mkdir(mode=0o700)
        path = place / "chrony.conf"
        own = f"pidfile {place}/pid\ndriftfile {place}/drift\n"
        path.write_text(f"{config}{own}bindcmdaddress {place}/chronyd.sock\n")
        argv = ["chronyd", "-d", "-x", "-u", "root", "-f", str(path)]
        log = (place / "log").open("wb")
        with log:
            self._start([*self.inside, *argv], stdout=log, stderr=log)
        return place / "log"

    def tracking(self):
        return self.run("chronyc", "-c", "tracking").decode().strip()

    def wait(self, wanted):
        """The first tracking line that is as wanted."""
        deadline = time.monotonic() + WAIT_S
        while time.monotonic() < deadline:
            line = self.tracking()
            if wanted(line.split(",")):
                return line
            time.sleep(0.1)
        logs = [path.read_text() for path in self.directory.glob("*/log")]
        raise AssertionError((self.tracking(), logs))

    def document(self):
        """What the collector itself reads, in here."""
        program = Path(collector.__file__).read_bytes()
        argv = ["python3", "-", "--sysroot", str(self.directory), "--hostname", "lab"]
        return decode(self.run(*argv, text=program))

    def close(self):
        for process in reversed(self.processes):
            process.terminate()
            process.wait(10)
            for pipe in (process.stdin, process.stdout):
                if pipe is not None:
                    pipe.close()


@pytest.fixture
def clocks(tmp_path):
    made = Clocks(tmp_path)
    try:
        yield made
    finally:
        made.close()


def verdicts(document):
    report = judge([document])
    assert report.own_faults == ()
    return {f.id: f for f in report.findings if f.id.startswith("time-")}


def synchronised(fields):
    return len(fields) == 14 and fields[-1] == "Normal" and fields[2] == "4"


def test_a_chronyd_that_follows_its_server_passes(clocks):
    clocks.chronyd("server", SERVER)
    clocks.chronyd("client", CLIENT.format(more=""))
    clocks.wait(synchronised)

    found = verdicts(clocks.document())

    assert found["time-offset"].status == "PASS", found["time-offset"].observed
    assert found["time-sync-daemon"].status == "PASS"


def test_a_clock_that_is_ten_seconds_off_fails(clocks):
    clocks.chronyd("server", SERVER)
    clocks.chronyd("client", CLIENT.format(more="offset 10.4"))
    clocks.wait(lambda fields: synchronised(fields) and abs(float(fields[4])) > 5)

    found = verdicts(clocks.document())

    assert (found["time-offset"].status, found["time-offset"].severity) == (
        "FAIL",
        "error",
    )
    assert found["time-sync-daemon"].status == "PASS"


def test_a_chronyd_without_a_server_fails(clocks):
    clocks.chronyd("client", CLIENT.format(more="port 9"))
    clocks.wait(lambda fields: fields[-1] == "Not synchronised")

    assert verdicts(clocks.document())["time-offset"].status == "FAIL"


def test_a_daemon_that_is_gone_is_no_verdict_of_chrony(clocks):
    document = clocks.document()

    entry = document["cmds"]["chronyc -c tracking"]
    assert (entry["rc"], entry["stdout"].strip()) == (1, "506 Cannot talk to daemon")
    document["cmds"] = {"chronyc -c tracking": entry}
    assert verdicts(json.loads(json.dumps(document)))["time-offset"].status == "UNKNOWN"
