"""`canary judge` behind its options: read two arms, judge, write what was asked for.

The old verdict is taken away before anything is read: a question without an answer must
not leave the one of yesterday. Everything is judged before anything is written, and the
new verdict is written last, so that whoever finds one finds what it rests on.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from chaos.canary.floor import floor_of, read_floor
from chaos.canary.gate import judge
from chaos.canary.instants import instant
from chaos.canary.policy import default_policy, load_policy
from chaos.canary.render import FORMATS
from chaos.canary.sources import read_directory
from chaos.canary.sources.alike import checked
from chaos.canary.sources.bounded import between
from chaos.canary.sources.prometheus import read_prometheus
from chaos.canary.sources.prometheus_api import PrometheusServer
from chaos.canary.sources.queries import queries_of
from chaos.errors import UsageError
from chaos.report.files import write_text

if TYPE_CHECKING:
    from collections.abc import Mapping

    from chaos.canary.floor import NoiseFloor
    from chaos.canary.policy import Policy
    from chaos.canary.result import GateResult
    from chaos.canary.samples import Samples

TOKEN_VARIABLE = "CANARY_PROMETHEUS_TOKEN"  # noqa: S105 - a name, no password
VERDICT = "verdict.json"
FILES: Mapping[str, str] = {
    "junit.xml": "junit",
    "summary.md": "markdown",
    "metrics.prom": "openmetrics",
    "annotations.txt": "github",
    "report.txt": "table",
    VERDICT: "json",
}
"""What `--out` holds, by format; the verdict is written last."""
ON_INCONCLUSIVE = ("block", "warn", "extend")


@dataclass(frozen=True, slots=True, kw_only=True)
class FromPrometheus:
    """A server, two selectors, and the time that both arms were served in."""

    url: str
    baseline: str
    canary: str
    begin: str
    end: str
    queries: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """What is to be judged, by what; directories, or a server in their place."""

    baseline: Path | None
    canary: Path | None
    server: FromPrometheus | None
    policy: Path | None
    noise_floor: Path | None
    on_inconclusive: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """The verdict, and the two arms that a report draws."""

    result: GateResult
    arms: tuple[Samples, Samples]


def answer(question: Question, *, now: float) -> Answer:
    """Reads and judges; writes nothing.

    Raises:
        UsageError: Something cannot be read, or was asked wrongly.
    """
    policy, floor = _policy(question)
    if question.server is None:
        arms = _directories(question)
        result = judge(policy, *arms, floor=floor, seed=_seed(arms))
        return Answer(result=result, arms=arms)
    if question.baseline or question.canary:
        told = "--baseline and --canary are directories, and --prometheus is given too"
        raise UsageError(told, "name one source")
    read = _from_server(question.server, now)
    harsh = judge(policy, *read[0], floor=floor)
    mild = judge(policy, *read[1], floor=floor)
    return Answer(result=between(harsh, mild), arms=read[0])


def forget_answer(folder: Path) -> None:
    """Takes away every shape of an earlier verdict.

    Raises:
        UsageError: It cannot be taken away.
    """
    try:
        for name in (VERDICT, *FILES):
            (folder / name).unlink(missing_ok=True)
    except NotADirectoryError:
        return  # nothing is there; `write_answer` will say that nothing can be
    except OSError as error:
        told = f"{folder}: cannot be written: {name}: {error.strerror}"
        raise UsageError(told, "choose another --out") from None


def write_answer(folder: Path, result: GateResult, *, command: str) -> None:
    """Every shape of the verdict into a folder.

    Raises:
        UsageError: It cannot be written.
    """
    texts = {
        name: FORMATS[form](result, command=command) for name, form in FILES.items()
    }
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name, text in texts.items():
            _write(folder / name, text)
    except OSError as error:
        told = f"{folder}: cannot be written: {error.strerror}"
        raise UsageError(told, "choose another --out") from None


def _write(path: Path, text: str) -> None:
    try:
        write_text(path, text)
    except BaseException:
        path.with_name(f".{path.name}.{os.getpid()}.tmp").unlink(missing_ok=True)
        raise


def _policy(question: Question) -> tuple[Policy, NoiseFloor | None]:
    path = question.policy
    policy = default_policy() if path is None else load_policy(path)
    chosen = question.on_inconclusive
    if chosen and chosen not in ON_INCONCLUSIVE:
        told = f"--on-inconclusive {chosen!r} is none"
        raise UsageError(told, f"there are {', '.join(ON_INCONCLUSIVE)}")
    if chosen:
        policy = policy.model_copy(update={"on_inconclusive": chosen})
    if question.noise_floor is not None:
        return policy, read_floor(question.noise_floor)
    return policy, floor_of(policy, path.parent if path else Path())


def _directories(question: Question) -> tuple[Samples, Samples]:
    named = {"baseline": question.baseline, "canary": question.canary}
    for arm, path in named.items():
        if path is None:
            told = f"--{arm} is missing"
            raise UsageError(told, f"say --{arm} DIR, or --prometheus URL")
    baseline, canary = cast("tuple[Path, Path]", tuple(named.values()))
    if baseline.exists() and canary.exists() and baseline.samefile(canary):
        told = f"--baseline and --canary are both {baseline}"
        raise UsageError(told, "an arm is not judged by itself: name two")
    return checked(
        read_directory(baseline, "baseline"), read_directory(canary, "canary")
    )


def _from_server(
    asked: FromPrometheus, now: float
) -> tuple[tuple[Samples, Samples], tuple[Samples, Samples]]:
    """(worst, best) pairs of arms."""
    for name in ("baseline", "canary"):
        if not getattr(asked, name).strip():
            told = f"--{name}-selector is missing"
            raise UsageError(told, """say e.g. 'job="vllm",track="stable"'""")
    for name, text in (("--from", asked.begin), ("--to", asked.end)):
        if not text:
            raise UsageError(f"{name} is missing", f"say e.g. {name} -30m")
    begin = instant(asked.begin, "--from", now=now)
    end = instant(asked.end, "--to", now=now)
    server = PrometheusServer(asked.url, token=os.environ.get(TOKEN_VARIABLE, ""))
    read = read_prometheus(
        server, asked.baseline, asked.canary, begin, end, queries_of(asked.queries)
    )
    return read.worst, read.best


def _seed(arms: tuple[Samples, Samples]) -> int | None:
    """The seed that both arms were measured with."""
    seeds: list[Any] = [arm.meta.get("seed") for arm in arms]
    same = seeds[0] == seeds[1] and isinstance(seeds[0], int)
    return seeds[0] if same else None
