"""The command `preflight`: run, collect, judge, explain, list-checks, learn."""

from __future__ import annotations

import datetime as dt
import json
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from checks.catalogue import catalogue
from checks.errors import PreflightError, UsageError
from checks.report import BROKE, READY, USAGE

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from checks.profile import Profile
    from checks.report import Report
    from inventory import Inventory

_EXITS = """
\b
Exit codes:
  0  ready: no check failed (warnings allowed, unless --strict)
  1  at least one check failed
  2  usage: the command was asked wrongly
  3  undetermined: a node or a check that matters could not be read
  4  preflight itself broke
With --format nagios they are those of Nagios: 0 OK, 1 WARNING, 2 CRITICAL, 3 UNKNOWN.
"""
_OPTIONAL_WORDS = frozenset(
    {"run", "collect", "judge", "explain", "list-checks", "learn"}
)


def _examples(*lines: str) -> str:
    shown = "\n".join(f"  {line}" for line in lines)
    return f"\b\nExamples:\n{shown}\n{_EXITS}"


app = typer.Typer(
    name="preflight",
    help="Judges a node, and its likeness to its peers, before it joins a rollout.",
    epilog=_examples("preflight", "preflight judge fleet/*.json --profile golden.yaml"),
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)


InventoryFile = Annotated[
    Path | None, typer.Option("--inventory", help="Ansible-shaped YAML or INI.")
]
Limit = Annotated[str, typer.Option(help="Groups or hosts of the inventory.")]
ProfileFile = Annotated[Path | None, typer.Option("--profile", help="YAML profile.")]
Nics = Annotated[str, typer.Option(help="Devices to judge, by comma.")]
Format = Annotated[
    str,
    typer.Option(
        "--format",
        help="terminal, json, junit, nagios, markdown or openmetrics.",
    ),
]
Only = Annotated[str, typer.Option(help="Only these checks, by comma.")]
Strict = Annotated[bool, typer.Option("--strict", help="A warning fails.")]
Output = Annotated[
    Path | None,
    typer.Option(help="Directory for reports, facts, passing_nodes.txt, ..."),
]
Waivers = Annotated[Path | None, typer.Option(help="YAML list of waivers.")]
BaselineFile = Annotated[
    Path | None, typer.Option("--baseline", help="Warn of what changed since.")
]
SaveBaseline = Annotated[
    Path | None, typer.Option("--save-baseline", help="Keep what the nodes hold.")
]
Sysroot = Annotated[str, typer.Option(help="Read paths below this directory.")]
Active = Annotated[
    bool,
    typer.Option(
        "--active",
        help="Try the rails: pings, TCP to the ports of Mooncake, RDMA messages and"
        " reads; between nodes with --inventory, inside of this one without.",
    ),
]
Kubernetes = Annotated[
    bool,
    typer.Option(
        "--kubernetes", help="Ask kubectl, kube-proxy and the cluster's DNS too."
    ),
]
Nft = Annotated[bool, typer.Option("--nft", help="Read the packet filter as well.")]
Connect = Annotated[str, typer.Option(help="HOST:PORT to reach, by comma.")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON for machines.")]
FactFiles = Annotated[
    list[Path], typer.Argument(help="Facts documents, or directories of them.")
]


@app.command(
    epilog=_examples(
        "preflight",
        "preflight --inventory staging.yaml --limit stores --profile golden.yaml",
    )
)
def run(
    inventory: InventoryFile = None,
    limit: Limit = "",
    profile: ProfileFile = None,
    nics: Nics = "",
    form: Format = "terminal",
    only: Only = "",
    strict: Strict = False,
    output: Output = None,
    waivers: Waivers = None,
    baseline: BaselineFile = None,
    save_baseline: SaveBaseline = None,
    sysroot: Sysroot = "",
    active: Active = False,
    kubernetes: Kubernetes = False,
    nft: Nft = False,
    connect: Connect = "",
) -> None:
    """Collects, judges, prints: this node, or all nodes of an inventory.

    The word `run` may be left out.
    """
    asked = _Asked(profile, nics, form, only, strict, output, waivers, baseline)
    golden = asked.loaded_profile()
    hosts = _inventory(inventory, limit)
    options = _CollectAsked(
        nics,
        active=active,
        kubernetes=kubernetes,
        nft=nft,
        connect=connect,
        sysroot=sysroot,
    )
    found = _collected(hosts, options, golden)
    report = asked.judged(found, golden, hosts)
    asked.finish(report, found, save_baseline)


@app.command(
    epilog=_examples(
        "preflight collect --out facts.json",
        "preflight collect --inventory staging.yaml --out fleet.json",
    )
)
def collect(
    out: Annotated[Path, typer.Option(help="File for the facts; - is stdout.")],
    inventory: InventoryFile = None,
    limit: Limit = "",
    nics: Nics = "",
    sysroot: Sysroot = "",
    active: Active = False,
    kubernetes: Kubernetes = False,
    nft: Nft = False,
    connect: Connect = "",
) -> None:
    """Only collects. Ends with 3 when a node could not be read."""
    hosts = _inventory(inventory, limit)
    options = _CollectAsked(
        nics,
        active=active,
        kubernetes=kubernetes,
        nft=nft,
        connect=connect,
        sysroot=sysroot,
    )
    found = _collected(hosts, options, None)
    text = json.dumps(found[0] if hosts is None else found) + "\n"
    if str(out) == "-":
        sys.stdout.write(text)
    else:
        _write(out, text)
    if any(document.get("collector", {}).get("error") for document in found):
        raise typer.Exit(3)


@app.command(
    epilog=_examples(
        "preflight judge facts.json --profile golden.yaml",
        "preflight judge fleet/*.json --format junit > report.xml",
    )
)
def judge(
    facts: FactFiles,
    profile: ProfileFile = None,
    nics: Nics = "",
    form: Format = "terminal",
    only: Only = "",
    strict: Strict = False,
    output: Output = None,
    waivers: Waivers = None,
    baseline: BaselineFile = None,
    save_baseline: SaveBaseline = None,
    inventory: InventoryFile = None,
) -> None:
    """Judges saved facts, offline: nothing is read but these files."""
    from checks.documents import load_documents

    asked = _Asked(profile, nics, form, only, strict, output, waivers, baseline)
    golden = asked.loaded_profile()
    hosts = _inventory(inventory, "")
    found = load_documents(facts)
    report = asked.judged(found, golden, hosts)
    asked.finish(report, found, save_baseline)


@app.command(
    epilog=_examples("preflight explain ovs-iface-error", "preflight explain nic-count")
)
def explain(
    check: Annotated[str, typer.Argument(help="Id of a check.")], as_json: Json = False
) -> None:
    """Tells what a check reads, when it is bad, why that matters and how to fix it."""
    row = _row(check)
    if as_json:
        _print(json.dumps(row, indent=2))
        return
    lines = [f"{row['id']}  ({row['severity']}, {row['group']}, {row['state']})"]
    for word in ("bad_when", "scope", "why", "fix", "needs", "requires", "source"):
        value = row.get(word) or ()
        every = [value] if isinstance(value, str) else value
        lines += [f"  {word.replace('_', ' '):<9} {each}" for each in every]
    _print("\n".join(lines))


@app.command(
    "list-checks",
    epilog=_examples("preflight list-checks", "preflight list-checks --json"),
)
def list_checks(
    as_json: Json = False,
    form: Annotated[
        str, typer.Option("--format", help="terminal, json or markdown.")
    ] = "terminal",
    group: Annotated[str, typer.Option(help="Only this group.")] = "",
) -> None:
    """Lists every check of the catalogue, with those that are still missing."""
    if form not in {"terminal", "json", "markdown"}:
        told = f"--format {form} is unknown"
        raise UsageError(told, "terminal, json or markdown")
    rows = [row for row in _rows() if group in {"", row["group"]}]
    if not rows:
        raise UsageError(f"no group is called {group!r}")
    if as_json or form == "json":
        _print(json.dumps(rows, indent=1))
        return
    if form == "markdown":
        from checks.render.manual import manual

        sys.stdout.write(manual(rows))
        return
    for row in rows:
        state = "" if row["state"] == "implemented" else f"[{row['state']}] "
        _print(f"{row['severity']:<8} {row['id']:<28} {state}{row['bad_when']}")
    done = sum(row["state"] == "implemented" for row in rows)
    _print(f"{done} of {len(rows)} implemented")


@app.command(
    epilog=_examples(
        "preflight learn good/*.json --out golden.yaml", "preflight learn facts.json"
    )
)
def learn(
    facts: FactFiles,
    out: Annotated[Path | None, typer.Option(help="File; stdout without.")] = None,
    nics: Nics = "",
) -> None:
    """Writes a profile that these good nodes satisfy. Edit it before using it."""
    from checks.documents import load_documents
    from checks.judge import judge as judged
    from checks.learn import learned

    report = judged(load_documents(facts), nics=_words(nics))
    text = learned(report)
    bad = len(report.roots)
    if bad:
        _complain(f"note: {bad} findings on these nodes are bad; are they good nodes?")
    if out is None:
        _print(text.rstrip("\n"))
    else:
        _write(out, text)


def main(argv: list[str] | None = None) -> int:
    """Runs the command; every error of ours is one line and its own exit code."""
    words = list(sys.argv[1:] if argv is None else argv)
    debug = "--debug" in words
    words = _with_command([word for word in words if word != "--debug"])
    try:
        app(words)
    except SystemExit as ended:
        return ended.code if isinstance(ended.code, int) else READY
    except Exception as error:  # the edge of the command: 4 is ours, never 1
        if debug:
            raise
        return _failed(error)
    return READY


def _failed(error: Exception) -> int:
    from inventory import InventoryError

    if isinstance(error, PreflightError):
        return _complain(str(error), error.exit_code)
    if isinstance(error, InventoryError):
        return _complain(str(error), USAGE)
    if isinstance(error, BrokenPipeError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return READY
    told = f"{type(error).__name__}: {error} (our own fault; --debug shows where)"
    return _complain(told, BROKE)


def _with_command(words: list[str]) -> list[str]:
    """`preflight` and `preflight --inventory F` mean `preflight run ...`."""
    if words and (words[0] in _OPTIONAL_WORDS or words[0] in {"--help", "-h"}):
        return ["--help", *words[1:]] if words[0] == "-h" else words
    return words if words and not words[0].startswith("-") else ["run", *words]


class _Asked:
    """The options of a judgement, and what is done with them."""

    def __init__(
        self,
        profile: Path | None,
        nics: str,
        form: str,
        only: str,
        strict: bool,
        output: Path | None,
        waivers: Path | None,
        baseline: Path | None,
    ) -> None:
        from checks.render import FORMATS

        if form not in FORMATS:
            raise UsageError(
                f"--format {form} is unknown", f"one of {', '.join(FORMATS)}"
            )
        self.profile = profile
        self.nics = _words(nics)
        self.form = form
        self.only = _words(only)
        self.strict = strict
        self.output = output
        self.waivers = waivers
        self.baseline = baseline

    def loaded_profile(self) -> Profile:
        from checks.profile import Profile, load_profile, load_waivers

        known = tuple(catalogue())
        golden = load_profile(self.profile, known) if self.profile else Profile()
        if self.waivers is not None:
            more = load_waivers(self.waivers, known)
            waivers = (*golden.waivers, *more)
            golden = golden.model_copy(update={"waivers": waivers})
        return golden

    def judged(
        self,
        found: Sequence[Mapping[str, Any]],
        golden: Profile,
        hosts: Inventory | None,
    ) -> Report:
        from checks.baseline import load_baseline
        from checks.judge import judge as judged
        from checks.shares import processors

        return judged(
            found,
            golden,
            rules=_chosen(self.only),
            nics=self.nics,
            rails=_rails(hosts),
            expect=_expect(hosts),
            previous=load_baseline(self.baseline) if self.baseline else None,
            today=dt.datetime.now(tz=dt.UTC).date(),
            processes=processors(),
        )

    def finish(
        self,
        report: Report,
        found: Sequence[Mapping[str, Any]],
        save_baseline: Path | None,
    ) -> None:
        """Prints, writes, and ends the command with the code of the report."""
        from checks.baseline import to_baseline
        from checks.render import FORMATS
        from checks.render.nagios import nagios_code
        from checks.render.terminal import terminal

        if self.form == "terminal":
            _print(terminal(report, strict=self.strict, color=_wants_color()).rstrip())
        else:
            sys.stdout.write(FORMATS[self.form](report, strict=self.strict))
        if self.output is not None:
            _write_all(self.output, report, found, strict=self.strict)
        if save_baseline is not None:
            _write(save_baseline, json.dumps(to_baseline(report)) + "\n")
        if self.form == "nagios":
            raise typer.Exit(nagios_code(report, strict=self.strict))
        raise typer.Exit(report.exit_code(strict=self.strict))


class _CollectAsked:
    """What the collectors are told."""

    def __init__(
        self,
        nics: str,
        *,
        active: bool,
        kubernetes: bool,
        nft: bool,
        connect: str,
        sysroot: str,
    ) -> None:
        self.nics = _words(nics)
        self.active = active
        self.kubernetes = kubernetes
        self.nft = nft
        self.connect = _words(connect)
        self.sysroot = sysroot


def _collected(
    hosts: Inventory | None, asked: _CollectAsked, golden: Profile | None
) -> list[dict[str, Any]]:
    from checks.fleet import CollectOptions

    nics = asked.nics or (golden.nics if golden is not None else ())
    options = CollectOptions(
        nics=tuple(nics),
        active=asked.active,
        cross_rail=bool(golden is not None and golden.routes.cross_rail),
        kubernetes=asked.kubernetes,
        nft=asked.nft,
        connect=tuple(asked.connect),
    )
    if hosts is None:
        from checks.here import collect_here

        return [collect_here(options, asked.sysroot)]
    if asked.sysroot:
        raise UsageError("--sysroot is for this node", "leave out --inventory")
    return _collected_there(hosts, options)


def _collected_there(hosts: Inventory, options: Any) -> list[dict[str, Any]]:
    from checks.fleet import collect_fleet

    total, came = len(hosts.hosts), 0

    def done(host: str, problem: str) -> None:
        nonlocal came
        came += 1
        told = problem or "collected"
        sys.stderr.write(f"preflight: {came}/{total} {host}: {told}\n")

    def acting(names: Sequence[str]) -> None:
        first, more = names[0], len(names) - 1
        others = f" and {more} more" if more else ""
        sys.stderr.write(f"preflight: trying the rails of {first}{others}\n")

    return collect_fleet(hosts.hosts, options, done=done, acting=acting)


def _inventory(path: Path | None, limit: str) -> Inventory | None:
    if path is None:
        if limit:
            raise UsageError("--limit needs --inventory")
        return None
    from inventory import load

    hosts = load(path)
    return hosts.limit(limit) if limit else hosts


def _rails(hosts: Inventory | None) -> dict[str, Any]:
    from checks.rails import RailName

    return {
        host.name: [
            RailName(
                name=rail.name,
                netdev=rail.device,
                bdf=rail.bdf,
                mac=rail.mac,
                address=rail.address,
            )
            for rail in host.rails
        ]
        for host in (hosts.hosts if hosts is not None else ())
    }


def _expect(hosts: Inventory | None) -> dict[str, Any]:
    from checks.profile import checked_expect

    return {
        host.name: checked_expect(host.expect, f"host {host.name}")
        for host in (hosts.hosts if hosts is not None else ())
        if host.expect
    }


def _chosen(only: Sequence[str]) -> Any:
    from checks.rules import all_rules

    if not only:
        return None
    rules = {rule.id: rule for rule in all_rules()}
    unknown = [name for name in only if name not in rules]
    if unknown:
        told = f"no check is called {', '.join(unknown)}"
        raise UsageError(told, "`preflight list-checks` shows all")
    return [rules[name] for name in only]


def _rows() -> list[dict[str, Any]]:
    from checks.rules import all_rules

    declared = {rule.id: rule for rule in all_rules()}
    names = sorted({*catalogue(), *declared})
    return [_row(name) for name in names]


def _row(name: str) -> dict[str, Any]:
    """One check as `list-checks --json` and the documentation show it."""
    from checks.rules import rule as declared

    row, found = catalogue().get(name), declared(name)
    if row is None and found is None:
        told = f"no check is called {name!r}"
        raise UsageError(told, "`preflight list-checks` shows all")
    severity = {"C": "critical", "E": "error", "W": "warning", "I": "info"}
    shown: dict[str, Any] = {
        "id": name,
        "group": row.group if row else getattr(found, "group", ""),
        "severity": severity[row.severity] if row else "",
        "batch": row.batch if row else 0,
        "state": "implemented" if found else "missing",
        "bad_when": row.bad_when if row else "",
    }
    if found is not None:
        shown |= {
            "severity": found.severity.value,
            "scope": found.scope,
            "why": found.why,
            "fix": list(found.fix),
            "needs": list(found.needs),
            "requires": list(found.requires),
            "follows": list(found.follows),
            "source": list(found.source),
        }
    return shown


def _write_all(
    folder: Path, report: Report, found: Sequence[Mapping[str, Any]], *, strict: bool
) -> None:
    from checks.render import FORMATS

    names = {
        "report.json": "json",
        "report.xml": "junit",
        "report.md": "markdown",
        "report.prom": "openmetrics",
        "report.txt": "terminal",
    }
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(f"{folder} cannot be made: {error.strerror}") from None
    for name, form in names.items():
        _write(folder / name, FORMATS[form](report, strict=strict))
    _write(folder / "passing_nodes.txt", _listed(report.passing_nodes))
    _write(folder / "failing_nodes.txt", _listed(report.failing_nodes))
    _write(folder / "undetermined_nodes.txt", _listed(report.undetermined_nodes))
    _write(folder / "facts.json", json.dumps(list(found)) + "\n")


def _listed(names: Iterable[str]) -> str:
    return "".join(f"{name}\n" for name in names)


def _write(path: Path, text: str) -> None:
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise UsageError(f"{path} cannot be written: {error.strerror}") from None


def _words(text: str) -> tuple[str, ...]:
    return tuple(word.strip() for word in text.split(",") if word.strip())


def _wants_color() -> bool:
    return sys.stdout.isatty() and "NO_COLOR" not in os.environ


def _print(text: str) -> None:
    sys.stdout.write(f"{text}\n")


def _complain(text: str, code: int = USAGE) -> int:
    sys.stderr.write(f"preflight: {' '.join(text.split())}\n")
    return code


if __name__ == "__main__":
    sys.exit(main())
