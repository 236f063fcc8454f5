"""What the worker calls, with names that hang, break down or raise.

`WHEEL` in the environment says what is wrong with the whole: "broken" cannot be loaded,
"dies" ends while it is loaded, "keeps" holds the interpreter in its setup for a minute,
"refuses" fails the first setup, "raises" all of them. It prints when it is loaded, as
native code may, and makes the file `WHEEL_SETUP` when its setup is called.
"""

from __future__ import annotations

import ctypes
import os
import time
from pathlib import Path
from types import SimpleNamespace

_WRONG = os.environ.get("WHEEL", "")
_LONG_S = 60
_RPC_FAIL = -900
_NOT_FOUND = -704
_setups: list[int] = []

print("the wheel is loaded", flush=True)
if _WRONG == "broken":
    raise ImportError("libibverbs.so.1: cannot open shared object file")
if _WRONG == "dies":
    os.abort()


class ReplicateConfig:
    replica_num = 1
    preferred_segment = ""


class ReplicaStatus:
    COMPLETE = 3


class MooncakeDistributedStore:
    def __init__(self):
        self.objects: dict[str, bytes] = {}

    def setup(self, *_args):
        _setups.append(1)
        if os.environ.get("WHEEL_SETUP"):
            Path(os.environ["WHEEL_SETUP"]).touch()
        if _WRONG == "raises":
            raise TypeError("incompatible function arguments")
        if _WRONG == "keeps":
            ctypes.PyDLL(None).sleep(_LONG_S)  # no other thread runs meanwhile
        return _RPC_FAIL if _WRONG == "refuses" and len(_setups) < 2 else 0

    def close(self):
        print("closed", flush=True)

    def register_buffer(self, _address, size):
        self.registered = size
        return 0

    def batch_is_exist(self, names):
        for name in names:
            if name == "hang":
                time.sleep(_LONG_S)
            if name == "break down":
                os.abort()
            if name == "raise":
                raise ValueError("no such name")
        return [int(name in self.objects) for name in names]

    def batch_get_replica_desc(self, names):
        described = SimpleNamespace(transport_endpoint="s:1")
        replica = SimpleNamespace(
            status=ReplicaStatus.COMPLETE,
            is_memory_replica=lambda: True,
            get_memory_descriptor=lambda: SimpleNamespace(buffer_descriptor=described),
        )
        return {name: [replica] for name in names if name in self.objects}

    def batch_get_into(self, names, addresses, sizes):
        return list(map(self._get, names, addresses, sizes))

    def batch_put_from(self, names, addresses, sizes, config):
        assert config.replica_num == 1
        for name, address, size in zip(names, addresses, sizes, strict=True):
            self.objects[name] = ctypes.string_at(address, size)
        return [0] * len(names)

    def remove(self, name, _force):
        return 0 if self.objects.pop(name, None) is not None else _NOT_FOUND

    def _get(self, name, address, size):
        value = self.objects.get(name)
        if value is None:
            return _NOT_FOUND
        ctypes.memmove(address, value, size)
        return len(value)
