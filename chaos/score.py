"""`chaos score`: the suites against defects of the system; every defect must be caught.

An oracle that cannot fail proves nothing (O12). For each defect the tests registered
for it run with the defect switched on and must FAIL, not be INCONCLUSIVE; the same
tests run clean once and must pass.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from chaos.errors import HarnessError
from chaos.scenario.child import run_child

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    Say = Callable[[str], None]

_RUN_TIMEOUT_S = 600.0
_PASSED, _FAILED = 0, 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """What became of one run of some tests."""

    passed: bool
    failed: tuple[str, ...]
    inconclusive: tuple[str, ...]
    reason: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Score:
    """The outcome of a scoring; good only when all are caught and nothing alarms."""

    caught: tuple[str, ...]
    missed: tuple[str, ...]
    false_alarms: tuple[str, ...]

    @property
    def total(self) -> int:
        return len(self.caught) + len(self.missed)

    @property
    def good(self) -> bool:
        return self.total > 0 and not self.missed and not self.false_alarms

    def to_json(self) -> dict[str, object]:
        return {
            "caught": len(self.caught),
            "total": self.total,
            "missed": list(self.missed),
            "false_alarms": list(self.false_alarms),
        }


def score(
    defects: Mapping[str, Sequence[str]],
    run: Callable[[Sequence[str], str], Result],
    say: Say = lambda _: None,
) -> Score:
    """Runs the tests of every defect with it, and all of them once without any.

    Args:
        defects: Defect -> node ids.
        run: Runs node ids with a defect ("" for none).
        say: Told every result as it comes.
    """
    clean = run(_union(defects.values()), "")
    alarms = [*clean.failed, *clean.inconclusive]
    if not clean.passed and not alarms:
        alarms = [clean.reason or "the clean run did not pass"]
    say(f"clean: {'no alarm' if not alarms else 'ALARM: ' + ', '.join(alarms)}")
    caught: list[str] = []
    missed: list[str] = []
    for defect, nodes in defects.items():
        result = run(nodes, defect)
        hit = bool(result.failed)
        (caught if hit else missed).append(defect)
        say(f"{defect}: {_told(result, hit=hit)}")
    return Score(caught=tuple(caught), missed=tuple(missed), false_alarms=tuple(alarms))


def run_pytest(nodes: Sequence[str], defect: str, *, seed: int, scale: float) -> Result:
    """Runs the suites in a process of their own and reads the verdicts.

    Raises:
        HarnessError: pytest neither passed nor failed: nothing can be said.
    """
    with tempfile.TemporaryDirectory(prefix="moonquake-score-") as folder:
        command = [sys.executable, "-m", "pytest", *nodes, "-q", "--no-header"]
        command += ["--seed", str(seed), "--time-scale", f"{scale:g}"]
        command += ["--results", folder, "-p", "no:cacheprovider"]
        command += ["--defect", defect] if defect else []
        try:
            done = run_child(
                command,
                timeout_s=_RUN_TIMEOUT_S,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
            )
        except subprocess.TimeoutExpired as error:
            message = f"the tests of {defect or 'the clean run'} did not end"
            raise HarnessError(message) from error
        if done.returncode not in (_PASSED, _FAILED):
            tail = " / ".join(done.stdout.strip().splitlines()[-5:])
            message = f"pytest ended with {done.returncode}: {tail}"
            raise HarnessError(message)
        return read_result(Path(folder), passed=done.returncode == _PASSED)


def read_result(results: Path, *, passed: bool) -> Result:
    """The verdicts of the one run under a results directory."""
    found = sorted(results.glob("*/*/verdict.json"))
    tests = [
        test
        for path in found
        if not path.parent.is_symlink()
        for test in json.loads(path.read_text(encoding="utf-8"))["tests"]
    ]
    by_verdict = {
        verdict: tuple(t["nodeid"] for t in tests if t["verdict"] == verdict)
        for verdict in ("FAIL", "INCONCLUSIVE")
    }
    return Result(
        passed=passed,
        failed=by_verdict["FAIL"],
        inconclusive=by_verdict["INCONCLUSIVE"],
        reason="" if passed else "a test ended without a verdict",
    )


def _told(result: Result, *, hit: bool) -> str:
    if hit:
        return f"caught by {', '.join(result.failed)}"
    if result.inconclusive:
        return f"MISSED: inconclusive: {', '.join(result.inconclusive)}"
    return "MISSED: everything passed" if result.passed else f"MISSED: {result.reason}"


def _union(groups: Iterable[Sequence[str]]) -> list[str]:
    return list(dict.fromkeys(node for group in groups for node in group))
