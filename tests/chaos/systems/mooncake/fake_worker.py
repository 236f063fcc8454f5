"""A worker without Mooncake: what it does is in the plan's address and in the calls."""

from __future__ import annotations

import os
import sys
import time

from chaos.systems.mooncake import native, worker


class FakeStore:
    """Answers at once, sleeps, breaks or dies, as the first name says."""

    hostname = "127.0.0.1:1"

    def __init__(self, plan):
        if plan["address"] == "refused":
            raise native.SetupFailed(-600)
        if plan["address"] == "silent":
            time.sleep(60)

    def exists(self, names):
        if names[0] == "hang":
            time.sleep(60)
        if names[0] == "die":
            os._exit(7)
        if names[0] == "break":
            raise RuntimeError("broken")
        return [{"absent": 0, "bad": -800}.get(name, 1) for name in names]

    def replicas(self, names):
        return [["127.0.0.9:15001", "127.0.0.10:15002"] for _ in names]

    def health(self):
        return os.getpid()


if __name__ == "__main__":
    native.NativeStore = FakeStore
    worker.main()
    sys.stderr.flush()
    os._exit(0)
