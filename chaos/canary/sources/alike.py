"""Whether two arms are two measurements of the same load.

Request 17 of one arm is compared with request 17 of the other; when they come from two
traces that pairs strangers, and the answer means nothing.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from numpy.typing import NDArray

    from chaos.canary.samples import Samples


def checked(baseline: Samples, canary: Samples) -> tuple[Samples, Samples]:
    """The same arms; what makes them incomparable is a problem of the canary."""
    found = tuple(_problems(baseline, canary))
    return baseline, replace(canary, problems=(*canary.problems, *found))


def _problems(baseline: Samples, canary: Samples) -> Iterator[str]:
    if baseline.request is None or canary.request is None:
        return
    both, left, right = np.intersect1d(
        baseline.request, canary.request, return_indices=True
    )
    for what, one, other in _columns(baseline, canary):
        different = np.flatnonzero(one[left] != other[right])
        if len(different):
            number, at = both[different[0]], different[0]
            told = f"{other[right][at]} and not {one[left][at]}"
            yield (
                f"request {number} has {what} {told} as in the baseline:"
                f" {len(different)} of {len(both)} pairs are of another trace"
            )
            return


def _columns(
    baseline: Samples, canary: Samples
) -> Iterator[tuple[str, NDArray[np.object_], NDArray[np.object_]]]:
    """What belongs to a row of the trace, where both arms know it."""
    arms = (baseline, canary)
    prompts = [arm.prompt_tokens for arm in arms]
    if not any(np.isnan(column).all() for column in prompts):
        whole = [np.nan_to_num(column, nan=-1).astype(np.int64) for column in prompts]
        yield "prompt_tokens", whole[0].astype(object), whole[1].astype(object)
    classes = [_named(arm.klass, arm.class_names) for arm in arms]
    sessions = [_named(arm.session, arm.session_names) for arm in arms]
    yield "class", classes[0], classes[1]
    yield "session", sessions[0], sessions[1]


def _named(codes: NDArray[np.int64], names: Sequence[str]) -> NDArray[np.object_]:
    """Codes as names; those of two arms are not the same codes."""
    table = np.array([*names, ""], dtype=object)
    return np.asarray(table[np.clip(codes, -1, len(names))], dtype=object)
