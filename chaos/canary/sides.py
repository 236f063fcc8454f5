"""What an operator may name as baseline and canary, read into arms.

refimpl                       the reference system, with settings, defects, a build
mooncake[:PROFILE]            Mooncake with a profile of settings (default, tuned)
URL[,URL...]                  OpenAI-compatible endpoints; several are a group
group:PATTERN                 hosts of an inventory that run the reference system
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from chaos.canary.build import Build, BuildPlace, Failpoint
from chaos.canary.cluster_arm import ClusterArm
from chaos.canary.drills import DISCARD_S, RELEASE_S
from chaos.canary.endpoint import Endpoint, check_url, model_of
from chaos.canary.url_arm import UrlArm
from chaos.errors import UsageError
from chaos.systems.base import ClusterSpec
from chaos.targets.place import Place

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from chaos.canary.arms import Arm
    from chaos.canary.endpoint import Api
    from chaos.safety.ledger import Ledger
    from chaos.safety.locks import AddressBlock
    from chaos.targets.base import Target

REFIMPL, MOONCAKE, URLS, GROUP = "refimpl", "mooncake", "urls", "group"
_SCHEMES = ("http://", "https://")
_KINDS = f"{REFIMPL}, {MOONCAKE}[:PROFILE], URL[,URL...] or {GROUP}:PATTERN"
# A page of prompts is read from the pool, and what must be computed takes a time that
# the scheduler of a busy machine cannot hide: 10,000 tokens a second at factor 0.1.
ENGINE: Mapping[str, Any] = {
    "prefill_tokens_per_s": 1_000.0,
    "prefill_slots": 8,
    "l1_pages": 32,
    "l2_pages": 256,
}
MASTER: Mapping[str, Any] = {
    "put_start_discard_timeout_s": DISCARD_S,
    "put_start_release_timeout_s": RELEASE_S,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Side:
    """One of the two, as it was asked for; nothing runs yet."""

    label: str
    kind: str
    profile: str = ""
    urls: tuple[str, ...] = ()
    group: str = ""
    settings: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    defects: tuple[str, ...] = ()
    build: Build = field(default_factory=Build)

    @property
    def ours(self) -> bool:
        """Whether we start it, and so may break it."""
        return self.kind != URLS

    def __str__(self) -> str:
        parts = [self.kind]
        if self.kind == MOONCAKE:
            parts = [f"{MOONCAKE}:{self.profile}"]
        elif self.kind == URLS:
            parts = [", ".join(self.urls)]
        elif self.kind == GROUP:
            parts = [f"{GROUP}:{self.group}"]
        for role, values in sorted(self.settings.items()):
            parts += [f"{role}.{name}={value}" for name, value in values.items()]
        parts += [f"defect {name}" for name in self.defects]
        return " ".join([*parts, *([str(self.build)] if _told(self.build) else [])])


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """What both arms have in common."""

    stores: int = 4
    engines: int = 2
    rails: int = 2
    time_scale: float = 0.1
    seed: int = 0
    inventory: str = ""
    model: str = ""
    api: Api = "completions"
    key: str = ""
    max_tokens: int = 16

    def spec(self, side: Side) -> ClusterSpec:
        """The cluster of a side; its own settings win over the common ones."""
        overrides: dict[str, dict[str, Any]] = {"engine": dict(ENGINE)}
        if side.kind == MOONCAKE:
            overrides["mooncake"] = {"profile": side.profile}
        else:
            overrides["master"] = dict(MASTER)
        for role, values in side.settings.items():
            overrides[role] = {**overrides.get(role, {}), **values}
        return ClusterSpec(
            stores=self.stores,
            engines=self.engines,
            rails=self.rails,
            time_scale=self.time_scale,
            seed=self.seed,
            defects=side.defects,
            overrides=overrides,
        )


def side_of(
    label: str,
    text: str,
    *,
    settings: Sequence[str] = (),
    defects: Sequence[str] = (),
    failpoints: Sequence[str] = (),
    build: str = "",
) -> Side:
    """Reads one side.

    Raises:
        UsageError: It names nothing that is known, or asks it for what it cannot do.
    """
    kind, rest = _kind_of(label, text)
    side = Side(
        label=label,
        kind=kind,
        profile=(rest or "default") if kind == MOONCAKE else "",
        group=rest if kind == GROUP else "",
        urls=_urls(label, text) if kind == URLS else (),
        settings=settings_of(label, settings),
        defects=tuple(defects),
        build=Build.at(build, tuple(map(Failpoint.parse, failpoints))),
    )
    _check(side)
    return side


def settings_of(label: str, texts: Sequence[str]) -> dict[str, dict[str, Any]]:
    """`engine.x=value` by role; values as JSON has them, anything else is text.

    Raises:
        UsageError: A text has another form.
    """
    found: dict[str, dict[str, Any]] = {}
    for text in texts:
        place, equals, value = text.partition("=")
        role, dot, name = place.strip().partition(".")
        if not (equals and dot and role and name):
            problem = f"--{label}-set {text!r} is not ROLE.FIELD=VALUE"
            raise UsageError(problem, "for example engine.breaker_min_samples=50")
        found.setdefault(role, {})[name] = _value(value.strip())
    return found


def arm_of(
    side: Side, shape: Shape, *, ledger: Ledger, run_dir: Path, command: str
) -> Arm:
    """The arm of a side; nothing is started."""
    if side.kind == URLS:
        return UrlArm(label=side.label, endpoints=_endpoints(side, shape))
    return ClusterArm(
        label=side.label,
        system=REFIMPL if side.kind == GROUP else side.kind,
        build=str(side),
        spec=shape.spec(side),
        place=_place(side, shape),
        ledger=ledger,
        run_dir=run_dir,
        command=command,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupPlace(Place):
    """Those hosts of an inventory that a pattern chooses."""

    pattern: str = ""

    def target(
        self, *, run_dir: Path, ledger: Ledger, block: AddressBlock | None, command: str
    ) -> Target:
        """A target of these hosts alone.

        Raises:
            UsageError: The inventory has no such group.
        """
        from chaos.targets.ssh import SshTarget
        from inventory import InventoryError, load

        whole = Place(kind="ssh", inventory=self.inventory)
        named = whole.target(
            run_dir=run_dir, ledger=ledger, block=block, command=command
        )
        assert isinstance(named, SshTarget)
        try:
            chosen = load(Path(self.inventory)).limit(self.pattern)
        except InventoryError as error:
            raise UsageError(str(error)) from error
        return SshTarget(
            run_dir=run_dir,
            run=named.run,
            inventory=chosen,
            ttl_s=self.fault_ttl_s,
            controller=named.controller,
        )


def _place(side: Side, shape: Shape) -> Place:
    if side.kind == GROUP:
        if not shape.inventory:
            problem = f"--{side.label} {GROUP}:{side.group} has no inventory"
            raise UsageError(problem, "add --inventory FILE")
        return GroupPlace(kind="ssh", inventory=shape.inventory, pattern=side.group)
    return BuildPlace(build=side.build)


def _kind_of(label: str, text: str) -> tuple[str, str]:
    """The kind of a side, and what stands behind its colon."""
    if text.startswith(_SCHEMES):
        return URLS, ""
    kind, colon, rest = text.partition(":")
    known = {REFIMPL: not colon, MOONCAKE: not colon or bool(rest), GROUP: bool(rest)}
    if not known.get(kind, False):
        raise UsageError(
            f"--{label} {text!r} is nothing that is known", f"use {_KINDS}"
        )
    return kind, rest


def _urls(label: str, text: str) -> tuple[str, ...]:
    urls = tuple(check_url(part.strip()) for part in text.split(",") if part.strip())
    if len(set(urls)) != len(urls):
        raise UsageError(f"--{label} names an endpoint twice", "name each one once")
    return urls


def _check(side: Side) -> None:
    """Refuses what a kind cannot do, so that nothing is silently left out."""
    asked = {
        "set": (bool(side.settings), side.ours),
        "defect": (bool(side.defects), side.kind in (REFIMPL, GROUP)),
        "failpoint": (bool(side.build.failpoints), side.kind == REFIMPL),
        "python": (not side.build.ours, side.kind == REFIMPL),
    }
    for option, (given, possible) in asked.items():
        if given and not possible:
            problem = f"--{side.label}-{option} does not reach {side.kind}"
            raise UsageError(problem, "leave it out")


def _endpoints(side: Side, shape: Shape) -> list[Endpoint]:
    return [
        Endpoint(
            url=url,
            model=shape.model or model_of(url, shape.key),
            api=shape.api,
            key=shape.key,
            max_tokens=shape.max_tokens,
        )
        for url in side.urls
    ]


def _value(text: str) -> Any:
    try:
        value = json.loads(text)
    except ValueError:
        return text
    return tuple(value) if isinstance(value, list) else value


def _told(build: Build) -> bool:
    return not build.ours or bool(build.failpoints)


def same_but_label(one: Side, other: Side) -> bool:
    """Whether two sides ask for the same: an A/A run."""
    return replace(one, label="") == replace(other, label="")
