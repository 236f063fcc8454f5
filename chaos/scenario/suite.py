"""A scenario inside a suite: the fixtures are its stage."""

from __future__ import annotations

from typing import TYPE_CHECKING

from chaos.errors import NotHere
from chaos.safety.halt import LeverPoll, Levers, LocalLever
from chaos.scenario.bench import host_levers
from chaos.scenario.plan import refuse_too_much
from chaos.scenario.player import Stage, play
from chaos.scenario.schedule import schedule_of

if TYPE_CHECKING:
    from collections.abc import Collection

    from chaos.driver import LoadDriver
    from chaos.faults.injector import Injector
    from chaos.scenario.player import Played
    from chaos.scenario.schema import Scenario
    from chaos.steady import SteadyState
    from chaos.systems.base import Cluster


def play_here(
    scenario: Scenario,
    *,
    cluster: Cluster,
    inject: Injector,
    load: LoadDriver,
    steady: SteadyState,
    capabilities: Collection[str],
    target: str,
) -> Played:
    """Plays a scenario on the cluster of a test.

    Raises:
        UsageError: It would break too much at once.
        NotHere: The target cannot do what it requires: a skip.
    """
    for capability in scenario.requires:
        if capability not in capabilities:
            reason = "the scenario requires it"
            raise NotHere(capability=capability, target=target, reason=reason)
    schedule = schedule_of(scenario, host_of=cluster.host_of)
    refuse_too_much(scenario.name, scenario, schedule, cluster)
    levers = Levers([LocalLever(), *host_levers(cluster)])
    stage = Stage(cluster=cluster, inject=inject, load=load, steady=steady)
    played = play(scenario, schedule, stage, lever=LeverPoll(levers))
    if played.not_here and not played.residual:
        raise played.not_here[0]
    return played
