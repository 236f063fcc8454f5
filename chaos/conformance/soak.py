"""The suite of faults again and again, and what a profile may say afterwards.

`python -m chaos.conformance.soak --runs 20` (also `scripts/soak mooncake`) runs
Mooncake with its default settings, counts how often each property held and failed, and
writes a profile with these counts beside the results. Nobody's expectations are changed
by it: copy what you believe.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import yaml

from chaos.conformance.profile import FAILS_OF, Expect
from chaos.conformance.results import measured_in
from chaos.errors import ChaosError
from chaos.scenario.child import run_child
from chaos.scenario.interrupt import Interrupted, Interrupts

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from chaos.conformance.measured import Measured
    from chaos.conformance.profile import Key

SUITE: Final = "suites/chaos/test_mooncake_faults.py"
_OPTION: Final = "--mooncake-profile"
_RUN_TIMEOUT_S: Final = 4 * 3600.0
_MOST_RUNS: Final = 1000

Row = tuple[str, str, "Key"]


def tally(measured: Iterable[Measured]) -> dict[Row, Counter[str]]:
    """How often each property of each system held, failed, and could not be told."""
    found: dict[Row, Counter[str]] = {}
    for one in measured:
        row = (one.system, one.version, one.key)
        word = {True: "held", False: "failed", None: "untold"}[one.held]
        found.setdefault(row, Counter())[word] += 1
    return found


def expected_after(counts: Counter[str]) -> Expect:
    """What such counts allow to be said: certain words need twenty runs."""
    held, failed = counts["held"], counts["failed"]
    if held and failed:
        return Expect.SOMETIMES
    if failed >= FAILS_OF:
        return Expect.FAILS
    if held >= FAILS_OF:
        return Expect.HOLDS
    return Expect.UNKNOWN


def profiles_after(counts: dict[Row, Counter[str]]) -> list[dict[str, Any]]:
    """Documents of profiles with what was seen, one a system and version."""
    documents: dict[tuple[str, str], dict[str, Any]] = {}
    for (system, version, key), seen in sorted(counts.items()):
        fault, law, arm, settings = key
        document = documents.setdefault(
            (system, version), {"system": system, "version": version, "expected": []}
        )
        document["expected"].append(
            {
                "fault": fault,
                "law": law,
                "arm": arm,
                "settings": settings,
                "expect": expected_after(seen).value,
                "seen": {"held": seen["held"], "failed": seen["failed"]},
                "reference": f"measured {seen.total()} times",
            }
        )
    return list(documents.values())


def lines_of(counts: dict[Row, Counter[str]]) -> list[str]:
    """For people: each property and how often it held."""
    return [
        f"{system} {version} {'/'.join(key)}: held {seen['held']}, failed "
        f"{seen['failed']}, not told {seen['untold']}: {expected_after(seen).value}"
        for (system, version, key), seen in sorted(counts.items())
    ]


def soak(
    runs: int, root: Path, run: Callable[[int, Path], Path | None]
) -> tuple[dict[Row, Counter[str]], int]:
    """Runs the suite; `run` answers where its results are, None when it broke.

    Returns:
        (how often each property held and so on, 0 or the exit code of the signal that
        ended it: what was measured until then counts).
    """
    measured: list[Measured] = []
    try:
        with Interrupts():
            for number in range(runs):
                folder = run(number, root / f"run-{number + 1}")
                if folder is not None:
                    measured += measured_in(folder)
    except Interrupted as interrupted:
        return tally(measured), interrupted.exit_code
    return tally(measured), 0


def run_suite(profile: str, extra: Sequence[str]) -> Callable[[int, Path], Path | None]:
    """One run in a process of its own, at another seed each time.

    A run that wrote nothing, or did not end, is none: what an earlier one left in the
    same place is not counted twice.
    """

    def run(number: int, results: Path) -> Path | None:
        latest = results / "latest"
        before = latest.resolve() if latest.exists() else None
        command = [sys.executable, "-m", "pytest", "-q", SUITE, "--system", "mooncake"]
        command += ["--slow", "--seed", str(number + 1), "--results", str(results)]
        command += [_OPTION, profile]
        try:
            done = run_child(
                [*command, "-p", "no:cacheprovider", *extra], timeout_s=_RUN_TIMEOUT_S
            )
        except subprocess.TimeoutExpired:
            _say(f"run {number + 1}: not done after {_RUN_TIMEOUT_S:g} s")
            return None
        _say(f"run {number + 1}: exit {done.returncode}")
        there = (latest / "history.jsonl").is_file()
        return latest if there and latest.resolve() != before else None

    return run


def _say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def main(argv: Sequence[str] | None = None) -> int:
    """0 when every run could be read, 3 when none measured anything.

    A signal ends it after what was measured so far is told: 128 and its number.
    """
    parser = argparse.ArgumentParser(prog="soak", description=__doc__)
    parser.add_argument("--runs", type=int, default=FAILS_OF)
    parser.add_argument("--profile", default="default", help="default or tuned")
    parser.add_argument("--results", type=Path, default=Path("results/soak/mooncake"))
    args, extra = parser.parse_known_args(argv)
    runs = max(1, min(args.runs, _MOST_RUNS))
    try:
        counts, code = soak(runs, args.results, run_suite(args.profile, extra))
    except ChaosError as error:
        sys.stderr.write(f"soak: {error}\n")
        return error.exit_code
    for line in lines_of(counts):
        sys.stdout.write(f"{line}\n")
    for document in profiles_after(counts):
        path = args.results / f"{document['system']}-{document['version']}.seen.yaml"
        path.write_text(yaml.safe_dump(document, sort_keys=False), encoding="utf-8")
        sys.stdout.write(f"what was seen: {path}\n")
    return code or (0 if counts else 3)


if __name__ == "__main__":
    sys.exit(main())
