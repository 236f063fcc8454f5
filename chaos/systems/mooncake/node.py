"""A store that keeps its name: `python -m chaos.systems.mooncake.node HOST:PORT ...`.

Mooncake's stand-alone client draws the port that names its segment. This one is told
it, through the same library, so that a store that was killed comes back under its old
name (as one behind a fixed service address does), and without address randomisation
(`launch.py --no-aslr`) with its memory at the old place.

A first setup after a crash may be refused, because the metadata of the one before is
still there; it is tried again as a new image of the same process.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from typing import Final, NoReturn

ATTEMPTS: Final = 4
_PAUSE_S: Final = 2.0
_LOCAL_BYTES: Final = 16 << 20
_TRIED: Final = "MOONQUAKE_NODE_TRIED"
_USAGE: Final = "usage: node HOST:PORT SEGMENT_BYTES MASTER METADATA\n"
_EXIT_USAGE, _EXIT_REFUSED = 2, 4


def main(argv: list[str]) -> int:
    """Mounts a segment and waits for SIGTERM."""
    if len(argv) != 4:
        sys.stderr.write(_USAGE)
        return _EXIT_USAGE
    name, size, master, metadata = argv
    from mooncake.store import MooncakeDistributedStore

    store = MooncakeDistributedStore()
    code = store.setup(name, metadata, int(size), _LOCAL_BYTES, "tcp", "", master)
    if code != 0:
        _again(name, int(code))
    sys.stdout.write(f"mooncake store {name} ready\n")
    sys.stdout.flush()
    signal.sigwait({signal.SIGTERM, signal.SIGINT})
    store.close()
    return 0


def _again(name: str, code: int) -> NoReturn:
    """Tries once more from the start, a few times."""
    tried = int(os.environ.get(_TRIED, "0")) + 1
    sys.stderr.write(f"mooncake store {name}: setup answered {code}, try {tried}\n")
    sys.stderr.flush()
    if tried >= ATTEMPTS:
        os._exit(_EXIT_REFUSED)
    time.sleep(_PAUSE_S)
    os.environ[_TRIED] = str(tried)
    module = ["-m", "chaos.systems.mooncake.node"]
    os.execv(sys.executable, [sys.executable, *module, *sys.argv[1:]])  # noqa: S606


if __name__ == "__main__":
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM, signal.SIGINT})
    ended = main(sys.argv[1:])
    sys.stderr.flush()
    os._exit(ended)  # native threads may still be at work
