"""Private network namespaces with veth rails, to ask the kernel itself."""

from __future__ import annotations

import os
import shutil
import subprocess

import pytest


class Namespace:
    """A network namespace that lives as long as its holder process.

    `rt_tables`: a file that stands in for /etc/iproute2/rt_tables inside of it.
    """

    def __init__(self, rt_tables=None):
        mount = "mount --bind $1 /etc/iproute2/rt_tables && " if rt_tables else ""
        script = f"{mount}echo ready; exec cat"
        self._holder = subprocess.Popen(
            ["unshare", "--net", "--mount", "sh", "-c", script, "sh", str(rt_tables)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        assert self._holder.stdout.readline() == b"ready\n"

    def run(self, *argv, text="", check=True):
        """Runs a program inside; its CompletedProcess."""
        spaces = f"/proc/{self._holder.pid}/ns"
        done = subprocess.run(
            ["nsenter", f"--net={spaces}/net", f"--mount={spaces}/mnt", *argv],
            input=text,
            capture_output=True,
            text=True,
            timeout=100,
            env={**os.environ, "LC_ALL": "C"},
        )
        assert not check or done.returncode == 0, (argv, done.stderr)
        return done

    def ip(self, line):
        """One `ip` command that must succeed; its output."""
        return self.run("ip", *line.split()).stdout

    def rail(self, name, *addresses, carrier=True):
        """A veth rail with these addresses (with their lengths)."""
        self.ip(f"link add {name} type veth peer name p{name}")
        for address in addresses:
            self.ip(f"addr add {address} dev {name}")
        self.ip(f"link set {name} up")
        if carrier:
            self.ip(f"link set p{name} up")

    def sysctl(self, path, value):
        """Sets a value below /proc/sys/net/ipv4."""
        self.run("tee", f"/proc/sys/net/ipv4/{path}", text=str(value))

    def facts(self, *commands):
        """Entries of a facts document, as the collector writes them."""
        found = {}
        for line in commands:
            done = self.run(*line.split(), check=False)
            found[line] = (done.returncode, done.stdout, done.stderr)
        return found

    def close(self):
        self._holder.stdin.close()
        self._holder.stdout.close()
        self._holder.wait(10)


@pytest.fixture
def namespace():
    """Makes namespaces; needs root (and iproute2, util-linux)."""
    if os.geteuid() != 0:
        pytest.skip("needs root for private network namespaces: run as root")
    if any(shutil.which(tool) is None for tool in ("ip", "unshare", "nsenter")):
        pytest.skip("needs ip, unshare and nsenter: apt install iproute2 util-linux")
    made = []

    def make(rt_tables=None):
        made.append(Namespace(rt_tables))
        return made[-1]

    yield make
    for each in made:
        each.close()
