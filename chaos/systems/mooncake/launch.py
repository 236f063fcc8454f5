"""A program that becomes another one that dies with us: `launch.py [options] -- ARGV`.

Mooncake's binaries and etcd do not end with whoever started them. The kernel can see to
that (PR_SET_PDEATHSIG outlives exec), so that a killed harness leaves nothing behind.
By "parent" it means the starting *thread*: it must live as long as the process. The pid
stays the same. Run as a file with `-I -S`: it must cost nothing.

A program without a directory is one of the Mooncake wheel of this interpreter: another
host has it somewhere else. Then it is run as a module, without `-S`.

Options: `--die-with-parent PID` (of the parent, which may be gone before we ask);
`--no-aslr` (the same addresses at every start, as without address randomisation: what
makes a restarted store take the place of the one before, to the byte).
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys

_PR_SET_PDEATHSIG = 1
_ADDR_NO_RANDOMIZE = 0x0040000
_EXIT_ORPHAN, _EXIT_USAGE, _EXIT_REFUSED, _EXIT_NO_PROGRAM = 3, 2, 4, 127


def main(argv: list[str]) -> int:
    """Does what the options say, and becomes the program."""
    libc = ctypes.CDLL(None, use_errno=True)
    if "--" not in argv[:4]:
        sys.stderr.write(
            "usage: launch.py [--die-with-parent PID] [--no-aslr] -- ...\n"
        )
        return _EXIT_USAGE
    at = argv.index("--")
    options, program = argv[:at], argv[at + 1 :]
    if "--no-aslr" in options and libc.personality(_ADDR_NO_RANDOMIZE) == -1:
        why = os.strerror(ctypes.get_errno())
        sys.stderr.write(f"launch.py: no fixed addresses here (personality: {why})\n")
        return _EXIT_REFUSED
    if "--die-with-parent" in options:
        parent = int(options[options.index("--die-with-parent") + 1])
        libc.prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)
        if os.getppid() != parent:
            return _EXIT_ORPHAN
    try:
        os.execv(_found(program[0]), program)  # noqa: S606 - that is what this is for
    except OSError as error:
        sys.stderr.write(f"{program[0]}: {error.strerror}\n")
        return _EXIT_NO_PROGRAM


def _found(program: str) -> str:
    """Where a program is; the name alone when the wheel is not there."""
    if os.sep in program:
        return program
    from importlib.util import find_spec

    wheel = find_spec("mooncake")
    places = (wheel.submodule_search_locations if wheel else None) or [""]
    return f"{places[0]}/{program}"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
