"""The gate on live arms: equal builds again and again, and every planted defect.

`scripts/soak gate`. An unchanged build must never FAIL, and mostly PASS; a build with a
defect must FAIL, whatever it takes to show it: most are shown by load, some only by an
outage, by wrong bytes from stores, or by a drill.
"""

from __future__ import annotations

import argparse
import json
import math
import shutil
import sys
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

from chaos.canary.live import Asked, run_asked
from chaos.canary.schedule import BASELINE, CANARY
from chaos.canary.sides import Shape, side_of
from chaos.errors import ChaosError
from chaos.report.files import write_json
from chaos.scenario.interrupt import Interrupted

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from chaos.canary.result import GateResult

ROOT = Path(__file__).resolve().parents[2]
SCENARIOS = ROOT / "suites" / "scenarios" / "canary"
OUTAGE, CORRUPT, DRILLS = "outage", "corrupt", "drills"
AA = "unchanged"
RUNS = 20
LEAST_PASSED = 0.75
"""Of the A/A runs, on the paired rules: 15 of 20."""
SLOWER = 3
"""A planted lookup takes that many times as long."""
PER_BLOCK = 15
LEAST_BLOCKS = 12
"""Turns an arm: calls to the master have one sample a turn, and ten are needed."""
_READ_FAILS, _RPC_FAILS = "return(-800)", "return(-900)"


@dataclass(frozen=True, slots=True, kw_only=True)
class Plant:
    """A build that the gate must stop.

    `needs` is the chaos that shows it, beside the load. `both` are settings of both
    arms, without which the planted place is never reached.
    """

    name: str
    defects: tuple[str, ...] = ()
    failpoints: tuple[str, ...] = ()
    settings: tuple[str, ...] = ()
    both: tuple[str, ...] = ()
    needs: tuple[str, ...] = ()
    patch: str = ""


PLANTS: tuple[Plant, ...] = (
    Plant(name="deadline_ignored", defects=("deadline_ignored",), needs=(OUTAGE,)),
    Plant(
        name="breaker_never_opens", defects=("breaker_never_opens",), needs=(OUTAGE,)
    ),
    Plant(
        name="breaker_never_closes", defects=("breaker_never_closes",), needs=(OUTAGE,)
    ),
    Plant(name="placement_random", defects=("placement_random",)),
    Plant(name="lease_not_checked", defects=("lease_not_checked",), needs=(DRILLS,)),
    Plant(
        name="checksum_not_checked", defects=("checksum_not_checked",), needs=(CORRUPT,)
    ),
    Plant(name="stale_end_accepted", defects=("stale_end_accepted",), needs=(DRILLS,)),
    Plant(
        name="page_released_early", defects=("page_released_early",), needs=(DRILLS,)
    ),
    Plant(name="lookup_3x", failpoints=("master:master.lookup=sleep({slow_ms})",)),
    Plant(name="one_more_rpc", patch="one_more_rpc"),
    Plant(
        name="breaker_off",
        patch="breaker_off",
        settings=(
            # Else the quarantine takes the hung master out, and nobody waits for it.
            "engine.quarantine_min_samples=1000000",
            "engine.quarantine_consecutive_faults=1000000",
        ),
        needs=(OUTAGE,),
    ),
    Plant(name="store_read_fails", failpoints=(f"store:store.read={_READ_FAILS}",)),
    Plant(name="store_corrupts", failpoints=("store:store.corrupt=on",)),
    Plant(
        name="master_lookup_fails", failpoints=(f"master:master.lookup={_RPC_FAILS}",)
    ),
    Plant(name="client_raises", failpoints=("engine:client.before_transfer=panic",)),
    Plant(
        name="client_transfer_fails",
        failpoints=(f"engine:client.before_transfer={_READ_FAILS}",),
    ),
    Plant(name="cache_raises", failpoints=("engine:hicache.before_get=panic",)),
    Plant(name="puts_fail", failpoints=("engine:hicache.put_batch=return(-500)",)),
    Plant(name="put_start_fails", failpoints=("master:master.put_start=return(-200)",)),
    Plant(
        name="sidecar_hangs",
        failpoints=("engine:hicache.sidecar=pause",),
        both=("engine.sidecar_bytes=4096",),
    ),
)
IN_CI = ("lookup_3x", "checksum_not_checked", "breaker_never_opens")
"""A sample for every change: one by load, one by wrong bytes, one by an outage."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """One run of the gate and what came of it."""

    name: str
    seed: int
    verdict: str
    took_s: float
    told: tuple[str, ...] = ()
    paired_pass: bool = False
    needs: int | None = None
    early: bool = False
    out: str = ""

    @property
    def planted(self) -> bool:
        return self.name != AA

    @property
    def good(self) -> bool:
        """A planted defect is stopped; an equal build is not, and open is reasoned."""
        allowed = ("FAIL",) if self.planted else ("PASS", "INCONCLUSIVE")
        return self.verdict in allowed

    def line(self) -> str:
        early = ", before the planned end" if self.early else ""
        told = f": {'; '.join(self.told[:2])}" if self.told else ""
        return f"{self.name}: {self.verdict} in {self.took_s:.0f} s{early}{told}"


@dataclass(slots=True, kw_only=True)
class Soak:
    """Runs trials one after the other; seeds are counted up from the first."""

    folder: Path
    seed: int
    requests: int
    say: Callable[[str], object]
    progress: Callable[[str], object] = lambda _line: None
    run: Callable[..., GateResult] = run_asked
    clock: Callable[[], float] = time.monotonic
    trials: list[Trial] = field(default_factory=list)
    lookup_ms: float = math.nan

    def equal(self, number: int, *, needs: Sequence[str] = ()) -> Trial:
        """The same build in both arms."""
        plant = Plant(name=AA, needs=tuple(needs))
        return self._trial(plant, self.seed + number)

    def planted(self, plant: Plant, number: int) -> Trial:
        """A defect in the canary."""
        return self._trial(plant, self.seed + 1000 + number)

    # -- inside ----------------------------------------------------------------------

    def _trial(self, plant: Plant, seed: int) -> Trial:
        out = self.folder / f"{len(self.trials):02d}-{plant.name}"
        begin_s = self.clock()
        try:
            asked = self._asked(plant, seed, out)
            result = self.run(asked, say=self.progress)
        except ChaosError as error:
            told = (str(error),)
            trial = Trial(
                name=plant.name,
                seed=seed,
                verdict=f"{type(error).__name__}",
                took_s=self.clock() - begin_s,
                told=told,
                out=str(out),
            )
        else:
            write_json(out / "verdict.json", result.to_document())
            trial = trial_of(plant.name, seed, result, self.clock() - begin_s, out)
            self._learn(plant, out)
        self.trials.append(trial)
        write_json(self.folder / "summary.json", summary_of(self.trials))
        self.say(f"  {trial.line()}")
        return trial

    def _asked(self, plant: Plant, seed: int, out: Path) -> Asked:
        build = ""
        if plant.patch:
            build = str(patched(out / "checkout", plant.patch))
        failpoints = [text.format(slow_ms=self.slow_ms) for text in plant.failpoints]
        scenarios = tuple(
            SCENARIOS / f"{name}.yaml" for name in plant.needs if name != DRILLS
        )
        return Asked(
            sides=(
                side_of(BASELINE, "refimpl", settings=plant.both),
                side_of(
                    CANARY,
                    "refimpl",
                    settings=(*plant.both, *plant.settings),
                    defects=plant.defects,
                    failpoints=failpoints,
                    build=build,
                ),
            ),
            shape=Shape(seed=seed),
            out=out,
            requests=self.requests,
            per_block=max(1, min(PER_BLOCK, self.requests // LEAST_BLOCKS)),
            scenarios=scenarios,
            drills=DRILLS in plant.needs,
            command=f"scripts/soak gate --only {plant.name} --seed {seed}",
        )

    @property
    def slow_ms(self) -> int:
        """What makes a lookup `SLOWER` times as slow, in whole milliseconds."""
        if math.isnan(self.lookup_ms):
            return 2
        return max(1, round((SLOWER - 1) * self.lookup_ms))

    def _learn(self, plant: Plant, out: Path) -> None:
        """How long a lookup takes here, from the first equal arms."""
        if plant.name == AA and math.isnan(self.lookup_ms):
            self.lookup_ms = lookup_ms_of(out / BASELINE / "requests.jsonl")


def lookup_ms_of(path: Path) -> float:
    """The median lookup of an arm; NaN when none was timed."""
    rows = (json.loads(line) for line in path.read_text("utf-8").splitlines())
    found = [row["lookup_ms"] for row in rows if row.get("lookup_ms") is not None]
    return median(found) if found else math.nan


def trial_of(
    name: str, seed: int, result: GateResult, took_s: float, out: Path
) -> Trial:
    """What a verdict comes to."""
    paired = [each for each in result.judgements if each.design == "paired"]
    open_ones = [each for each in result.worst_first if each.verdict.value != "PASS"]
    return Trial(
        name=name,
        seed=seed,
        verdict=result.verdict.value,
        took_s=took_s,
        told=tuple(f"{each.name}: {each.reason}" for each in open_ones[:4]),
        paired_pass=bool(paired) and all(e.verdict.value == "PASS" for e in paired),
        needs=result.extend_by,
        early=result.aborted_early,
        out=str(out),
    )


def summary_of(trials: Sequence[Trial]) -> dict[str, Any]:
    """The figures that the issue asks for."""
    equal = [trial for trial in trials if not trial.planted]
    planted = [trial for trial in trials if trial.planted]
    open_ones = [trial for trial in equal if trial.verdict == "INCONCLUSIVE"]
    return {
        "aa_runs": len(equal),
        "aa_verdicts": dict(Counter(trial.verdict for trial in equal)),
        "aa_paired_pass": sum(trial.paired_pass for trial in equal),
        "aa_inconclusive_with_needs": sum(t.needs is not None for t in open_ones),
        "planted": {trial.name: trial.verdict for trial in planted},
        "stopped": sum(trial.verdict == "FAIL" for trial in planted),
        "took_s": round(sum(trial.took_s for trial in trials), 1),
        "trials": [
            {
                "name": trial.name,
                "seed": trial.seed,
                "verdict": trial.verdict,
                "early": trial.early,
                "took_s": round(trial.took_s, 1),
                "told": list(trial.told),
                "needs": trial.needs,
                "out": trial.out,
            }
            for trial in trials
        ],
    }


def verdict_of(trials: Sequence[Trial]) -> bool:
    """No equal build stopped, enough passed, and every planted one stopped."""
    equal = [trial for trial in trials if not trial.planted]
    passed = sum(trial.paired_pass for trial in equal)
    enough = passed >= math.floor(LEAST_PASSED * len(equal))
    return bool(trials) and enough and all(trial.good for trial in trials)


def patched(folder: Path, patch: str) -> Path:
    """A checkout of the reference system with a defect that no setting reaches."""
    module, text = _PATCHES[patch]
    shutil.copytree(
        ROOT / "refimpl",
        folder / "refimpl",
        ignore=shutil.ignore_patterns("__pycache__"),
    )
    with (folder / "refimpl" / module).open("a", encoding="utf-8") as out:
        out.write(text)
    return folder


_ONE_MORE = """

_look_up_once = MasterRpc.lookup


def _look_up_twice(self, keys, deadline, **settings):
    _look_up_once(self, keys, deadline, grant_lease=False)
    return _look_up_once(self, keys, deadline, **settings)


MasterRpc.lookup = _look_up_twice
"""
_BREAKER_OFF = """

def _stay_closed(self, now, reason):
    pass


Breaker._open = _stay_closed
"""
_PATCHES = {
    "one_more_rpc": ("client/rpc.py", _ONE_MORE),
    "breaker_off": ("core/breaker.py", _BREAKER_OFF),
}
"""Module and what is added to its end, by the name of the patch."""


def main(argv: Sequence[str] | None = None) -> int:
    """Runs what was asked for; 0 when all of it was good."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=RUNS, help="of equal builds (20)")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--requests", type=int, default=360, help="an arm (360)")
    parser.add_argument("--only", action="append", help="these plants; repeatable")
    parser.add_argument("--plain", action="store_true", help="no chaos in equal runs")
    parser.add_argument("--ci", action="store_true", help="one equal, three plants")
    parser.add_argument(
        "--lookup-ms",
        type=float,
        default=math.nan,
        help="a lookup takes here (measured in the first equal run)",
    )
    parser.add_argument("--quiet", action="store_true", help="no progress of each run")
    parser.add_argument("--results", default="results/soak")
    args = parser.parse_args(argv)
    chosen = plants_of(parser, args.only or (IN_CI if args.ci else None))
    runs = 1 if args.ci else args.runs
    folder = Path(args.results) / f"{time.strftime('%Y%m%dT%H%M%S')}-gate"
    soak = Soak(
        folder=folder,
        seed=args.seed,
        requests=args.requests,
        say=_say,
        progress=(lambda _line: None) if args.quiet else _tell,
        lookup_ms=args.lookup_ms,
    )
    try:
        _run(soak, runs, chosen, plain=args.plain)
    except Interrupted as interrupted:
        return interrupted.exit_code
    return _end(soak, folder)


def plants_of(
    parser: argparse.ArgumentParser, names: Sequence[str] | None
) -> list[Plant]:
    """The plants of these names, all without any; an unknown one is refused."""
    if names is None:
        return list(PLANTS)
    known = {plant.name: plant for plant in PLANTS}
    unknown = [name for name in names if name not in known and name != AA]
    if unknown:
        parser.error(f"no plant {unknown[0]!r}; there are {AA}, {', '.join(known)}")
    return [known[name] for name in names if name != AA]


def _run(soak: Soak, runs: int, chosen: Sequence[Plant], *, plain: bool) -> None:
    """Equal builds first; the first of them under all the chaos that shows plants."""
    for number in range(runs):
        chaos = () if plain or number else (OUTAGE, CORRUPT, DRILLS)
        soak.equal(number, needs=chaos)
    for number, plant in enumerate(chosen):
        soak.planted(plant, number)


def _end(soak: Soak, folder: Path) -> int:
    """The summary, and whether all of it was good."""
    found = summary_of(soak.trials)
    verdicts = ", ".join(f"{n} {word}" for word, n in found["aa_verdicts"].items())
    _say(
        f"{found['aa_runs']} equal builds: {verdicts or 'none'};"
        f" {found['aa_paired_pass']} passed on the paired rules"
    )
    _say(f"{found['stopped']} of {len(found['planted'])} planted builds were stopped")
    for trial in soak.trials:
        if not trial.good:
            _say(f"NOT OK {trial.line()}")
    _say(f"results in {folder}, {found['took_s']:.0f} s")
    return 0 if verdict_of(soak.trials) else 1


def _say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def _tell(line: str) -> None:
    sys.stderr.write(f"    {line}\n")
    sys.stderr.flush()


if __name__ == "__main__":
    sys.exit(main())
