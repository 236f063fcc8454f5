"""First cuts of a schedule that showed something, by what the finding says. Pure.

A finding names its key and the steps that show it. Most of a random schedule is about
other keys, before the value was written or after it was missed; a play of a schedule
with elections costs a minute or two, so a cut that leaves a third is worth a guess.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from chaos.correctness.schedule import CLIENT_STEPS, Do

if TYPE_CHECKING:
    from chaos.correctness.findings import Finding
    from chaos.correctness.schedule import Step

    Steps = tuple[Step, ...]


def slices(steps: Steps, finding: Finding) -> list[Steps]:
    """Smaller parts that may show it as well, the smallest first; none is the whole.

    From the write of the key to the last step that shows it, of this key only; the same
    from the beginning; the same of all keys; everything until then. Alone, a key may be
    placed elsewhere than beside others: so first with faults that hit the store it has.
    The last fault alone is often all that it takes: so first with that and the key,
    then with that and all keys, as a race shows with any of them.
    """
    last = max(finding.steps, default=len(steps))
    until = steps[: last + 1]
    since = _written_at(until, finding)
    alone = [_of_key(until[since:], finding.key), _of_key(until, finding.key)]
    aimed = [_aimed(cut, finding.key) for cut in alone]
    lone = [_last_fault(aimed[0]), _last_fault(until)]
    cuts = [*lone, *aimed, *alone, until[since:], until]
    unique = {repr(cut): cut for cut in cuts if 0 < len(cut) < len(steps)}
    return sorted(unique.values(), key=len)


def _written_at(steps: Steps, finding: Finding) -> int:
    """The step of the last write of the key before it is looked at; 0 for unknown."""
    first = min(finding.steps, default=0)
    writes = [
        at
        for at, step in enumerate(steps[: first + 1])
        if step.do in (Do.PUT, Do.ANNOUNCE) and finding.key in step.keys
    ]
    return writes[-1] if writes else 0


def _of_key(steps: Steps, key: str) -> Steps:
    """Faults and waits, and of the steps of clients those of one key."""
    kept: list[Step] = []
    for step in steps:
        if step.do not in CLIENT_STEPS or step.do is Do.FRESH:
            kept.append(step)
        elif key in step.keys:
            kept.append(dataclasses.replace(step, keys=(key,)))
        elif step.do in (Do.FILL, Do.END):
            kept.append(step)
    return tuple(kept)


def _aimed(steps: Steps, key: str) -> Steps:
    """Faults of stores hit whichever has the key."""
    return tuple(
        dataclasses.replace(step, target=f"holder {key}")
        if step.do is Do.BREAK and step.target.startswith("store")
        else step
        for step in steps
    )


def _last_fault(steps: Steps) -> Steps:
    """Without the faults before the last one, what heals them, and the waits there."""
    faults = [at for at, step in enumerate(steps) if step.do is Do.BREAK]
    if not faults:
        return steps
    last = faults[-1]
    return tuple(
        step
        for at, step in enumerate(steps)
        if at >= last or step.do not in (Do.BREAK, Do.HEAL, Do.WAIT)
    )
