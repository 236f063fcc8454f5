"""The staged rollout as a file: each step has a gate, a budget and a way back.

Preflight, chaos smoke, soak, a few percent, everywhere: every stage is made by one
command, judged by the exit code of another, and undone by a third. State is on disk
before anything happens, so a ladder survives the end of its process.
"""

from __future__ import annotations
