"""What a scenario may not say although every field is well-formed.

Kinds and their parameters, targets that the cluster does not have, times that cannot
be, an abort that nobody gave a reason to leave out. Blast radius is judged later, on
the schedule: it depends on the draws of the seed.
"""

from __future__ import annotations

import difflib
from typing import TYPE_CHECKING

from chaos.scenario.errors import Location, Problem
from chaos.scenario.kinds import INSTANT, Kind, kinds
from chaos.scenario.schema import Between, OneOf, RoleChoice

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from chaos.scenario.schema import FaultSpec, Scenario, Shape, Step


def problems_of(scenario: Scenario) -> list[Problem]:
    """Everything that cannot be played, whatever the seed."""
    known = kinds()
    found = list(_abort(scenario))
    for number, step in enumerate(scenario.timeline):
        at: Location = ("timeline", number)
        found += _step(step, at)
        for where, fault in _faults(step, at):
            found += _fault(fault, where, known, scenario.cluster)
    return found


def roles_of(shape: Shape, kind: str) -> tuple[str, ...]:
    """The names of all roles of a kind, as every system calls them."""
    if kind == "master":
        return ("master",)
    count = shape.stores if kind == "store" else shape.engines
    return tuple(f"{kind}-{number}" for number in range(count))


def role_names(shape: Shape) -> frozenset[str]:
    return frozenset(
        name for kind in ("master", "store", "engine") for name in roles_of(shape, kind)
    )


def _abort(scenario: Scenario) -> Iterator[Problem]:
    if not scenario.abort and not scenario.abort_reason.strip():
        yield Problem(
            location=("abort",),
            what="none needs a reason",
            fix="say why in abort_reason, or list conditions",
            value="none",
        )
    if scenario.abort and scenario.abort_reason:
        yield Problem(
            location=("abort_reason",),
            what="explains `abort: none`, but there are conditions",
            fix="take it out",
            value=scenario.abort_reason,
        )


def _step(step: Step, at: Location) -> Iterator[Problem]:
    forms = [bool(step.fault), bool(step.together), bool(step.one_of)]
    if sum(forms) != 1:
        fix = "an entry has exactly one of fault, together, one_of"
        yield Problem(location=at, what="does not say what is broken", fix=fix)
        return
    if step.fault and step.target is None:
        fix = "e.g. target: store-1"
        yield Problem(location=at, what="has a fault without a target", fix=fix)
    if not step.fault:
        for name in sorted({*step.parameters, *(["target"] if step.target else [])}):
            fix = "parameters stand beside the fault that they are for"
            yield Problem(location=(*at, name), what="belongs to no fault", fix=fix)
    yield from _times(step, at)
    yield from _delays(step, at)


def _delays(step: Step, at: Location) -> Iterator[Problem]:
    """Of faults that are together: each must begin before all of them end."""
    if not step.together:
        lone = [n for n, fault in enumerate(step.one_of) if fault.delay]
        for number in lone:
            where = (*at, "one_of", number, "delay")
            fix = "it is alone: say it in `at`"
            yield Problem(location=where, what="has no meaning here", fix=fix)
        return
    shortest = _smallest(step.for_)
    for number, fault in enumerate(step.together):
        if step.for_ is not None and fault.delay >= shortest and fault.delay:
            yield Problem(
                location=(*at, "together", number, "delay"),
                what=f"is not shorter than `for` ({shortest:g} s)",
                fix="let it begin while the others last",
                value=fault.delay,
            )


def _times(step: Step, at: Location) -> Iterator[Problem]:
    instant = all(fault.fault in INSTANT for fault in step.faults)
    if step.for_ is None and not instant:
        fix = "say how long it lasts, e.g. for: 20s"
        yield Problem(location=at, what="has no `for`", fix=fix)
    if step.for_ is not None and instant and step.faults:
        fix = "take `for` out, a restart is over when it is done"
        yield Problem(location=(*at, "for"), what="has no meaning here", fix=fix)
    each = any(fault.target.each for fault in step.faults)
    if bool(step.every) != bool(step.times or each):
        fix = "repeat with `every: 30s` and `times: 3`, or every and {each: store}"
        yield Problem(location=at, what="repeats without an end or a beat", fix=fix)
    if step.times and each:
        fix = "{each: ...} takes every role once"
        yield Problem(location=(*at, "times"), what="is too much", fix=fix)
    longest = _largest(step.for_)
    if step.every is not None and longest > step.every:
        yield Problem(
            location=(*at, "every"),
            what=f"is shorter than `for` ({longest:g} s)",
            fix="a repetition must be over before the next one begins",
            value=step.every,
        )
    if step.every is not None and step.every <= 0:
        fix = "a beat is longer than nothing"
        yield Problem(location=(*at, "every"), what="is 0", fix=fix)


def _faults(step: Step, at: Location) -> Iterator[tuple[Location, FaultSpec]]:
    if step.fault:
        for fault in step.faults:
            yield at, fault
        return
    for form in ("together", "one_of"):
        for number, fault in enumerate(getattr(step, form)):
            yield (*at, form, number), fault


def _fault(
    fault: FaultSpec, at: Location, known: Mapping[str, Kind], shape: Shape
) -> Iterator[Problem]:
    kind = known.get(fault.fault)
    if kind is None:
        near = difflib.get_close_matches(fault.fault, known, 1)
        fix = f"did you mean {near[0]}? " if near else ""
        yield Problem(
            location=(*at, "fault"),
            what="is no fault",
            fix=f"{fix}there are {', '.join(known)}",
            value=fault.fault,
        )
        return
    yield from _parameters(fault, at, kind)
    yield from _target(fault.target, (*at, "target"), shape)


def _parameters(fault: FaultSpec, at: Location, kind: Kind) -> Iterator[Problem]:
    for name, value in fault.parameters.items():
        parameter = kind.parameters.get(name)
        if parameter is None:
            yield Problem(
                location=(*at, name),
                what=f"is no parameter of {kind.name}",
                fix=f"it takes {kind.takes}",
                value=_plain(value),
            )
            continue
        wrong = [one for one in _values(value) if not parameter.accepts(one)]
        if wrong:
            yield Problem(
                location=(*at, name),
                what=f"is no {parameter.annotation}",
                fix=f"{kind.name} takes a number here"
                if parameter.annotation != "str"
                else f"{kind.name} takes a word here",
                value=wrong[0],
            )
    for name, parameter in kind.parameters.items():
        if parameter.required and name not in fault.parameters:
            fix = f"{kind.name} takes {kind.takes}"
            yield Problem(location=(*at, name), what="is missing", fix=fix)


def _target(target: RoleChoice, at: Location, shape: Shape) -> Iterator[Problem]:
    """Roles must exist; the names of links are left to the fault, which knows them."""
    roles = role_names(shape)
    if target.kind and not roles_of(shape, target.kind):
        fix = f"give the cluster {target.kind}s"
        yield Problem(location=at, what="there is none", fix=fix, value=str(target))
    for name in target.names:
        if not roles_in(name, roles):
            fix = f"the cluster has {_range(shape)}"
            yield Problem(location=at, what="is not there", fix=fix, value=name)


def roles_in(target: str, roles: frozenset[str]) -> frozenset[str]:
    """The roles that a target is about: itself, or the owner and user of a link.

    `store-1.rail0` is store-1's; `master.rpc@store-2` is between two.
    """
    link, _, user = target.partition("@")
    return frozenset({target, link.partition(".")[0], user} & roles)


def _range(shape: Shape) -> str:
    stores = f"store-0 to store-{shape.stores - 1}"
    return f"master, {stores}, engine-0 to engine-{shape.engines - 1}"


def _smallest(drawn: Between | OneOf | float | None) -> float:
    values = [value for value in _values(drawn) if isinstance(value, int | float)]
    return min(values, default=0.0)


def _largest(drawn: Between | OneOf | float | None) -> float:
    values = [value for value in _values(drawn) if isinstance(value, int | float)]
    return max(values, default=0.0)


def _values(drawn: object) -> tuple[object, ...]:
    """Every value that a draw may give, its ends if there are many."""
    if isinstance(drawn, Between):
        return (drawn.low, drawn.high)
    if isinstance(drawn, OneOf):
        return drawn.values
    return () if drawn is None else (drawn,)


def _plain(value: object) -> object:
    found = _values(value)
    return found[0] if len(found) == 1 else list(found)
