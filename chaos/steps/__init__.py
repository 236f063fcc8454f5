"""Steps of the runbook pages: what the suites do again and again.

Every one speaks to an abstract `Cluster`. The common ones are exported here; those of
one subject stand in a module of their own.
"""

from __future__ import annotations

from chaos.steps.prompts import (
    again,
    ask,
    ask_and_abort,
    ask_together,
    ask_when_kept,
    ask_while,
    asking,
    data_links,
    engine_counter,
    extended,
    judge_equal,
    judge_laws,
    judge_reuse,
    judge_waited,
    keep,
    keep_on_two,
    lookup_link,
    prompt,
    reused,
    seconds_until_reused,
    slots_taken,
    suffix,
    wait_for,
    wait_idle,
    wait_kept,
    whole_pages,
)

__all__ = [
    "again",
    "ask",
    "ask_and_abort",
    "ask_together",
    "ask_when_kept",
    "ask_while",
    "asking",
    "data_links",
    "engine_counter",
    "extended",
    "judge_equal",
    "judge_laws",
    "judge_reuse",
    "judge_waited",
    "keep",
    "keep_on_two",
    "lookup_link",
    "prompt",
    "reused",
    "seconds_until_reused",
    "slots_taken",
    "suffix",
    "wait_for",
    "wait_idle",
    "wait_kept",
    "whole_pages",
]
