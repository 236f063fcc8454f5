"""Random scenarios in a row on one small cluster: `scripts/soak scenarios`.

Nobody judges timing here: machines that soak are busy ones. What is counted is residue,
errors of the harness, and broken laws that do not depend on speed. Every scenario that
went wrong is kept as a file with its results, to be played again with `chaos run`.
"""

from __future__ import annotations

import argparse
import contextlib
import random
import shutil
import sys
import threading
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from chaos.errors import ChaosError
from chaos.judge.verdict import Verdict
from chaos.safety.halt import Levers, LocalLever
from chaos.scenario.bench import Bench, BenchOptions
from chaos.scenario.generate import LOCAL_KINDS, Space, as_yaml, random_document
from chaos.scenario.interrupt import Interrupted, Interrupts
from chaos.scenario.load import parse_scenario
from chaos.scenario.place import place_of
from chaos.scenario.plan import planned_cluster
from chaos.scenario.residue import open_files, residue
from chaos.scenario.schedule import schedule_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from chaos.scenario.bench import Result
    from chaos.scenario.generate import Document

TIME_SCALE = 0.05
GROWTH = 32
"""Threads and files that a whole soak may add: pools grow to their bounds once."""
_WARM = 5
_EVERY = 10
_RESIDUE, _ERROR = "residue", "harness error"
_THROWN_AWAY = ("PASS", "INCONCLUSIVE")


@dataclass(slots=True)
class Tally:
    """What became of the scenarios so far."""

    counts: Counter[str] = field(default_factory=Counter)
    faults: Counter[str] = field(default_factory=Counter)
    reasons: Counter[str] = field(default_factory=Counter)
    bad: list[str] = field(default_factory=list)
    began_s: float = 0.0
    files: int = 0
    threads: int = 0

    @property
    def done(self) -> int:
        return sum(self.counts.values())

    def told(self, now_s: float) -> str:
        """One line: how many of each, and how long each takes."""
        each_s = (now_s - self.began_s) / max(1, self.done)
        words = [f"{self.counts[word]} {word}" for word in _WORDS]
        return f"{', '.join(words)}; {each_s:.1f} s each"


_WORDS = ("PASS", "INCONCLUSIVE", "FAIL", _RESIDUE, _ERROR)


class Soak:
    """Plays `count` scenarios from one seed; number n is the same in every soak."""

    def __init__(
        self,
        *,
        bench: Bench,
        space: Space,
        seed: int,
        folder: Path,
        say: Callable[[str], object],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.tally = Tally()
        self._bench = bench
        self._space = space
        self._seed = seed
        self._folder = folder
        self._say = say
        self._clock = clock
        self._levers = Levers([LocalLever()])

    def run(self, first: int, count: int) -> Tally:
        """Plays numbers `first` to `first + count - 1`; a pulled lever ends it."""
        tally = self.tally
        tally.began_s = self._clock()
        for number in range(first, first + count):
            self._levers.refuse()
            self._one(number)
            if tally.done == _WARM:
                tally.files, tally.threads = open_files(), threading.active_count()
            if tally.done % _EVERY == 0:
                self._say(f"{tally.done} of {count}: {tally.told(self._clock())}")
        self._grown()
        return tally

    def _one(self, number: int) -> None:
        dice = random.Random(f"soak:{self._seed}:{number}")
        document = random_document(dice, self._space, number)
        result: Result | None = None
        try:
            result = self._play(document, number)
            left = residue(self._bench)
            word = _RESIDUE if left else result.document.verdict.value
            why = "; ".join(left) if left else _worst(result)
        except (ChaosError, ExceptionGroup, OSError, RuntimeError, ValueError) as error:
            word, why = _ERROR, f"{type(error).__name__}: {error}"
        self.tally.counts[word] += 1
        if word == "INCONCLUSIVE":
            self.tally.reasons[why.partition(":")[0]] += 1
        if word in _THROWN_AWAY:
            if result is not None:
                shutil.rmtree(result.path, ignore_errors=True)
            return
        self._keep(number, document, word, why)

    def _play(self, document: Document, number: int) -> Result:
        scenario = parse_scenario(as_yaml(document), f"random-{number}")
        planned = planned_cluster(
            scenario,
            place=self._bench.options.place,
            time_scale=self._bench.options.time_scale,
        )
        schedule = schedule_of(scenario, host_of=planned.host_of)
        self.tally.faults.update(fault.kind for fault in schedule.faults)
        return self._bench.run(scenario, schedule, f"random-{number}")

    def _keep(self, number: int, document: Document, word: str, why: str) -> None:
        """Writes a bad one down, and how to play it again."""
        self._folder.mkdir(parents=True, exist_ok=True)
        path = self._folder / f"random-{self._seed}-{number}.yaml"
        path.write_text(as_yaml(document), encoding="utf-8")
        scale = self._bench.options.time_scale
        again = f"chaos run {path} --time-scale {scale:g}"
        self.tally.bad.append(f"{word}: {why}\n    {again}")
        self._say(f"  scenario {number}: {word}: {why}")

    def _grown(self) -> None:
        """Threads and files of the harness must not grow with the number of plays."""
        tally = self.tally
        if tally.done <= _WARM:
            return
        grown = {
            "files": open_files() - tally.files,
            "threads": threading.active_count() - tally.threads,
        }
        for what, count in grown.items():
            if count > GROWTH:
                tally.counts[_RESIDUE] += 1
                tally.bad.append(
                    f"{_RESIDUE}: {count} {what} more than in the beginning"
                )


def main(argv: list[str] | None = None) -> int:
    """Soaks; ends with 1 when anything was left, broke, or broke a law."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=1000)
    parser.add_argument("--first", type=int, default=0, help="number of the first one")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--target", default="local", choices=["local", "netns"])
    parser.add_argument("--time-scale", type=float, default=TIME_SCALE)
    parser.add_argument("--results", default="results/soak")
    args = parser.parse_args(argv)
    folder = Path(args.results) / f"{time.strftime('%Y%m%dT%H%M%S')}-scenarios"
    options = BenchOptions(
        place=place_of(args.target),
        time_scale=args.time_scale,
        results=str(folder),
        unreported=frozenset(map(Verdict, _THROWN_AWAY)),
    )
    bench = Bench(options, logs=folder / "cluster")
    soak = Soak(
        bench=bench,
        space=Space(kinds=LOCAL_KINDS),
        seed=args.seed,
        folder=folder,
        say=lambda text: print(text, flush=True),  # noqa: T201 - a command's output
    )
    code = 0
    with contextlib.ExitStack() as stack:
        stack.callback(bench.close)
        stack.enter_context(Interrupts())
        try:
            soak.run(args.first, args.count)
        except Interrupted as interrupted:
            code = interrupted.exit_code
    return code or _close(soak.tally, args.count)


def _close(tally: Tally, count: int) -> int:
    """The summary, and whether all of it was good."""
    lines = [f"{tally.done} of {count} random scenarios"]
    lines[0] += f": {tally.told(time.monotonic())}"
    kinds = ", ".join(f"{n} {kind}" for kind, n in tally.faults.most_common())
    lines.append(f"faults: {kinds}")
    why = ", ".join(f"{n} x {reason}" for reason, n in tally.reasons.most_common())
    lines += [f"inconclusive: {why}"] if why else []
    lines += [f"  {bad}" for bad in tally.bad]
    print("\n".join(lines), flush=True)  # noqa: T201 - a command's output
    return 1 if tally.bad or not tally.counts["PASS"] else 0


def _worst(result: Result) -> str:
    """The first judgement that did not pass, in words."""
    for outcome in result.document.outcomes:
        for judgement in outcome.broken:
            reason = judgement.reason or judgement.observed
            return f"{judgement.oracle} {judgement.claim}: {reason}"
    return ""


if __name__ == "__main__":
    sys.exit(main())
