"""How often the canary gate errs, on simulated streams whose truth is known.

`python -m benchmarks.gate_power [--json] [--quick] [--trials N] [--seed N]` judges
streams (see `gate_streams.py`; modelled) with the default policy, as `canary judge`
would, and with Kayenta's published rule beside it (see `kayenta.py`).

| figure | target |
|---|---|
| A/A judged FAIL, worst design | at most 1 % |
| PASS although harm is there, worst design, each kind of harm | at most 1 % |
| A/A judged PASS, 10,000 unpaired requests an arm | at least 90 % |
| FAIL at a true +30 % p99, 10,000 unpaired requests an arm | at least 95 % |

Every share stands with its Wilson 95 % interval; `shown` says whether the whole
interval is within the target. Exit code: 0 all shares are within their targets, 1 a
whole interval is outside, 3 a share is outside but so few trials do not prove it.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import math
import sys
import time
from collections import Counter
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from benchmarks import kayenta
from benchmarks.gate_streams import Design, Truth, arms
from chaos.canary.gate import abort_early, judge
from chaos.canary.policy import default_policy
from chaos.judge.verdict import Verdict

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from chaos.canary.result import GateResult
    from chaos.canary.samples import Samples

SEED = 20
TRIALS = 800
QUICK_TRIALS = 40
LOOKS = 12
_COLUMNS = (
    *("session", "host", "klass", "start_s", "ok", "lag_s"),
    *("hit_tokens", "prompt_tokens"),
)
# A harm is passed wrongly when every rule of its metric passes, whatever others say.
_METRICS = {
    "p99_20pct": "ttft_s",
    "tail_only": "ttft_s",
    "hit_rate_1pt": "hit_rate",
    "errors": "error_rate",
}

UNPAIRED = Design(name="unpaired", rows=10_000)
PAIRED = Design(name="paired", rows=10_000, paired=True, session_rows=5)
SMALL = Design(name="paired_2k", rows=2_000, paired=True, session_rows=5)
SESSIONS = Design(name="sessions", rows=10_000, session_rows=5)
CLUSTERED = Design(
    name="clustered", rows=10_000, session_rows=50, session_sigma=0.4, prompt_sigma=0.3
)
WIDE_HITS = Design(name="wide_hits", rows=10_000, hit_sd=0.3)
HOSTS = Design(name="own_hosts", rows=10_000, host_sd=0.02)
DESIGNS = (UNPAIRED, PAIRED, SMALL, SESSIONS, CLUSTERED, WIDE_HITS, HOSTS)

SAME = Truth(name="aa")
HARMS = {
    "p99_20pct": (
        Truth(name="all 1.2x", scale=1.2),
        Truth(name="p99 alone 1.2x", tail_p99=1.2),
    ),
    "tail_only": (Truth(name="2 % 5x slower", slow_share=0.02, slow_times=5.0),),
    "hit_rate_1pt": (Truth(name="1 point fewer hits", hit_drop=0.01),),
    "errors": (
        Truth(name="errors 0 to 0.06 %", more_errors=0.0006),
        Truth(name="errors 0.02 to 0.08 %", base_errors=0.0002, more_errors=0.0006),
        Truth(name="errors 0.1 to 0.16 %", base_errors=0.001, more_errors=0.0006),
    ),
}
LARGE = (
    Truth(name="all 1.3x", scale=1.3),
    Truth(name="p99 alone 1.3x", tail_p99=1.3),
)
FURTHER = (
    Truth(name="0.5 % 20x slower", slow_share=0.005, slow_times=20.0),
    Truth(name="aa, 0.1 % errors", base_errors=0.001),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """One design under one truth: how often each judge answered what."""

    design: str
    truth: str
    trials: int
    gate: Counter[str]
    kayenta: Counter[str]
    passed: Counter[str]
    """Metrics all of whose rules passed, in how many trials."""
    open_rules: Counter[str]
    """Which rules were INCONCLUSIVE, in how many trials."""

    def share(self, verdict: str) -> float:
        return self.gate[verdict] / self.trials

    def document(self) -> dict[str, Any]:
        return {
            "design": self.design,
            "truth": self.truth,
            "trials": self.trials,
            "gate": _shares(self.gate, self.trials, Verdict.__members__),
            "kayenta": _shares(self.kayenta, self.trials, ("Pass", "Marginal", "Fail")),
            "passed": {n: self.passed[n] / self.trials for n in set(_METRICS.values())},
            "open_rules": {n: k / self.trials for n, k in self.open_rules.items()},
        }


def main(argv: list[str] | None = None) -> int:
    """Runs everything and prints it."""
    parser = argparse.ArgumentParser(
        description="error rates of the canary gate",
        epilog="exit code: 0 all targets met, 1 one missed, 3 too few trials to tell",
    )
    parser.add_argument("--json", action="store_true", help="one JSON object")
    parser.add_argument("--quick", action="store_true", help="fewer trials")
    parser.add_argument("--trials", type=int, help=f"of each kind ({TRIALS})")
    parser.add_argument("--seed", type=int, default=SEED)
    args = parser.parse_args(argv)
    trials = args.trials or (QUICK_TRIALS if args.quick else TRIALS)
    if trials < 1:
        parser.error(f"--trials {trials}: needs at least 1")
    report = measured(trials, args.seed)
    print(json.dumps(report, indent=2) if args.json else _table(report))
    return exit_code(report["targets"])


def exit_code(targets: list[dict[str, Any]]) -> int:
    """0 all met, 1 one surely missed, 3 one missed by chance perhaps."""
    if any(each["missed"] for each in targets):
        return 1
    return 0 if all(each["met"] for each in targets) else 3


def measured(trials: int, seed: int) -> dict[str, Any]:
    """The report; harms and the headline design get all trials, the rest half."""
    began = time.perf_counter()
    cells = []
    for design in DESIGNS:
        cells += [
            cell(design, truth, _times(design, truth, trials), seed)
            for truth in _truths(design)
        ]
    early = looks(UNPAIRED, max(1, trials // 4), seed)
    return _report(cells, early, trials, seed, time.perf_counter() - began)


def _times(design: Design, truth: Truth, trials: int) -> int:
    harms = [one for group in HARMS.values() for one in group]
    return trials if design is UNPAIRED or truth in harms else max(1, trials // 2)


def cell(design: Design, truth: Truth, trials: int, seed: int) -> Cell:
    """One design under one truth; its random numbers depend on nothing else."""
    policy = default_policy()
    gate: Counter[str] = Counter()
    other: Counter[str] = Counter()
    passed: Counter[str] = Counter()
    undecided: Counter[str] = Counter()
    for rng in _generators(design, truth, trials, seed):
        baseline, canary = arms(design, truth, rng)
        result = judge(policy, baseline, canary)
        gate[result.verdict.value] += 1
        undecided.update(_open(result))
        passed.update(_passed(result))
        other[kayenta.judge(_minutes(baseline, canary))] += 1
    return Cell(
        design=design.name,
        truth=truth.name,
        trials=trials,
        gate=gate,
        kayenta=other,
        passed=passed,
        open_rules=undecided,
    )


def _open(result: GateResult) -> list[str]:
    rows = result.judgements
    return [each.name for each in rows if each.verdict is Verdict.INCONCLUSIVE]


def _passed(result: GateResult) -> list[str]:
    rows = result.of("relative")
    bad = {each.metric for each in rows if each.verdict is not Verdict.PASS}
    return sorted({each.metric for each in rows} - bad)


def looks(design: Design, trials: int, seed: int) -> dict[str, Any]:
    """The early abort looked at 12 times: false alarms, and how soon it stops harm."""
    found = {}
    for truth in (SAME, LARGE[1]):
        stops = [
            _stopped(*arms(design, truth, rng))
            for rng in _generators(design, truth, trials, seed + 1)
        ]
        early = [each for each in stops if each is not None]
        found[truth.name] = _share(len(early), trials) | {
            "median_part_of_the_run": float(np.median(early)) if early else None
        }
    return {"looks": LOOKS, **found}


def _stopped(baseline: Samples, canary: Samples) -> float | None:
    """At which part of the run it was stopped; None: never."""
    policy = default_policy()
    for look in range(1, LOOKS + 1):
        rows = len(baseline) * look // LOOKS
        if abort_early(policy, _first(baseline, rows), _first(canary, rows)):
            return look / LOOKS
    return None


def _first(samples: Samples, rows: int) -> Samples:
    columns = {name: getattr(samples, name)[:rows] for name in _COLUMNS}
    metrics = {name: column[:rows] for name, column in samples.metrics.items()}
    request = None if samples.request is None else samples.request[:rows]
    return replace(samples, metrics=metrics, request=request, **columns)


def _truths(design: Design) -> tuple[Truth, ...]:
    harms = tuple(truth for group in HARMS.values() for truth in group)
    if design is WIDE_HITS:
        return (SAME, *HARMS["hit_rate_1pt"])
    if design in (SESSIONS, CLUSTERED, HOSTS):
        return (SAME, *HARMS["p99_20pct"], *HARMS["tail_only"], *LARGE)
    return (SAME, *harms, *LARGE, *FURTHER)


def _generators(
    design: Design, truth: Truth, trials: int, seed: int
) -> Iterator[np.random.Generator]:
    """One for each trial, by the names of what is simulated."""
    words = f"{design.name}/{truth.name}".encode()
    for trial in range(trials):
        yield np.random.default_rng([seed, trial, *words])


def _minutes(baseline: Samples, canary: Samples) -> list[kayenta.Series]:
    """What a time series database would hold: one value a minute of each metric."""
    left, right = _by_minute(baseline), _by_minute(canary)
    return [
        kayenta.Series(
            name=name,
            baseline=left[name],
            canary=right[name],
            up_is_bad=name != "hit_rate",
        )
        for name in left
    ]


def _by_minute(samples: Samples) -> dict[str, NDArray[np.float64]]:
    minutes = max(1, math.ceil(float(samples.start_s[-1]) / 60))
    rows = len(samples) // minutes * minutes
    ttft = samples.metrics["ttft_s"][:rows].reshape(minutes, -1)
    hit = samples.hit_tokens[:rows].reshape(minutes, -1).sum(axis=1)
    return {
        "ttft_mean": ttft.mean(axis=1),
        "ttft_p99": np.quantile(ttft, 0.99, axis=1),
        "error_rate": (~samples.ok[:rows]).reshape(minutes, -1).mean(axis=1),
        "hit_rate": hit / samples.prompt_tokens[:rows].reshape(minutes, -1).sum(axis=1),
    }


def _report(
    cells: list[Cell], early: dict[str, Any], trials: int, seed: int, took_s: float
) -> dict[str, Any]:
    named = [each for each in cells if each.truth == SAME.name]
    named += [each for each in cells if each.truth == FURTHER[1].name]
    wrong = {name: _worst_pass(cells, name) for name in HARMS}
    false_fail = _worst_fail(named)
    headline = [each for each in cells if each.design == UNPAIRED.name]
    passes = next(each for each in headline if each.truth == SAME.name)
    fails = min(
        (each for each in headline if each.truth in [one.name for one in LARGE]),
        key=lambda each: each.share("FAIL"),
    )
    targets = [
        _target("aa_false_fail", false_fail, 0.01, at_most=True),
        *(_target(f"wrong_pass.{n}", w, 0.01, at_most=True) for n, w in wrong.items()),
        _target("decides.aa_pass", _of(passes, "PASS"), 0.9, at_most=False),
        _target("decides.p99_30pct_fail", _of(fails, "FAIL"), 0.95, at_most=False),
    ]
    return {
        "aa_false_fail": false_fail["share"],
        "wrong_pass": {name: each["share"] for name, each in wrong.items()},
        "decides": {
            "requests_an_arm": UNPAIRED.rows,
            "aa_pass": passes.share("PASS"),
            "p99_30pct_fail": fails.share("FAIL"),
        },
        "kayenta": _kayenta(headline),
        "early_abort": early,
        "targets": targets,
        "cells": [each.document() for each in cells],
        "trials": trials,
        "seed": seed,
        "streams": "modelled",
        "took_s": round(took_s, 1),
    }


def _kayenta(headline: list[Cell]) -> dict[str, Any]:
    """The same figures of Kayenta's rule on the same streams, headline design."""
    cells = {each.truth: each for each in headline}

    def share(truths: tuple[Truth, ...], answer: str) -> float:
        of = [cells[truth.name] for truth in truths]
        return max(each.kayenta[answer] / each.trials for each in of)

    return {
        "aa_false_fail": share((SAME,), "Fail"),
        "aa_pass": share((SAME,), "Pass"),
        "wrong_pass": {name: share(truths, "Pass") for name, truths in HARMS.items()},
        "p99_30pct_fail": min(share((truth,), "Fail") for truth in LARGE),
    }


def _worst_pass(cells: list[Cell], harm: str) -> dict[str, Any]:
    """Where the rules of the harmed metric pass most often: stricter than the gate's
    own PASS, which other open rules may prevent by chance."""
    names = [truth.name for truth in HARMS[harm]]
    rows = [
        _share(each.passed[_METRICS[harm]], each.trials) | _where(each)
        for each in cells
        if each.truth in names
    ]
    return max(rows, key=lambda row: (row["share"], row["high"]))


def _worst_fail(cells: list[Cell]) -> dict[str, Any]:
    rows = [_of(each, "FAIL") for each in cells]
    return max(rows, key=lambda row: (row["share"], row["high"]))


def _of(each: Cell, verdict: str) -> dict[str, Any]:
    return _share(each.gate[verdict], each.trials) | _where(each)


def _where(each: Cell) -> dict[str, str]:
    return {"design": each.design, "truth": each.truth}


def _target(
    name: str, row: dict[str, Any], limit: float, *, at_most: bool
) -> dict[str, Any]:
    share, low, high = row["share"], row["low"], row["high"]
    met = share <= limit if at_most else share >= limit
    shown = high <= limit if at_most else low >= limit
    missed = low > limit if at_most else high < limit
    sign = "<=" if at_most else ">="
    return {"name": name, "target": f"{sign} {limit:g}", **row} | {
        "met": met,
        "shown": shown,
        "missed": missed,
    }


def _share(count: int, trials: int) -> dict[str, Any]:
    """A share with its Wilson 95 % interval."""
    low, high = wilson(count, trials)
    return {"share": count / trials, "low": low, "high": high, "trials": trials}


def wilson(
    count: int, trials: int, z: float = 1.959963984540054
) -> tuple[float, float]:
    """Wilson's interval of a share."""
    share, square = count / trials, z * z / trials
    middle = (share + square / 2) / (1 + square)
    half = (
        z / (1 + square) * math.sqrt(share * (1 - share) / trials + square / trials / 4)
    )
    return max(0.0, middle - half), min(1.0, middle + half)


def _shares(counts: Counter[str], trials: int, names: Any) -> dict[str, float]:
    return {name: counts[name] / trials for name in names}


def _table(report: dict[str, Any]) -> str:
    lines = [
        f"gate power: {report['trials']} trials, seed {report['seed']},"
        f" modelled streams, {report['took_s']} s",
        "",
        f"{'design':<11}{'truth':<23}{'PASS':>7}{'INC':>7}{'FAIL':>7}"
        f"   | kayenta {'Pass':>6}{'Marg.':>7}{'Fail':>6}",
    ]
    for each in report["cells"]:
        gate, other = each["gate"], each["kayenta"]
        lines.append(
            f"{each['design']:<11}{each['truth']:<23}{gate['PASS']:>7.1%}"
            f"{gate['INCONCLUSIVE']:>7.1%}{gate['FAIL']:>7.1%}   |"
            f"{other['Pass']:>15.1%}{other['Marginal']:>7.1%}{other['Fail']:>6.1%}"
        )
    lines.append("")
    for each in report["targets"]:
        state = "met" if each["met"] else "MISSED"
        state += "" if each["shown"] or not each["met"] else " (interval reaches over)"
        lines.append(
            f"{each['name']:<26}{each['share']:>7.2%} [{each['low']:.2%},"
            f" {each['high']:.2%}] target {each['target']:<8} {state}"
            f"  ({each['design']}, {each['truth']})"
        )
    lines.append(f"early abort: {json.dumps(report['early_abort'])}")
    return "\n".join(lines)


if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt):
        sys.exit(main())
