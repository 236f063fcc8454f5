"""Roles of another build: the same harness, another interpreter or another checkout.

A canary of the reference system is mostly a branch. Its roles are started with its own
interpreter and its own sources; ports, faults and ends stay those of the local target.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from chaos.errors import UsageError
from chaos.targets.local import LocalTarget
from chaos.targets.place import Place

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from chaos.safety.ledger import Ledger
    from chaos.safety.locks import AddressBlock
    from chaos.systems.base import Process
    from chaos.targets.base import Target

_FAILPOINTS = "REFIMPL_FAILPOINTS"
_ASK_S = 30.0
_WHERE = (
    "from importlib.util import find_spec as f;"
    "print(f('refimpl').submodule_search_locations[0])"
)
_OURS = Path(__file__).resolve().parents[2] / "refimpl"
KINDS = ("master", "store", "engine")


@dataclass(frozen=True, slots=True, kw_only=True)
class Failpoint:
    """A failpoint that roles start with: `master:master.lookup=sleep(2)`.

    `role` is a name (`store-1`) or a kind (`store`: all of them).
    """

    role: str
    name: str
    spec: str

    @classmethod
    def parse(cls, text: str) -> Failpoint:
        """Reads `ROLE:NAME=SPEC`.

        Raises:
            UsageError: It has another form.
        """
        role, colon, rest = text.partition(":")
        name, equals, spec = rest.partition("=")
        words = [role.strip(), name.strip(), spec.strip()]
        if not (colon and equals and all(words)) or ";" in text:
            problem = f"--canary-failpoint {text!r} is not ROLE:NAME=SPEC"
            raise UsageError(problem, "for example master:master.lookup=sleep(2)")
        if words[0].partition("-")[0] not in KINDS:
            problem = f"--canary-failpoint {text!r}: no role is called {words[0]!r}"
            raise UsageError(problem, f"use {', '.join(KINDS)}, or one such as store-1")
        return cls(role=words[0], name=words[1], spec=words[2])

    def on(self, role: str) -> bool:
        return self.role in (role, role.partition("-")[0])

    def __str__(self) -> str:
        return f"{self.role}:{self.name}={self.spec}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Build:
    """Where the roles of an arm come from; nothing said: from here.

    `python` is an interpreter that has the build installed, `sources` a directory that
    holds its packages.
    """

    python: str = ""
    sources: str = ""
    failpoints: tuple[Failpoint, ...] = ()

    @classmethod
    def at(cls, path: str, failpoints: tuple[Failpoint, ...] = ()) -> Build:
        """The build at a path: a checkout, or an interpreter (of a virtualenv).

        Raises:
            UsageError: There is neither.
        """
        if not path:
            return cls(failpoints=failpoints)
        place = Path(path)
        if place.is_dir():
            if not (place / "refimpl" / "__main__.py").is_file():
                problem = f"{path} holds no package refimpl"
                raise UsageError(problem, "name a checkout, or an interpreter")
            return cls(sources=str(place.resolve()), failpoints=failpoints)
        found = shutil.which(path)
        if found is None:
            problem = f"{path} is neither a checkout nor an interpreter"
            raise UsageError(problem, "name a checkout, or an interpreter")
        sources = _checkout_of(found)
        return cls(python=found, sources=sources, failpoints=failpoints)

    @property
    def ours(self) -> bool:
        return not (self.python or self.sources)

    @property
    def environment(self) -> dict[str, str]:
        """What makes an interpreter take this build and nothing that lies around.

        `python -m` looks into the working directory first: started from a checkout it
        would run that one, whatever was asked for.
        """
        if self.ours:
            return {}
        return {"PYTHONPATH": self.sources, "PYTHONSAFEPATH": "1"}

    def origin(self) -> str:
        """Where the roles of this build really come from: asked, not assumed.

        Raises:
            UsageError: From somewhere else than was asked for, or from nowhere.
        """
        command = [self.python or sys.executable, "-c", _WHERE]
        env = {**os.environ, **self.environment}
        try:
            done = subprocess.run(
                command, env=env, capture_output=True, text=True, timeout=_ASK_S
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            raise UsageError(f"{command[0]} does not run: {error}") from error
        found = done.stdout.strip()
        if done.returncode or not found:
            told = (done.stderr.strip().splitlines() or ["no word"])[-1]
            problem = f"{self} has no refimpl: {told}"
            raise UsageError(problem, "install it there, or name a checkout")
        wanted = Path(self.sources or found)
        ours = bool(self.python) and not self.sources and Path(found) == _OURS
        if ours or not Path(found).is_relative_to(wanted):
            problem = f"{self} would run {found}, which is another build"
            raise UsageError(problem, "Python 3.11 or newer keeps builds apart")
        return found

    def __str__(self) -> str:
        parts = [self.sources or self.python or "here"]
        return " ".join([*parts, *map(str, self.failpoints)])


def _checkout_of(python: str) -> str:
    """The checkout that an interpreter's virtualenv lies in; "" for installed ones."""
    for folder in Path(python).absolute().parents[1:4]:
        if (folder / "refimpl" / "__main__.py").is_file():
            return str(folder)
    return ""


@dataclass(frozen=True, slots=True, kw_only=True)
class BuildPlace(Place):
    """The local place, with roles of one build."""

    build: Build = field(default_factory=Build)

    def target(
        self, *, run_dir: Path, ledger: Ledger, block: AddressBlock | None, command: str
    ) -> Target:
        """A local target whose roles are of the build.

        Raises:
            UsageError: Another kind of place: builds of hosts are their inventory's.
        """
        if self.kind == "local" and block is not None:
            return BuildTarget(
                run_dir=run_dir, ledger=ledger, block=block, build=self.build
            )
        if not self.build.ours or self.build.failpoints:
            problem = f"a build or failpoint of one arm does not reach {self.kind}"
            raise UsageError(problem, "use the local target, or the hosts' inventory")
        return Place(
            kind=self.kind,
            inventory=self.inventory,
            fault_ttl_s=self.fault_ttl_s,
            block=self.block,
        ).target(run_dir=run_dir, ledger=ledger, block=block, command=command)


class BuildTarget(LocalTarget):
    """Starts roles with the build's interpreter, sources and failpoints."""

    def __init__(
        self, *, run_dir: Path, ledger: Ledger, block: AddressBlock, build: Build
    ) -> None:
        super().__init__(run_dir=run_dir, ledger=ledger, block=block)
        self._build = build
        if not build.ours:
            build.origin()

    def python(self, role: str) -> str:
        return self._build.python or sys.executable

    def spawn(
        self, role: str, argv: Sequence[str], env: Mapping[str, str] | None = None
    ) -> Process:
        """As everywhere, with what is the build's own in the environment."""
        merged = dict(env or {})
        if not self._build.ours:
            # An installed build brings its sources itself: ours must not shadow them.
            merged |= self._build.environment
        own = [f"{f.name}={f.spec}" for f in self._build.failpoints if f.on(role)]
        if own:
            merged[_FAILPOINTS] = ";".join(
                filter(None, [merged.get(_FAILPOINTS), *own])
            )
        return super().spawn(role, argv, merged)
