"""The Mooncake wheel as it is installed here: its binaries, its build, or why not.

Nothing is imported from it in this process: its client lives in workers, its master
and its stores are binaries of their own.
"""

from __future__ import annotations

import ctypes
import importlib.metadata
import importlib.util
import shutil
import subprocess
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

WHEELS: Final = (
    "mooncake-transfer-engine-non-cuda",
    "mooncake-transfer-engine",
    "mooncake-transfer-engine-cuda13",
)
"""Every one of them brings the same package; the first is what the extra installs."""
NO_WHEEL: Final = (
    "the Mooncake wheel is not installed: pip install 'moonquake[mooncake]'"
)
NO_VERBS: Final = (
    "libibverbs.so.1 is missing, which Mooncake needs even over TCP:"
    " apt-get install libibverbs1"
)
NO_ETCD: Final = "etcd is missing: apt-get install etcd-server"
_VERSION_TIMEOUT_S: Final = 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Package:
    """An installed wheel: the directory of its package, version and build."""

    directory: Path
    version: str
    build: str

    def elsewhere(self) -> Package:
        """The same on other hosts: names without a place, found by `launch.py`."""
        return replace(self, directory=Path())

    @property
    def master(self) -> str:
        return str(self.directory / "mooncake_master")

    @property
    def client(self) -> str:
        """The stand-alone store node; Mooncake calls every participant a client."""
        return str(self.directory / "mooncake_client")


def why_not() -> str:
    """Why Mooncake cannot run here, with the remedy; "" when it can."""
    if not sys.platform.startswith("linux"):
        return "Mooncake runs on Linux"
    if _directory() is None:
        return NO_WHEEL
    return "" if _loads("libibverbs.so.1") else NO_VERBS


def why_no_etcd() -> str:
    """Why there is no highly available master here; "" when there can be."""
    return "" if shutil.which("etcd") else NO_ETCD


def installed() -> Package:
    """The wheel that is installed.

    Raises:
        FileNotFoundError: There is none; `why_not` has told so.
    """
    directory = _directory()
    if directory is None:
        raise FileNotFoundError(NO_WHEEL)
    return Package(directory=directory, version=version(), build=_build(directory))


def version() -> str:
    """Of the wheel that is installed; "unknown" where there is none."""
    for wheel in WHEELS:
        try:
            return importlib.metadata.version(wheel)
        except importlib.metadata.PackageNotFoundError:
            continue
    return "unknown"


def _directory() -> Path | None:
    found = importlib.util.find_spec("mooncake")
    for place in (found.submodule_search_locations or ()) if found else ():
        if (Path(place) / "mooncake_master").is_file():
            return Path(place)
    return None


def _loads(library: str) -> bool:
    try:
        ctypes.CDLL(library)
    except OSError:
        return False
    return True


def _build(directory: Path) -> str:
    """What the master says of itself: version, git revision, kind of build."""
    done = subprocess.run(
        [str(directory / "mooncake_master"), "--version"],
        capture_output=True,
        timeout=_VERSION_TIMEOUT_S,
        check=False,
        text=True,
    )
    return "; ".join(line.strip() for line in done.stdout.splitlines() if line.strip())
