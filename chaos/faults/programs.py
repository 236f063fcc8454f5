"""Small programs that a host runs in the background for a fault, as whole texts.

Where a fault needs a loop (a link that flaps) or more than one file at once (moving all
processes of a cgroup), the agent starts Python with one of these and arguments. The
management guard takes no other program: it compares the text.
"""

from __future__ import annotations

from typing import Final

FLAP: Final = """\
import subprocess, sys, time
device, down_s, up_s = sys.argv[1], float(sys.argv[2]), float(sys.argv[3])
while True:
    subprocess.run(["ip", "link", "set", "dev", device, "down"], timeout=5)
    time.sleep(down_s)
    subprocess.run(["ip", "link", "set", "dev", device, "up"], timeout=5)
    time.sleep(up_s)
"""

#: Puts every process of one cgroup into another; a new one may be born meanwhile.
EMPTY_CGROUP: Final = """\
import os, sys
source, target = sys.argv[1], sys.argv[2]
for _ in range(100):
    try:
        with open(os.path.join(source, "cgroup.procs")) as file:
            pids = file.read().split()
    except FileNotFoundError:
        break
    if not pids:
        os.rmdir(source)
        break
    for pid in pids:
        try:
            with open(os.path.join(target, "cgroup.procs"), "w") as file:
                file.write(pid)
        except ProcessLookupError:
            pass
"""

ALL: Final = frozenset({FLAP, EMPTY_CGROUP})


def python(program: str, *arguments: str) -> list[str]:
    """The command line of a program: isolated, without site packages."""
    return ["python3", "-I", "-S", "-c", program, *arguments]
