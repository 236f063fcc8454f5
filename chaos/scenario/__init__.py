"""Scenarios: several faults, at once and in sequence, from a YAML file and a seed.

`load_scenario` reads a file, `schedule_of` throws its dice, `play` breaks a cluster
with it, `judge_played` judges what was seen. The suites, `chaos run` and the soak all
go through these four.
"""

from __future__ import annotations

from chaos.scenario.errors import ScenarioError
from chaos.scenario.judges import judge_played
from chaos.scenario.load import load_scenario, parse_scenario
from chaos.scenario.player import Played, Stage, play
from chaos.scenario.schedule import Schedule, schedule_of, windows
from chaos.scenario.schema import Scenario

__all__ = [
    "Played",
    "Scenario",
    "ScenarioError",
    "Schedule",
    "Stage",
    "judge_played",
    "load_scenario",
    "parse_scenario",
    "play",
    "schedule_of",
    "windows",
]
