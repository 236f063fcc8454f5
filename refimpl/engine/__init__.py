"""The engine: a timed model of prefill over a real HiCache.

One process, one gRPC service, an admin door. It serves with or without the pool.
"""

from __future__ import annotations

from refimpl.engine.settings import EngineSettings

__all__ = ["EngineSettings", "run"]


def run(settings: EngineSettings) -> int:
    """Runs an engine until SIGTERM or Ctrl-C and returns its exit code.

    gRPC and numpy are imported here, so that a mistake in the settings is told at once.
    """
    from refimpl.engine.process import run as run_process

    return run_process(settings)
