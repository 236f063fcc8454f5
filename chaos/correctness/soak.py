"""Random schedules until time is up, and the smallest ones that show what was found:
`scripts/soak correctness`.

Every kind of finding is shrunk once a mode and written down as a file that replays;
what is found again is counted. Nobody judges timing here.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import random
import re
import sys
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final

from chaos.correctness.bench import Bench, until
from chaos.correctness.generate import draw
from chaos.correctness.judges import why_untold
from chaos.correctness.schedule import as_yaml
from chaos.correctness.shrink import MAX_TESTS, Budget
from chaos.correctness.spaces import modes_of
from chaos.errors import ChaosError
from chaos.scenario.interrupt import Interrupted, Interrupts

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from chaos.correctness.bench import Outcome
    from chaos.correctness.findings import Finding, Kind
    from chaos.correctness.schedule import Schedule
    from chaos.correctness.shrink import Shrunk, Steps
    from chaos.correctness.spaces import Mode

MINIMAL: Final = Path("suites/scenarios/minimal")
_ERROR, _UNSETTLED, _CLEAN = "harness error", "not settled", "clean"
_NOT_HERE: Final = "not here"
_UNTOLD: Final = "nothing told"
_CONFIRMED: Final = 3
"""A minimal schedule is played so often more, to say how reliably it shows."""
_RUNGS: Final = 5


@dataclass(slots=True)
class Tally:
    """What became of the schedules so far."""

    played: Counter[str] = field(default_factory=Counter)
    findings: Counter[str] = field(default_factory=Counter)
    files: list[str] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)


class Soak:
    """Plays schedule after schedule, modes in turn; number n is the same every time."""

    def __init__(
        self,
        *,
        bench: Bench,
        modes: Sequence[Mode],
        seed: int,
        minimal: Path,
        shrink_s: float,
        say: Callable[[str], object],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.tally = Tally()
        self._bench = bench
        self._modes = modes
        self._seed = seed
        self._minimal = minimal
        self._shrink_s = shrink_s
        self._say = say
        self._clock = clock
        self._known: set[tuple[str, Kind]] = set()

    def run(self, seconds: float, first: int = 0) -> Tally:
        """Plays numbers from `first` on, until so many seconds have gone."""
        end_s = self._clock() + seconds
        number = first
        while self._clock() < end_s:
            self._one(number)
            number += 1
        return self.tally

    def _one(self, number: int) -> None:
        mode = self._modes[number % len(self._modes)]
        schedule = drawn(mode, self._seed, number)
        begin_s = self._clock()
        try:
            outcome = self._bench.play(schedule)
        except (ChaosError, ExceptionGroup) as error:
            self._broke(schedule, error)
            return
        word = self._told(schedule, mode, outcome)
        took_s = self._clock() - begin_s
        self._say(f"{schedule.name} ({mode.name}): {word}, {took_s:.1f} s")
        first = {one.kind: one for one in reversed(outcome.findings)}
        for kind in sorted(first, key=lambda kind: kind.value):
            self._found(schedule, mode, first[kind])

    def _told(self, schedule: Schedule, mode: Mode, outcome: Outcome) -> str:
        """One word or a few, counted."""
        if outcome.findings:
            self.tally.played["found"] += 1
            for finding in outcome.findings:
                self.tally.findings[f"{mode.name}: {finding.kind.value}"] += 1
            return "; ".join(str(finding) for finding in outcome.findings[:2])
        word = _UNTOLD if why_untold(outcome.played) else _CLEAN
        word = word if outcome.played.settled else _UNSETTLED
        word = _NOT_HERE if outcome.played.not_here else word
        self.tally.played[word] += 1
        outcome.history.unlink(missing_ok=True)
        return word

    def _broke(self, schedule: Schedule, error: Exception) -> None:
        words = f"{schedule.name}: {type(error).__name__}: {error}"
        self.tally.played[_ERROR] += 1
        self.tally.errors.append(words[:300])
        self._say(words[:300])
        self._bench.renew()

    def _found(self, schedule: Schedule, mode: Mode, finding: Finding) -> None:
        """Shrinks a kind that is new in this mode, and writes it down."""
        kind = finding.kind
        if (mode.name, kind) in self._known:
            return
        self._known.add((mode.name, kind))
        budget = Budget(tests=MAX_TESTS, ended=until(self._shrink_s))
        shrunk = self._bench.shrink(schedule, finding, budget=budget, say=self._say)
        small = self._replayable(schedule, shrunk, mode, kind)
        path = self._write(small, mode, kind)
        self.tally.files.append(str(path))
        self._say(
            f"  {kind.value}: {len(small.steps)} of {len(schedule.steps)} steps after"
            f" {shrunk.tests} plays\n    chaos correctness replay {path}"
        )

    def _replayable(
        self, schedule: Schedule, shrunk: Shrunk, mode: Mode, kind: Kind
    ) -> Schedule:
        """The smallest part that shows it every time; else what shows it most often."""
        whole = dataclasses.replace(
            schedule,
            name=f"{kind.value} on {schedule.system}, {mode.name}",
            expects=(kind.value,),
        )
        best, most = whole, -1
        ended = until(self._shrink_s)
        for steps in _rungs(shrunk, whole.steps):
            if most >= 0 and ended():
                break
            again, shown = self._confirmed(whole.with_steps(steps), kind)
            self._say(f"  {len(steps)} steps: {again.note}")
            if shown > most:
                best, most = again, shown
            if shown == _CONFIRMED:
                break
        return best

    def _confirmed(self, schedule: Schedule, kind: Kind) -> tuple[Schedule, int]:
        """Played until it misses: with a note how often it showed, and all it shows."""
        shown, plays, kinds = 0, 0, {kind.value}
        while plays < _CONFIRMED and shown == plays:
            plays += 1
            try:
                outcome = self._bench.play(schedule)
            except ChaosError:
                self._bench.renew()
                continue
            outcome.history.unlink(missing_ok=True)
            shown += kind in outcome.kinds
            kinds |= {one.value for one in outcome.kinds}
        note = f"shown by {shown} of {plays} plays; from {schedule.note}"
        told = dataclasses.replace(schedule, note=note, expects=tuple(sorted(kinds)))
        return told, shown

    def _write(self, schedule: Schedule, mode: Mode, kind: Kind) -> Path:
        self._minimal.mkdir(parents=True, exist_ok=True)
        path = self._minimal / f"{schedule.system}-{mode.name}-{kind.value}.yaml"
        path.write_text(as_yaml(schedule), encoding="utf-8")
        return path


def _rungs(shrunk: Shrunk, whole: Steps) -> list[Steps]:
    """From the smallest part up, a few of those that showed it once; then the whole."""
    few = list(shrunk.failed[:: 1 + len(shrunk.failed) // _RUNGS])
    return [*few, whole] if whole not in few else few


def drawn(mode: Mode, seed: int, number: int) -> Schedule:
    """Schedule `number` of a seed, the same every time."""
    dice = random.Random(f"correctness:{mode.space.system}:{mode.name}:{seed}:{number}")
    name = f"random schedule {number}"
    schedule = draw(dice, mode.space, name, seed)
    return dataclasses.replace(schedule, note=f"number {number} of seed {seed}")


def main(argv: list[str] | None = None) -> int:
    """Soaks; ends with 1 when something was found, 4 when only the harness broke."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--system", default="refimpl")
    parser.add_argument("--mode", action="append", default=[], help="all by default")
    parser.add_argument("--target", default="local", choices=["local", "netns"])
    parser.add_argument("--minutes", type=float, default=15.0)
    parser.add_argument("--shrink-minutes", type=float, default=5.0, help="a finding")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--first", type=int, default=0, help="number of the first one")
    parser.add_argument("--defect", action="append", default=[])
    parser.add_argument("--minimal", type=Path, default=MINIMAL)
    parser.add_argument("--results", type=Path, default=Path("results/soak"))
    args = parser.parse_args(argv)
    stamp = re.sub(r"\W", "", time.strftime("%Y%m%dT%H%M%S"))
    try:
        return _soak(args, args.results / f"{stamp}-correctness")
    except ChaosError as error:
        sys.stderr.write(f"scripts/soak: {error}\n")
        return error.exit_code


def _soak(args: argparse.Namespace, folder: Path) -> int:
    modes = modes_of(args.system, args.mode)
    bench = Bench(args.system, folder, target=args.target, defects=tuple(args.defect))
    soak = Soak(
        bench=bench,
        modes=modes,
        seed=args.seed,
        minimal=args.minimal,
        shrink_s=60 * args.shrink_minutes,
        say=_say,
    )
    with contextlib.ExitStack() as stack:
        stack.callback(bench.close)
        stack.enter_context(Interrupts())
        try:
            soak.run(60 * args.minutes, args.first)
        except Interrupted as interrupted:
            _summary(soak.tally)
            return interrupted.exit_code
    return _summary(soak.tally)


def _summary(tally: Tally) -> int:
    played = ", ".join(f"{n} {word}" for word, n in tally.played.most_common())
    _say(f"schedules: {played or 'none'}")
    for what, count in tally.findings.most_common():
        _say(f"  {count} x {what}")
    for path in tally.files:
        _say(f"  chaos correctness replay {path}")
    if tally.findings:
        return 1
    return 0 if tally.played[_CLEAN] and not tally.errors else 4


def _say(text: str) -> None:
    print(text, flush=True)  # noqa: T201 - a command's output


if __name__ == "__main__":
    sys.exit(main())
