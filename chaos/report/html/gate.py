"""From a gate's document and the two measurement directories to a page."""

from __future__ import annotations

import math
import os
import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from chaos.canary.result import GateResult
from chaos.errors import ChaosError
from chaos.report.files import write_bytes
from chaos.report.html.forest import draw_forest
from chaos.report.html.gate_page import GateFacts, branches, gate_page, is_modelled
from chaos.report.html.plots import CACHE_WAIT, TTFT_MODELLED, told_arms
from chaos.report.html.quantiles import quantile_plot
from chaos.report.html.timeline import draw_time_line
from chaos.report.html.write_plots import write_plots
from chaos.report.moments import lasted
from chaos.report.traces import Arm, Trace

if TYPE_CHECKING:
    from collections.abc import Mapping

    from chaos.canary.samples import Samples
    from chaos.report.html.drawing import Plot

    Source = Samples | str | os.PathLike[str] | None

_METRICS: Final = {
    "ttft_s": "TTFT (s)",
    "tpot_s": "TPOT (s)",
    "e2e_s": "end to end (s)",
    "cache_wait_s": CACHE_WAIT,
}
POLICY: Final = "policy.yaml"
"""What a live run was judged by, beside its two measurements."""
MOST_ROWS: Final = 200_000
"""Requests of an arm that are drawn; of more, evenly chosen ones are."""


def write_gate_report(
    document: Mapping[str, Any],
    baseline: Source,
    canary: Source,
    out: str | os.PathLike[str],
    *,
    command: str = "",
) -> Path:
    """Writes the page of a gate to `out` and its plots to `plots/` beside it.

    Args:
        document: `GateResult.to_document()`, schema `canary.verdict/1`.
        baseline: a measurement directory, samples already read, or None. What cannot be
            read is named on the page, and the page is written without it.
        canary: the same of the canary.
        out: the file to write, mostly `report.html`.
        command: what judges it again, where the sources do not say.

    Raises:
        ValueError: The document is none of a gate.
    """
    result = GateResult.from_document(document)
    missing: list[str] = []
    samples = {
        name: found
        for name, source in (("baseline", baseline), ("canary", canary))
        if (found := _samples(name, source, missing)) is not None
    }
    path = Path(out)
    path.parent.mkdir(parents=True, exist_ok=True)
    plots = _plots(result, samples)
    write_plots(path.parent, plots)
    facts = GateFacts(
        result=result,
        plots=plots,
        arms={name: _figures(found) for name, found in samples.items()},
        repeat=command or _repeat(result, baseline, canary),
        missing=missing,
    )
    write_bytes(
        path, gate_page(facts).encode("utf-8", "replace")
    )  # cleaned by its values
    return path


def _samples(name: str, source: Source, missing: list[str]) -> Samples | None:
    from chaos.canary.samples import Samples

    if source is None or isinstance(source, Samples):
        return source
    from chaos.canary.sources import read_directory

    try:
        found = read_directory(Path(source), name)
    except (ChaosError, OSError, ValueError, KeyError) as error:
        missing.append(f"no plots of {name}: {error}")
        return None
    missing += [f"{name}: {problem}" for problem in found.problems]
    return found


def _plots(result: GateResult, samples: Mapping[str, Samples]) -> list[Plot]:
    modelled = any(is_modelled(meta) for meta in result.arms.values())
    ttft = TTFT_MODELLED if modelled else "TTFT (s)"
    trace = Trace(test="gate", arms={k: _arm(k, v) for k, v in samples.items()})
    words = told_arms(trace.shown, ttft.removesuffix(" (s)"))
    curves = {
        told: [(k, v.metric(name)) for k, v in samples.items()]
        for name, told in {**_METRICS, "ttft_s": ttft}.items()
        if any(found.measured(name) for found in samples.values())
    }
    forest = draw_forest("gate", *branches(result))
    plots = [forest] if forest is not None else []
    if trace.shown:
        plots.append(draw_time_line("gate", trace, [], words=words, ttft=ttft))
    if curves:
        plots.append(quantile_plot("gate", curves, words))
    return plots


def _arm(name: str, samples: Samples) -> Arm:
    """The rows of an arm that have an instant; evenly chosen ones of very many."""
    rows = np.flatnonzero(np.isfinite(samples.start_s))
    if rows.size > MOST_ROWS:
        rows = rows[np.linspace(0, rows.size - 1, MOST_ROWS).astype(np.int64)]
    hits, asked = samples.hit_tokens[rows], samples.prompt_tokens[rows]
    return Arm(
        name=name,
        requests=[""] * rows.size,
        at_s=samples.start_s[rows].tolist(),
        ttft_s=samples.metric("ttft_s")[rows].tolist(),
        wait_s=samples.metric("cache_wait_s")[rows].tolist(),
        allowed_s=[math.nan] * rows.size,
        reused=hits.tolist(),
        asked=np.where(np.isfinite(hits), asked, np.nan).tolist(),
        ok=samples.ok[rows].tolist(),
        wrong=[False] * rows.size,
    )


def _figures(samples: Samples) -> list[tuple[str, str]]:
    known = np.isfinite(samples.hit_tokens) & np.isfinite(samples.prompt_tokens)
    asked = float(samples.prompt_tokens[known].sum())
    hit = float(samples.hit_tokens[known].sum())
    found = [
        ("requests", str(len(samples))),
        ("failed", str(int((~samples.ok).sum()))),
        ("hit rate", f"{100 * hit / asked:.2f} %" if asked else "?"),
        ("measured to its end", "yes" if samples.complete else "no"),
    ]
    for metric in samples.metrics:
        values = samples.metric(metric)
        values = values[np.isfinite(values)]
        if values.size and metric.endswith("_s"):
            found += [
                (f"{metric} p{100 * q:g}", lasted(float(np.quantile(values, q))))
                for q in (0.5, 0.95, 0.99)
            ]
    return [*found, *((k, str(v)) for k, v in samples.counters.items())]


def _repeat(result: GateResult, baseline: Source, canary: Source) -> str:
    """The command that judges the same again; "" where its policy is not known."""
    paths = [source for source in (baseline, canary) if _is_path(source)]
    if len(paths) != 2:
        return ""
    words = ["canary", "judge", "--baseline", str(paths[0]), "--canary", str(paths[1])]
    policy = Path(str(paths[0])).parent / POLICY
    if policy.is_file():
        words += ["--policy", str(policy)]
    elif result.policy_name != "default":
        return ""
    return shlex.join(words)


def _is_path(source: Source) -> bool:
    return isinstance(source, str | os.PathLike)
