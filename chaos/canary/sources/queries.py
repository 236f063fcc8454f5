"""Which series of a Prometheus server are what the gate judges: presets, or a file.

A file looks like a preset:

    schema: canary.queries/1
    metrics: {ttft_s: "vllm:time_to_first_token_seconds"}     # histograms, in seconds
    failed: 'vllm:request_success_total{finished_reason="abort"}'        # a counter
    hit_tokens: vllm:prefix_cache_hits_total
    prompt_tokens: vllm:prefix_cache_queries_total
    counters: {wrong_bytes: my_wrong_bytes_total}    # what invariants ask for
    host: instance                                   # the label that tells hosts apart

The first metric is the one that counts requests.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, StringConstraints, ValidationError

from chaos.errors import UsageError
from chaos.scenario.errors import Problem, ScenarioError
from chaos.scenario.load import read_yaml

if TYPE_CHECKING:
    from collections.abc import Mapping

MAX_BYTES = 64 << 10
Series = Annotated[
    str,
    StringConstraints(
        pattern=r"^[A-Za-z_:][A-Za-z0-9_:]*(\{[^{}\n]*\})?$", max_length=512
    ),
]
Metric = Annotated[str, StringConstraints(pattern=r"^[a-z][a-z0-9_]{0,59}_s$")]
Word = Annotated[str, StringConstraints(pattern=r"^[a-z][a-z0-9_]{0,63}$")]
Label = Annotated[str, StringConstraints(pattern=r"^[A-Za-z_][A-Za-z0-9_]{0,63}$")]


class Queries(BaseModel):
    """Names of series; a part after the name, in braces, narrows it."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    schema_: Literal["canary.queries/1"] = Field(alias="schema")
    metrics: dict[Metric, Series] = Field(min_length=1, max_length=16)
    failed: Series | None = None
    hit_tokens: Series | None = None
    prompt_tokens: Series | None = None
    counters: dict[Word, Series] = Field(default={}, max_length=32)
    host: Label = "instance"


PRESETS: Mapping[str, Mapping[str, object]] = {
    "vllm": {
        "schema": "canary.queries/1",
        "metrics": {
            "ttft_s": "vllm:time_to_first_token_seconds",
            "tpot_s": "vllm:time_per_output_token_seconds",
            "e2e_s": "vllm:e2e_request_latency_seconds",
        },
        "failed": 'vllm:request_success_total{finished_reason=~"abort|error"}',
        "hit_tokens": "vllm:prefix_cache_hits_total",
        "prompt_tokens": "vllm:prefix_cache_queries_total",
    },
    "sglang": {
        "schema": "canary.queries/1",
        "metrics": {
            "ttft_s": "sglang:time_to_first_token_seconds",
            "tpot_s": "sglang:inter_token_latency_seconds",
            "e2e_s": "sglang:e2e_request_latency_seconds",
        },
        "failed": "sglang:num_aborted_requests_total",
        "hit_tokens": "sglang:cached_tokens_total",
        "prompt_tokens": "sglang:prompt_tokens_total",
    },
}
"""Names as the engines' documentation gives them; newer versions may call them
otherwise, which is told as a series that is not there."""


def queries_of(name: str) -> Queries:
    """A preset by its name, or those of a file.

    Raises:
        UsageError: There is neither, or the file is wrong; with line and field.
    """
    if name in PRESETS:
        return Queries.model_validate(PRESETS[name])
    path = Path(name)
    fix = f"there are {', '.join(PRESETS)}, or name a file"
    try:
        if path.stat().st_size > MAX_BYTES:
            raise UsageError(f"{path}: is longer than {MAX_BYTES >> 10} KiB")
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError, ValueError) as error:
        reason = getattr(error, "strerror", None) or "is no UTF-8 text"
        raise UsageError(f"queries {name}: {reason}", fix) from None
    return _parsed(text, name)


def _parsed(text: str, file: str) -> Queries:
    document, lines = read_yaml(text, file)
    try:
        return Queries.model_validate(document)
    except ValidationError as error:
        row = error.errors(include_url=False, include_context=False)[0]
        place = tuple(row["loc"])
        while place and place not in lines:
            place = place[:-1]
        value = row["input"] if isinstance(row["input"], str) else None
        problem = Problem(
            location=tuple(row["loc"]), what=row["msg"].lower(), value=value
        )
        raise ScenarioError([problem.told(file, lines.get(place, 1))]) from None
