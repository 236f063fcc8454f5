"""The results of a run on disk: `results/<suite>/<UTC start>-<seed>/`.

```
run.json        versions, git head, argv, seed, time scale, capabilities
schedule.json   every fault with its times and evidence
history.jsonl   one line per event
hist/*.hlog     HdrHistogram interval logs
verdict.json    three-valued, numbers, thresholds, samples
summary.md      the same for people
report.html     one page that explains itself, with plots; report.md, metrics.prom
plots/*.svg     each plot, and as PNG
```

Everything that is learnt is appended at once to `parts/<worker>.jsonl`, so a run that
is killed keeps its verdicts, and the workers of a parallel run each have a file of
their own. `close` (in the controller) merges the parts and writes the rest atomically;
`results/latest` and `results/<suite>/latest` then point at the run.
"""

from __future__ import annotations

import dataclasses
import json
import os
import platform
import re
import subprocess
import sys
import threading
import time
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from chaos.history.history import Event, EventType, History
from chaos.report.document import (
    Document,
    Outcome,
    document_of,
    judgement_of,
    judgement_row,
    reproduce,
)
from chaos.report.files import link, read_json, write_json, write_text
from chaos.report.histogram import Series
from chaos.report.redaction import clean_line, clean_text, prepare
from chaos.report.summary import render_summary
from chaos.report.sweep import sweep

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from chaos.faults.base import Receipt
    from chaos.judge.verdict import Judgement, Verdict

MAX_SERIES = 256
GIT_TIMEOUT_S = 5.0
_PACKAGES = ("moonquake", "pytest", "grpcio", "numpy", "scipy", "hdrhistogram")


# Stands for a last line that was cut, when a worker was killed while it wrote.
_CUT_EVENT = (
    Event(
        at_s=0.0, type=EventType.INFO, operation="truncated", value={"dropped": 1}
    ).to_json()
    + "\n"
)


class RunReport:
    """One run (or one worker's part of it) being written.

    `open` makes the directory; in a parallel run the workers `attach` to it.
    """

    def __init__(self, path: Path, *, worker: str = "") -> None:
        self.path, self.worker = path, worker
        self.meta: dict[str, Any] = read_json(path / "run.json")
        prepare()
        self._lock = threading.Lock()
        self._series: dict[str, Series] = {}
        self._series_dropped = 0
        name = f"{worker or 'main'}.jsonl"
        self._part: IO[str] | None = (path / "parts" / name).open("a", encoding="utf-8")
        self.history = History(path / _history_name(worker))

    @classmethod
    def open(
        cls,
        root: str | os.PathLike[str],
        suite: str,
        seed: int,
        *,
        time_scale: float = 1.0,
        system: str = "",
        target: str = "",
        argv: Sequence[str] | None = None,
        options: Sequence[str] = (),
        command: Sequence[str] = ("pytest",),
        capabilities: Mapping[str, object] | None = None,
        started: datetime | None = None,
        cwd: str | os.PathLike[str] | None = None,
    ) -> RunReport:
        """Makes `root/suite/<UTC start>-<seed>` and writes `run.json`.

        `options` are appended to every command that reproduces a test, which begins
        with `command`. A second run in the same second gets a name of its own.
        """
        begun = started or datetime.now(UTC)
        path = _fresh(Path(root) / _safe(suite), f"{begun:%Y%m%dT%H%M%SZ}-{seed}")
        for child in ("parts", "hist"):
            (path / child).mkdir()
        write_json(
            path / "run.json",
            {
                "suite": suite,
                "seed": seed,
                "time_scale": time_scale,
                "system": system,
                "target": target,
                "started": begun.isoformat(),
                "argv": list(sys.argv if argv is None else argv),
                "options": list(options),
                "command": list(command),
                "versions": versions(),
                "git": git_state(Path(cwd) if cwd is not None else Path.cwd()),
                "capabilities": dict(capabilities or {}),
                "monotonic_s": time.monotonic(),
                "pid": os.getpid(),
            },
        )
        return cls(path)

    @classmethod
    def attach(cls, path: str | os.PathLike[str], worker: str) -> RunReport:
        """A worker's part of a run that the controller opened."""
        return cls(Path(path), worker=_safe(worker))

    def add_judgement(self, nodeid: str, judgement: Judgement) -> None:
        self._append("judgement", nodeid=nodeid, row=judgement_row(judgement))

    def add_error(self, nodeid: str, error: str) -> None:
        """The test itself broke (an assertion, an exception): the reason in a line."""
        self._append("error", nodeid=nodeid, error=error)

    def add_test(self, nodeid: str) -> None:
        """A test that ran: without any judgement it counts as INCONCLUSIVE."""
        self._append("test", nodeid=nodeid)

    def add_receipt(self, receipt: Receipt, nodeid: str = "") -> None:
        """A fault as it really happened; the last receipt of a fault id is kept."""
        row = dataclasses.asdict(receipt)
        self._append("receipt", nodeid=nodeid, row=row)

    def add_residual(self, what: str) -> None:
        self._append("residual", what=what)

    def add_note(self, note: str) -> None:
        self._append("note", note=note)

    def record(self, name: str, at_s: float, value_s: float) -> None:
        """A latency for `hist/<name>.hlog`; the name says metric, arm and class."""
        with self._lock:
            series = self._series.get(name)
            if series is None:
                if len(self._series) >= MAX_SERIES:
                    self._series_dropped += 1
                    return
                series = self._series[name] = Series()
            series.add(at_s, value_s)

    def document(self, *, aborted: str = "") -> Document:
        """The verdict as of now, from the parts of all workers."""
        return _document(self.path, self.meta, aborted)

    def close(
        self, *, aborted: str = "", unreported: Collection[Verdict] = ()
    ) -> Document | None:
        """Ends this part; in the controller writes everything and moves `latest`.

        Call it on an abort as well, with the reason. Workers get None. A run that ends
        with one of the `unreported` verdicts has results and no reports for people.
        """
        with self._lock:
            if self._part is None:
                return None if self.worker else document_at(self.path)
            self._write_series()
            self.history.close()
            self._part.flush()
            os.fsync(self._part.fileno())
            self._part.close()
            self._part = None
        if self.worker:
            return None
        return self._finish(aborted, unreported)

    def _finish(self, aborted: str, unreported: Collection[Verdict]) -> Document:
        _merge_histories(self.path)
        for note in sweep(self.path):
            self._late_note(note)
        document = self.document(aborted=aborted)
        schedule = {"schema": 1, "faults": list(document.faults)}
        write_json(self.path / "schedule.json", _finite(schedule))
        write_json(self.path / "verdict.json", _finite(document.to_json()))
        write_text(self.path / "summary.md", render_summary(document))
        link(self.path.parent / "latest", self.path)
        link(self.path.parent.parent / "latest", self.path)
        if document.verdict not in unreported:
            self._render(document)
        return document

    def _render(self, document: Document) -> None:
        """Reports for people, last: whatever happens to them, the results are there."""
        from chaos.report.reports import write_reports

        problem = write_reports(self.path, document)
        if problem:
            sys.stderr.write(f"chaos: warning: {problem}\n")

    def _late_note(self, note: str) -> None:
        """A note when the parts are closed already."""
        with (self.path / "parts" / "main.jsonl").open("a", encoding="utf-8") as part:
            part.write(clean_line(json.dumps({"kind": "note", "note": note})) + "\n")

    def _write_series(self) -> None:
        for name, series in self._series.items():
            suffix = f".{self.worker}" if self.worker else ""
            path = self.path / "hist" / f"{_safe(name)}{suffix}.hlog"
            series.write(path, comment=clean_text(name))
            if series.dropped:
                self._line("note", note=f"{name}: {series.dropped} values dropped")
        if self._series_dropped:
            note = f"{self._series_dropped} values of more than {MAX_SERIES} histograms"
            self._line("note", note=f"{note} dropped")

    def _append(self, kind: str, **row: object) -> None:
        with self._lock:
            self._line(kind, **row)

    def _line(self, kind: str, **row: object) -> None:
        if self._part is None:
            msg = f"the report {self.path} is closed"
            raise ValueError(msg)
        line = json.dumps({"kind": kind, **row}, default=str)
        self._part.write(clean_line(line) + "\n")
        self._part.flush()


def document_at(path: str | os.PathLike[str]) -> Document:
    """The document of a finished run directory (or of a killed one, from its parts)."""
    run = Path(path)
    verdict = run / "verdict.json"
    if not verdict.exists():
        return _document(run, read_json(run / "run.json"), "the run was killed")
    return document_of(read_json(verdict), read_json(run / "schedule.json")["faults"])


def versions() -> dict[str, str]:
    """What ran: Python, kernel, and the packages that matter."""
    found = {"python": platform.python_version(), "platform": platform.platform()}
    for name in _PACKAGES:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            found[name] = "not installed"
    return found


def git_state(cwd: Path) -> dict[str, object]:
    """Head and whether the tree is dirty; "unknown" where git cannot say."""

    def ask(*words: str) -> str | None:
        try:
            done = subprocess.run(
                ["git", *words],  # noqa: S607 - git from the operator's own PATH
                cwd=cwd,
                capture_output=True,
                text=True,
                timeout=GIT_TIMEOUT_S,
                check=True,
            )
        except (OSError, subprocess.SubprocessError):
            return None
        return done.stdout.strip()

    head, dirty = ask("rev-parse", "HEAD"), ask("status", "--porcelain")
    return {
        "head": head or "unknown",
        "dirty": "unknown" if dirty is None else bool(dirty),
    }


def _document(path: Path, meta: Mapping[str, Any], aborted: str) -> Document:
    rows = _parts(path)
    begun = datetime.fromisoformat(meta["started"])
    judgements: dict[str, list[Judgement]] = {}
    errors: dict[str, str] = {}
    faults: dict[tuple[str, str], dict[str, Any]] = {}
    for row in rows:
        if row["kind"] in ("judgement", "error", "test"):
            judgements.setdefault(row["nodeid"], [])
        if row["kind"] == "judgement":
            judgements[row["nodeid"]].append(judgement_of(row["row"]))
        elif row["kind"] == "error":
            errors.setdefault(row["nodeid"], row["error"])
        elif row["kind"] == "receipt":
            # Workers number their faults by themselves: the test tells them apart.
            key = (row["nodeid"], row["row"]["fault_id"])
            faults[key] = {**row["row"], "test": row["nodeid"]}
    outcomes = tuple(
        Outcome(
            nodeid=nodeid,
            judgements=tuple(judged),
            reproduce=reproduce(
                nodeid,
                seed=meta["seed"],
                options=meta["options"],
                command=meta.get("command", ("pytest",)),
            ),
            error=errors.get(nodeid, ""),
        )
        for nodeid, judged in sorted(judgements.items())
    )
    return Document(
        suite=meta["suite"],
        seed=meta["seed"],
        time_scale=meta["time_scale"],
        system=meta["system"],
        target=meta["target"],
        started=meta["started"],
        duration_s=max(0.0, (datetime.now(UTC) - begun).total_seconds()),
        aborted=aborted,
        residual=tuple(row["what"] for row in rows if row["kind"] == "residual"),
        outcomes=outcomes,
        faults=tuple(faults.values()),
        notes=tuple(row["note"] for row in rows if row["kind"] == "note"),
    )


def _parts(path: Path) -> list[dict[str, Any]]:
    """Every line of every worker; a last line cut by a kill is left out and noted."""
    rows: list[dict[str, Any]] = []
    for part in sorted((path / "parts").glob("*.jsonl")):
        for text in part.read_text(encoding="utf-8").splitlines():
            try:
                rows.append(json.loads(text))
            except ValueError:
                rows.append({"kind": "note", "note": f"{part.name}: a line was cut"})
    return rows


def _merge_histories(path: Path) -> None:
    """Appends the workers' histories to the one of the run, as they are."""
    whole = path / _history_name("")
    with whole.open("a", encoding="utf-8") as out:
        for part in sorted(path.glob("history-*.jsonl")):
            with part.open(encoding="utf-8") as lines:
                for text in lines:
                    out.write(text if text.endswith("\n") else _CUT_EVENT)
            part.unlink()
        out.flush()
        os.fsync(out.fileno())


def _history_name(worker: str) -> str:
    return f"history-{worker}.jsonl" if worker else "history.jsonl"


def _fresh(parent: Path, name: str) -> Path:
    parent.mkdir(parents=True, exist_ok=True)
    for attempt in range(1, 1000):
        path = parent / (name if attempt == 1 else f"{name}-{attempt}")
        try:
            path.mkdir()
        except FileExistsError:
            continue
        return path
    msg = f"{parent}: a thousand runs named {name}; clean up the results"
    raise FileExistsError(msg)


def _safe(name: str) -> str:
    """A name that is one path component."""
    return re.sub(r"[^A-Za-z0-9._-]+", "_", name).strip(".") or "run"


def _finite(value: Any) -> Any:
    """JSON has no NaN and no infinity: null."""
    if isinstance(value, dict):
        return {str(key): _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    if isinstance(value, float) and not (abs(value) < float("inf")):
        return None
    return value
