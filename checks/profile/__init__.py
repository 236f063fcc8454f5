"""The profile: an operator's golden values, checked when it is loaded.

A profile wins over the peers and over built-in rules. `expect` holds, for any compared
check, the values that are allowed: text, `/regular expression/`, `>=400`, `<=4200`; for
all subjects together (a list) or by compare key (a mapping). `preflight learn` writes
it.
"""

from __future__ import annotations

import datetime as dt  # noqa: TC003 - pydantic reads it at run time
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path  # noqa: TC003 - part of the public signature
from typing import Annotated, Any, get_args

import yaml
from pydantic import (
    AfterValidator,
    BeforeValidator,
    Field,
    ValidationError,
    field_validator,
)

from checks.errors import UsageError
from checks.profile.iommu import Iommu
from checks.profile.kubernetes import Kubernetes
from checks.profile.memory import Memory
from checks.profile.mooncake import Mooncake
from checks.profile.nic import Nic
from checks.profile.ovs import Ovs
from checks.profile.roce import Roce
from checks.profile.routes import Routes
from checks.profile.section import Section

SCHEMA = "preflight.profile/1"


def _texts(value: Any) -> Any:
    """One value or a list of values, as texts; booleans as JSON writes them."""
    if isinstance(value, Mapping):
        raise ValueError("must be a value or a list of values")
    every = value if isinstance(value, list | tuple) else [value]
    return tuple(
        str(each).lower() if isinstance(each, bool) else str(each) for each in every
    )


def _patterns_compile(value: tuple[str, ...]) -> tuple[str, ...]:
    for each in value:
        if _is_pattern(each):
            try:
                re.compile(each[1:-1])
            except re.error as error:
                raise ValueError(f"{each} is no regular expression: {error}") from None
    return value


def _is_pattern(allowed: str) -> bool:
    return len(allowed) > 1 and allowed.startswith("/") and allowed.endswith("/")


Allowed = Annotated[
    tuple[str, ...], BeforeValidator(_texts), AfterValidator(_patterns_compile)
]


Expect = Mapping[str, Allowed | dict[str, Allowed]]
"""Allowed values by check, for all subjects or by compare key."""


class ProfileRail(Section):
    """The name of a rail and anything that identifies it on a node."""

    name: str
    device: str = ""
    netdev: str = ""
    bdf: str = ""
    mac: str = ""
    address: str = ""


class Waiver(Section):
    """A bad finding that is accepted until a date; empty fields match everything."""

    id: str
    node: str = ""
    subject: str = ""
    until: dt.date
    reason: str = Field(min_length=1)


class Profile(Section):
    """All that an operator may prescribe; every field may be missing."""

    schema_: str = Field(default=SCHEMA, alias="schema")
    name: str = ""
    nics: tuple[str, ...] = ()
    rails: tuple[ProfileRail, ...] = ()
    ovs: Ovs = Ovs()
    routes: Routes = Routes()
    iommu: Iommu = Iommu()
    nic: Nic = Nic()
    roce: Roce = Roce()
    memory: Memory = Memory()
    kubernetes: Kubernetes = Kubernetes()
    mooncake: Mooncake = Mooncake()
    expect: dict[str, Allowed | dict[str, Allowed]] = Field(default_factory=dict)
    severity: dict[str, str] = Field(default_factory=dict)
    disable: tuple[str, ...] = ()
    optional: tuple[str, ...] = ()
    """Checks that may stay UNKNOWN without making the node undetermined."""
    waivers: tuple[Waiver, ...] = ()

    @field_validator("schema_")
    @classmethod
    def _is_ours(cls, value: str) -> str:
        if value != SCHEMA:
            raise ValueError(f"must be {SCHEMA}")
        return value

    @field_validator("severity")
    @classmethod
    def _are_letters(cls, value: dict[str, str]) -> dict[str, str]:
        for name, letter in value.items():
            if letter not in {"C", "E", "W", "I"}:
                raise ValueError(f"{name}: must be C, E, W or I, not {letter!r}")
        return value

    def expecting(self, more: Expect) -> Profile:
        """The same profile with more values in `expect`, which win."""
        if not more:
            return self
        return self.model_copy(update={"expect": {**self.expect, **more}})

    def allowed(self, check: str, key: str) -> tuple[str, ...] | None:
        """What `expect` allows for one subject of a compared check; None if silent."""
        found = self.expect.get(check)
        return found.get(key) if isinstance(found, Mapping) else found


def matches(value: str, allowed: Sequence[str]) -> bool:
    """Whether a value is one of those allowed."""
    return any(_matches(value, each) for each in allowed)


def checked_expect(loaded: Mapping[str, Any], origin: str) -> Expect:
    """An `expect` from elsewhere (the inventory), checked like that of a profile."""
    return _validated({"expect": loaded}, origin).expect


def load_profile(path: Path, known: Sequence[str] = ()) -> Profile:
    """Reads a profile; errors name the file and the field.

    Args:
        path: a YAML file.
        known: ids of all checks; others are refused where a check is named.
    """
    loaded = _yaml(path)
    profile = _validated(loaded or {}, str(path))
    if known:
        _refuse_unknown_checks(profile, path, frozenset(known))
    return profile


def load_waivers(path: Path, known: Sequence[str] = ()) -> tuple[Waiver, ...]:
    """Reads a YAML list of waivers; errors name the file and the field."""
    loaded = _yaml(path)
    wrapped = loaded if isinstance(loaded, Mapping) else {"waivers": loaded or []}
    profile = _validated(wrapped, str(path))
    if known:
        _refuse_unknown_checks(profile, path, frozenset(known))
    return profile.waivers


def _yaml(path: Path) -> Any:
    try:
        return yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"{path} cannot be read: {error}") from None
    except yaml.YAMLError as error:
        raise UsageError(f"{path} is no YAML: {' '.join(str(error).split())}") from None


def _validated(loaded: Any, origin: str) -> Profile:
    if not isinstance(loaded, Mapping):
        raise UsageError(f"{origin}: a profile is a mapping of fields")
    try:
        return Profile.model_validate(loaded)
    except ValidationError as error:
        one = _most_telling(error.errors())
        field = ".".join(str(part) for part in one["loc"]) or "profile"
        value = one.get("input")
        shown = f" (got {value!r})" if not isinstance(value, Mapping) else ""
        told = f"{origin}: {field}: {one['msg']}{shown}"
        raise UsageError(told, _known_fields(one["type"], one["loc"])) from None


def _most_telling(errors: Sequence[Any]) -> Any:
    """A field that is not known first: one that is missing may be it, misspelt."""
    return next((e for e in errors if e["type"] == "extra_forbidden"), errors[0])


def _known_fields(error: str, at: Sequence[int | str]) -> str:
    """The fields of a section that got one it does not have, or lacks one."""
    if error in {"extra_forbidden", "missing"}:
        at = at[:-1]
    elif error != "model_type":
        return ""
    section = _section_at(at)
    if section is None:
        return ""
    names = sorted(f.alias or name for name, f in section.model_fields.items())
    words = [str(part) for part in at if not isinstance(part, int)]
    return f"fields of {'.'.join(words) or 'a profile'}: {', '.join(names)}"


def _section_at(at: Sequence[int | str]) -> type[Section] | None:
    """The section at a place of a profile; places within a list are all alike."""
    here: type[Section] | None = Profile
    for part in at:
        if here is None or isinstance(part, int):
            continue
        field = here.model_fields.get(part)
        here = _section_in(field.annotation) if field is not None else None
    return here


def _section_in(annotation: Any) -> type[Section] | None:
    """The section itself, or that of which a list is made."""
    if isinstance(annotation, type) and issubclass(annotation, Section):
        return annotation
    found = (_section_in(inner) for inner in get_args(annotation))
    return next((each for each in found if each is not None), None)


def _refuse_unknown_checks(profile: Profile, path: Path, known: frozenset[str]) -> None:
    named: dict[str, Iterable[str]] = {
        "expect": profile.expect,
        "severity": profile.severity,
        "disable": profile.disable,
        "optional": profile.optional,
        "waivers": [waiver.id for waiver in profile.waivers],
    }
    for field, names in named.items():
        for name in names:
            if name not in known and not (field == "waivers" and name == "*"):
                raise UsageError(
                    f"{path}: {field}: no check is called {name!r}",
                    "`preflight list-checks` shows all",
                )


def _matches(value: str, allowed: str) -> bool:
    if _is_pattern(allowed):
        return re.fullmatch(allowed[1:-1], value) is not None
    if allowed.startswith((">=", "<=")):
        try:
            number, bound = float(value), float(allowed[2:])
        except ValueError:
            return False
        return number >= bound if allowed.startswith(">=") else number <= bound
    return value == allowed
