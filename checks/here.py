"""Collects the facts of this node, in a process of its own like on any other node.

With `--active` its own ports exchange messages; without an inventory it has no peers.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from checks.both_ends import ANSWER_S, PROBER, TRY_S
from checks.facts import SCHEMA
from checks.fleet import COLLECTOR
from checks.framing import NoDocument, decode
from checks.rules import all_rules

if TYPE_CHECKING:
    from checks.fleet import CollectOptions

SYSTEM_PYTHON = Path("/usr/bin/python3")
"""The distribution's, where its pyverbs can be imported."""
TIMEOUT_S = 30.0


def collect_here(
    options: CollectOptions, sysroot: str = "", *, timeout_s: float = TIMEOUT_S
) -> dict[str, Any]:
    """The document of this node; of a collector that failed it says how."""
    python = str(SYSTEM_PYTHON) if SYSTEM_PYTHON.exists() else sys.executable
    words = [*options.arguments(), *(["--sysroot", sysroot] if sysroot else [])]
    try:
        with subprocess.Popen(
            [python, str(COLLECTOR), *words],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        ) as process:
            try:
                all_rules()  # to import them takes time, and the collector pauses
                stdout, stderr = process.communicate(timeout=timeout_s)
            finally:
                process.kill()
        document = decode(stdout)
    except subprocess.TimeoutExpired:
        return _lost("timeout", f"the collector did not end within {timeout_s:.0f} s")
    except NoDocument as error:
        last = stderr.decode("utf-8", "replace").strip().splitlines()[-1:]
        return _lost(error.kind, last[0] if last else error.reason)
    except OSError as error:
        return _lost("failed", f"{python} cannot be run: {error.strerror}")
    if options.active:
        _act(document, python, sysroot)
    return document


def _act(document: dict[str, Any], python: str, sysroot: str) -> None:
    """Adds what the ports of this node told each other."""
    plan = {
        "act": "try",
        "name": "",
        "token": "",
        "seconds": TRY_S,
        "pairs": [],
        "inside": [],
        "nics": document["collector"].get("selected", []),
        "sysroot": sysroot,
    }
    try:
        done = subprocess.run(
            [python, str(PROBER), json.dumps(plan)],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=ANSWER_S,
            check=False,
        )
        probes = decode(done.stdout)["probes"]
    except (subprocess.TimeoutExpired, OSError, NoDocument, KeyError) as error:
        document["collector"]["active_error"] = f"nothing was tried: {error}"[:300]
        return
    document["collector"]["active_error"] = "without --inventory there is no peer"
    document.setdefault("verbs", {})["probes"] = probes


def _lost(kind: str, reason: str) -> dict[str, Any]:
    return {
        "schema": SCHEMA,
        "collector": {"error": {"kind": kind, "reason": reason}},
        "node": {"hostname": "localhost"},
        "cmds": {},
        "files": {},
    }
