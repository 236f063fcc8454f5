"""A conformance profile: what one version of a system is expected to do. A YAML file.

    system: mooncake
    version: 0.3.13.post1
    expected:
      - fault: store-paused
        law: stall-bounded
        arm: bare
        settings: default
        expect: fails
        seen: {held: 0, failed: 20}
        reference: where it is written, or why it is so

`fails` is said only of what failed in 20 of 20 runs, and `holds` only of what was seen
to hold and never failed: everything else is `sometimes` (never red) or `unknown`.
"""

from __future__ import annotations

from enum import Enum, unique
from typing import TYPE_CHECKING, Final, Self

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from chaos.conformance.properties import NAMES, Arm, property_of
from chaos.errors import UsageError

if TYPE_CHECKING:
    from pathlib import Path

FAILS_OF: Final = 20
ANY: Final = "*"
_MOST_BYTES: Final = 1 << 20

Key = tuple[str, str, str, str]
"""Fault, property, arm and settings."""


@unique
class Expect(Enum):
    """What is expected of a property."""

    HOLDS = "holds"
    FAILS = "fails"
    SOMETIMES = "sometimes"
    UNKNOWN = "unknown"


class Seen(BaseModel):
    """In how many runs a property held and did not."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    held: int = Field(default=0, ge=0)
    failed: int = Field(default=0, ge=0)


class Expectation(BaseModel):
    """One row. `settings` "*" is for all of them."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    fault: str = Field(min_length=1)
    law: str
    arm: Arm
    settings: str = ANY
    expect: Expect
    seen: Seen = Seen()
    reference: str = ""

    @property
    def key(self) -> Key:
        return (self.fault, self.law, self.arm.value, self.settings)

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if self.law not in NAMES:
            raise ValueError(f"no property {self.law!r}; there are {NAMES}")
        if self.arm not in property_of(self.law).arms:
            raise ValueError(f"{self.law} is not asked of {self.arm.value}")
        if not self.reference and self.expect is not Expect.UNKNOWN:
            raise ValueError("say in `reference` where this expectation comes from")
        self._of_what_was_seen()
        return self

    def _of_what_was_seen(self) -> None:
        seen = self.seen
        if self.expect is Expect.FAILS and (seen.held or seen.failed < FAILS_OF):
            raise ValueError(
                f"`fails` needs {FAILS_OF} of {FAILS_OF} runs in `seen`, not "
                f"{seen.failed} of {seen.failed + seen.held}; say sometimes"
            )
        if self.expect is Expect.HOLDS and seen.failed:
            raise ValueError(f"`holds` was seen to fail {seen.failed} times")
        if self.expect is Expect.HOLDS and not seen.held:
            raise ValueError("`holds` was never seen to hold; say unknown")


class Profile(BaseModel):
    """All that is expected of one version of one system."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    system: str = Field(min_length=1)
    version: str = Field(min_length=1)
    about: str = ""
    expected: tuple[Expectation, ...]

    @model_validator(mode="after")
    def _each_once(self) -> Self:
        keys = [row.key for row in self.expected]
        twice = sorted({"/".join(key) for key in keys if keys.count(key) > 1})
        if twice:
            raise ValueError(f"{twice[0]} is expected twice")
        return self

    def of(self, key: Key) -> Expectation | None:
        """What is expected: of these settings before that of all settings."""
        rows = {row.key: row for row in self.expected}
        return rows.get(key) or rows.get((*key[:3], ANY))

    def fits(self, system: str, version: str) -> bool:
        """Whether it speaks of this system in this version."""
        return self.system == system and self.version in (ANY, version)


def load_profile(path: Path) -> Profile:
    """Reads one file.

    Raises:
        UsageError: It cannot be read, or is no profile: which field, and why.
    """
    try:
        text = path.read_bytes()[: _MOST_BYTES + 1]
        document = yaml.safe_load(text)
    except (OSError, yaml.YAMLError) as error:
        first = str(error).splitlines()[0]
        raise UsageError(f"{path}: {first}", "write a profile in YAML") from error
    if len(text) > _MOST_BYTES:
        raise UsageError(f"{path} is larger than 1 MiB", "it is no profile")
    try:
        return Profile.model_validate(document)
    except ValidationError as error:
        raise UsageError(f"{path}: {_first(error)}", _remedy(error)) from error


def load_profiles(folder: Path) -> list[Profile]:
    """All profiles of a folder, in the order of their names.

    Raises:
        UsageError: One cannot be read, or two speak of the same version.
    """
    found: dict[tuple[str, str], Path] = {}
    profiles = []
    for path in sorted(folder.glob("*.yaml")):
        profile = load_profile(path)
        one = (profile.system, profile.version)
        if one in found:
            problem = f"{path} and {found[one]} both speak of {' '.join(one)}"
            raise UsageError(problem, "keep one")
        found[one] = path
        profiles.append(profile)
    return profiles


def profile_for(profiles: list[Profile], system: str, version: str) -> Profile | None:
    """The profile of this very version, else that of all versions, else none."""
    fitting = [one for one in profiles if one.fits(system, version)]
    return min(fitting, key=lambda one: one.version == ANY, default=None)


def _first(error: ValidationError) -> str:
    problem = error.errors()[0]
    where = ".".join(str(part) for part in problem["loc"]) or "the file"
    text = " ".join(problem["msg"].removeprefix("Value error, ").split())
    value = problem["input"]
    shown = f" (it is {value!r})" if isinstance(value, str | int | float) else ""
    return f"{where}: {text}{shown}"


def _remedy(error: ValidationError) -> str:
    more = error.error_count() - 1
    return f"and {more} more" if more else "see chaos/conformance/profile.py"
