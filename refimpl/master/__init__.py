"""The master: which object lies in which segments, and who is alive.

One process, one gRPC service, a heartbeat port of its own, an admin door.
"""

from __future__ import annotations

from refimpl.master.settings import MasterSettings

__all__ = ["MasterSettings", "run"]


def run(settings: MasterSettings) -> int:
    """Runs a master until SIGTERM or Ctrl-C and returns its exit code.

    gRPC is imported here, so that a mistake in the settings is told at once.
    """
    from refimpl.master.process import run as run_process

    return run_process(settings)
