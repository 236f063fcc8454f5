"""One side of a comparison: something that serves requests, whatever it is.

The run knows an `Arm` only: members that requests go to, a row for each answer, and a
few questions. What an arm cannot tell it leaves out, and then nothing is claimed of it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Mapping

    from chaos.canary.recorder import Row
    from chaos.canary.schedule import Numbered
    from chaos.load.sample import Sample
    from chaos.systems.base import Answer, Cluster, Request

SENT_LATE_S = 0.25
"""What a wait may take beyond its promise on a machine that is busy; see `is_hang`."""


class Arm(Protocol):
    """A running side. `start` and `close` frame everything else."""

    label: str
    system: str
    build: str
    time_scale: float

    @property
    def members(self) -> tuple[str, ...]:
        """Who serves: engines of a cluster, URLs of a group."""
        ...

    @property
    def cluster(self) -> Cluster | None:
        """The cluster behind it, where chaos can be played; None behind a URL."""
        ...

    def start(self) -> None:
        """Starts or reaches it; cold and healthy.

        Raises:
            ChaosError: It does not come up, or does not answer.
        """
        ...

    def send(self, member: str, request: Request) -> Answer:
        """One request; a failure of the system is an answer with ok=False."""
        ...

    def abort(self, member: str, request_id: str) -> None:
        """We stopped waiting for it."""
        ...

    def row(self, numbered: Numbered, sample: Sample, *, turn: int, at_s: float) -> Row:
        """What was measured of one request; called once for each that was sent.

        `at_s` is when it was to be sent, from the start of the run.
        """
        ...

    def calls(self) -> int | None:
        """Calls to the control plane so far; None where nobody counts them."""
        ...

    def look_up(self, request: Request) -> float | None:
        """Seconds of one lookup of a prompt, by itself; None where there is none."""
        ...

    def settle(self) -> None:
        """Returns when nothing of the last turn is under way any more."""
        ...

    def expect(self, requests: tuple[Request, ...]) -> None:
        """Prepares for these requests before the clock runs (outputs, texts)."""
        ...

    def counters(self) -> Mapping[str, int]:
        """What was counted so far; a name is there only if it was looked at."""
        ...

    def finish(self) -> None:
        """The last look, with nothing under way: laws that must hold in the end."""
        ...

    def facts(self) -> Mapping[str, object]:
        """What the measurement directory says of it beside system and build."""
        ...

    def close(self) -> None:
        """Stops what was started, in any state, twice as well."""
        ...


def is_hang(wait_s: float, promise_s: float, poll_s: float) -> bool:
    """Whether a wait for the cache was no wait any more but a hang.

    The system promises T and one poll. Twice that, and a quarter of a second beside it
    for a busy machine, is no lateness: nobody watched the clock.
    """
    return wait_s > 2 * (promise_s + poll_s) + SENT_LATE_S
