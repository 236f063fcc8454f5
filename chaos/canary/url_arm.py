"""An arm that somebody else runs: one OpenAI-compatible endpoint, or a group of them.

Nothing is started and nothing is broken here. What a server does not report (its cache,
its control plane, the right output of a prompt) is not measured, and a policy that asks
for it is answered INCONCLUSIVE.
"""

from __future__ import annotations

import threading
from collections import Counter
from dataclasses import replace
from typing import TYPE_CHECKING

from chaos.canary.cluster_arm import HANGS, RESIDUAL, cause_of
from chaos.canary.endpoint import close_quietly
from chaos.canary.recorder import Row
from chaos.canary.schedule import length_class
from chaos.errors import UsageError
from chaos.load.replay import failed
from chaos.load.sample import Ending

if TYPE_CHECKING:
    import http.client
    from collections.abc import Mapping, Sequence

    from chaos.canary.endpoint import Endpoint, Streamed
    from chaos.canary.schedule import Numbered
    from chaos.load.sample import Sample
    from chaos.systems.base import Answer, Cluster, Request

REQUEST_TIMEOUT_S = 120.0


class UrlArm:
    """A group of endpoints, each a member; see `Arm`."""

    system = "openai"
    time_scale = 1.0

    def __init__(
        self,
        *,
        label: str,
        endpoints: Sequence[Endpoint],
        timeout_s: float = REQUEST_TIMEOUT_S,
    ) -> None:
        if not endpoints:
            raise UsageError(f"the {label} has no endpoint", "name a URL")
        self.label = label
        self.build = ", ".join(f"{each.model} at {each.url}" for each in endpoints)
        self._endpoints = {each.url: each for each in endpoints}
        self._timeout_s = timeout_s
        self._lock = threading.Lock()
        self._streamed: dict[str, Streamed] = {}
        self._open: dict[str, http.client.HTTPConnection] = {}
        self._counts: Counter[str] = Counter()

    @property
    def members(self) -> tuple[str, ...]:
        return tuple(self._endpoints)

    @property
    def cluster(self) -> Cluster | None:
        return None

    def start(self) -> None:
        """One short request to each member, so that none is asked for the first time.

        Raises:
            UsageError: A member does not serve.
        """
        probe = _probe_request(self.label)
        for url, endpoint in self._endpoints.items():
            answer = endpoint.ask(probe, timeout_s=self._timeout_s)
            if not answer.ok:
                problem = f"the {self.label} {url} does not serve: {answer.error}"
                raise UsageError(problem, "is the server up, and the model loaded?")
        self._counts.update({HANGS: 0, RESIDUAL: 0})

    def expect(self, requests: tuple[Request, ...]) -> None:
        """Nobody knows the right output of a model from outside."""

    def send(self, member: str, request: Request) -> Answer:
        streamed = self._endpoints[member].ask(
            request,
            timeout_s=self._timeout_s,
            on_open=lambda connection: self._opened(request.request_id, connection),
        )
        with self._lock:
            self._open.pop(request.request_id, None)
            self._streamed[request.request_id] = streamed
        return _answer(request, streamed)

    def abort(self, member: str, request_id: str) -> None:
        with self._lock:
            connection = self._open.pop(request_id, None)
        if connection is not None:
            close_quietly(connection)

    def row(self, numbered: Numbered, sample: Sample, *, turn: int, at_s: float) -> Row:
        with self._lock:
            streamed = self._streamed.pop(sample.request.request_id, None)
            self._counts[HANGS] += sample.ending is Ending.HUNG
        ok = sample.answer is not None and sample.answer.ok
        seen = streamed if ok else None
        return Row(
            request=numbered.number,
            session=sample.request.session,
            host=sample.engine,
            klass=length_class(sample.request.input_length),
            arm_turn=turn,
            start_s=at_s,
            ok=ok,
            cause="" if ok else cause_of(sample),
            ttft_s=sample.ttft_s,
            tpot_s=seen.tpot_s if seen else None,
            e2e_s=sample.latency_s,
            prompt_tokens=seen.prompt_tokens if seen else None,
            hit_tokens=seen.cached_tokens if seen else None,
            lag_s=sample.lag_s,
        )

    def calls(self) -> int | None:
        return None

    def look_up(self, request: Request) -> float | None:
        return None

    def settle(self) -> None:
        """Every answer of a turn has come, or was given up, before the turn ends."""

    def counters(self) -> Mapping[str, int]:
        with self._lock:
            return dict(self._counts)

    def finish(self) -> None:
        """There is nothing to look at."""

    def facts(self) -> Mapping[str, object]:
        return {"members": list(self.members)}

    def close(self) -> None:
        """Gives up what is still under way."""
        with self._lock:
            left, self._open = list(self._open.values()), {}
        for connection in left:
            close_quietly(connection)

    def _opened(self, request_id: str, connection: http.client.HTTPConnection) -> None:
        with self._lock:
            self._open[request_id] = connection


def _answer(request: Request, streamed: Streamed) -> Answer:
    """The answer in the words of the load generator; what it has no word for is 0."""
    answer = failed(request, streamed.error)
    if not streamed.ok:
        return answer
    return replace(
        answer,
        ok=True,
        ttft_modelled_s=streamed.ttft_s or 0.0,
        input_tokens=streamed.prompt_tokens or request.input_length,
        l3_tokens=streamed.cached_tokens or 0,
    )


def _probe_request(label: str) -> Request:
    from chaos.systems.base import Request

    return Request(
        request_id=f"probe-{label}",
        session="probe",
        at_s=0.0,
        input_length=8,
        output_length=1,
        hash_ids=((1 << 31) - 1,),
    )
