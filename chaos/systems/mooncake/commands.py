"""How every role of a cluster is started: command lines, environment, their ends."""

from __future__ import annotations

import dataclasses
import os
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

import chaos
from chaos.systems.engines import flags_of
from chaos.systems.layout import MASTER, PROBE
from chaos.systems.mooncake import layout
from chaos.systems.mooncake.plan import VARIABLE as PLAN
from chaos.systems.probe import TOKEN, command

if TYPE_CHECKING:
    from collections.abc import Callable

    from chaos.systems.engines import Engines
    from chaos.systems.mooncake.layout import Addresses
    from chaos.systems.mooncake.package import Package

ROLE_TOKEN: Final = "REFIMPL_TOKEN"  # noqa: S105 - the name of a variable
_MODULE: Final = "chaos.systems.mooncake.launch"
_LAUNCH: Final = Path(__file__).with_name("launch.py")
_QUIET: Final = {
    "GLOG_logtostderr": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "OMP_NUM_THREADS": "1",
    "PYTHONUNBUFFERED": "1",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Commands:
    """Command lines and environments of the roles of one cluster.

    Args:
        python: the interpreter of a role, where it runs.
        scratch: a directory for etcd's data, made when asked for.
        token: what the doors of engines and of our own client ask for.
    """

    package: Package
    here: Addresses
    engines: Engines
    python: Callable[[str], str]
    scratch: Callable[[], Path]
    token: str = ""

    def argv(self, role: str) -> list[str]:
        """The command line of a role, with what ends it when we end."""
        return [*self._launched(role), *self._program(role)]

    def env(self, role: str) -> dict[str, str]:
        """What is added to our environment: Mooncake's variables, by kind of role."""
        kind, here, shape = role.partition("-")[0], self.here, self.here.shape
        env = {"PYTHONPATH": str(Path(chaos.__file__).parent.parent), **_QUIET}
        if kind == "store":
            env |= {**shape.profile.env, **shape.store_env}
            env["MC_TCP_BIND_ADDRESS"] = here.own(role)
            env |= self._same_name(role) if shape.http_metadata else {}
        elif kind == "engine":
            env |= {**shape.profile.env, **shape.client_env}
            env["MC_TCP_BIND_ADDRESS"] = here.own(role)
        elif kind == PROBE:
            env[PLAN] = here.client().to_json()
        if self.token and kind in ("engine", PROBE):
            env |= {ROLE_TOKEN: self.token, TOKEN: self.token}
        return env

    def _same_name(self, role: str) -> dict[str, str]:
        """A range of one port, so that the segment is named as it was after a restart.

        So it is where operators fix the port of a store (`local_hostname` HOST:PORT).
        """
        port = str(self.here.ports[role, "segment"])
        return {"MC_STORE_CLIENT_MIN_PORT": port, "MC_STORE_CLIENT_MAX_PORT": port}

    def _near(self) -> bool:
        """Whether engines put to stores beside them first: as the placement says."""
        local_first = self.here.shape.spec.placement == "local_first"
        return local_first and self.engines.settings.mooncake_near

    def _launched(self, role: str) -> list[str]:
        """On hosts the agent answers for the end of its roles; here the kernel does."""
        fixed = role.startswith("store") and not self.here.shape.aslr
        options = ["--no-aslr"] if fixed else []
        python = self.python(role)
        if not self.here.local:
            return [python, "-m", _MODULE, *options, "--"]
        options += ["--die-with-parent", str(os.getpid())]
        return [python, "-I", "-S", str(_LAUNCH), *options, "--"]

    def _program(self, role: str) -> list[str]:
        kind = role.partition("-")[0]
        if role == layout.ETCD:
            program = shutil.which("etcd") or "/usr/bin/etcd"
            return layout.etcd_argv(program, self.here, str(self.scratch()))
        if kind == MASTER:
            return layout.master_argv(self.package, self.here, role)
        if kind == "store":
            if self.here.shape.aslr:
                return layout.store_argv(self.package, self.here, role)
            node = [self.python(role), "-m", "chaos.systems.mooncake.node"]
            return [*node, *layout.node_words(self.here, role)]
        return self._probe(role) if role == PROBE else self._engine(role)

    def _probe(self, role: str) -> list[str]:
        here = self.here
        master, spec = here.master_of(role), here.shape.spec
        return command(self.python(role), "mooncake", here.probe(), master, spec)

    def _engine(self, role: str) -> list[str]:
        here = self.here
        settings = dataclasses.replace(
            self.engines.settings,
            name=role,
            host_id=here.host_of(role),
            listen=here.service(role),
            admin_listen=here.door(role),
            storage="mooncake",
            mooncake_master=here.master_of(role),
            mooncake_admin=here.admin_of(role),
            mooncake_metadata=here.metadata,
            mooncake_host=here.own(role),
            mooncake_near=self._near(),
            mooncake_near_host=here.near(role),
        )
        python = self.python(role)
        return [python, "-m", "refimpl", "engine", *flags_of(settings)]
