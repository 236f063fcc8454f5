"""`/proc/mounts`: what is mounted, oldest first: `DEVICE PLACE TYPE OPTIONS 0 0`.

Spaces and tabs in a name are `\\040` and `\\011`. A device is mounted many times where
containers run: its first mount is the one that somebody wanted. An error of the disk
turns `rw` into `ro` where the file system says `errors=remount-ro`.
"""

from __future__ import annotations

from dataclasses import dataclass

from checks.facts import Facts, derived
from checks.parse.garbled import Garbled

PATH = "/proc/mounts"


@dataclass(frozen=True, slots=True, kw_only=True)
class Mount:
    """One mount of a device."""

    device: str
    place: str
    kind: str
    options: tuple[str, ...]

    @property
    def writable(self) -> bool:
        return "rw" in self.options


def parse_mounts(text: str) -> tuple[Mount, ...]:
    """Every mount, in the order of the kernel."""
    if not text.endswith("\n"):
        raise Garbled(PATH, "its last line is not whole")
    found = []
    for line in text.splitlines():
        fields = line.split(" ")
        if len(fields) < 4:
            raise Garbled(PATH, f"no mount: {line[:60]!r}")
        found.append(
            Mount(
                device=fields[0],
                place=fields[1],
                kind=fields[2],
                options=tuple(fields[3].split(",")),
            )
        )
    return tuple(found)


@derived
def mounts(facts: Facts) -> tuple[Mount, ...]:
    return parse_mounts(facts.text(PATH))
