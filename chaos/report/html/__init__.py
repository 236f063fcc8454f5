"""Reports that people open: one HTML file each, no network, no script.

`write_run_report` for the results directory of a chaos run, `write_gate_report` for a
document of the canary gate (schema `canary.verdict/1`). Each brings its own imports
along, and only when it is asked for.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from chaos.report.html.gate import write_gate_report
    from chaos.report.html.write import write_run_report

__all__ = ["write_gate_report", "write_run_report"]
_HOMES = {"write_gate_report": "gate", "write_run_report": "write"}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        message = f"module {__name__!r} has no attribute {name!r}"
        raise AttributeError(message)
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
