"""The `load` fixture: open-loop load on the cluster of a test, recorded as it goes."""

from __future__ import annotations

import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from chaos.load.replay import OpenLoop
from chaos.load.routing import SessionAffine

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from chaos.history.history import History
    from chaos.load.replay import OnSend
    from chaos.load.sample import LoadRun, Sample
    from chaos.systems.base import Cluster, Request

    Watcher = Callable[[Sample], None]

REQUEST_TIMEOUT_S = 30.0
_END_MARGIN_S = 5.0
_ORACLE_LIMIT = 20_000


class Running:
    """A load that runs in the background; `run` is there after the `with` block."""

    def __init__(self, loop: OpenLoop) -> None:
        self._loop = loop
        self._result: LoadRun | None = None
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._body, name="load", daemon=True)
        self._thread.start()

    @property
    def done(self) -> bool:
        return not self._thread.is_alive()

    @property
    def run(self) -> LoadRun:
        """The finished run; waits for it."""
        self.join()
        if self._error is not None:
            raise self._error
        if self._result is None:
            message = "the load has not ended"
            raise RuntimeError(message)
        return self._result

    def stop(self) -> None:
        """Ends the load early; open requests count as cancelled."""
        self._loop.stop()

    def join(self, timeout_s: float | None = None) -> None:
        self._thread.join(timeout_s)

    def _body(self) -> None:
        try:
            self._result = self._loop.run()
        except BaseException as error:  # re-raised in `run`, where the test sees it
            self._error = error


class LoadDriver:
    """Replays requests against the cluster of a test, in an arm of the comparison.

    Sessions stay on their engines unless a route says otherwise. Every sample goes into
    the history at the moment it is known, with the output that it should have had.
    """

    def __init__(
        self,
        cluster: Callable[[], Cluster],
        *,
        history: History,
        on_sample: Callable[[str, Sample], None],
    ) -> None:
        self._cluster = cluster
        self._history = history
        self._on_sample = on_sample
        self._oracle: dict[tuple[int, tuple[int, ...]], str] = {}

    def __call__(
        self, requests: Sequence[Request], *, arm: str = "fault", **settings: Any
    ) -> LoadRun:
        """Replays all requests and returns when every one has its sample.

        Args:
            requests: The trace; `at_s` counts from the start of this call.
            arm: `fault`, `healthy` or `local_only`, as the history calls it.
            **settings: `route`, `rate_scale`, `max_in_flight`, `timeout_s`,
                `on_sample`, `on_send` of `OpenLoop`.
        """
        return self.loop(requests, arm=arm, **settings).run()

    @contextmanager
    def running(
        self, requests: Sequence[Request], *, arm: str = "fault", **settings: Any
    ) -> Iterator[Running]:
        """The same in the background; leaving the block waits for the end.

        An error inside the block stops the load.
        """
        running = Running(self.loop(requests, arm=arm, **settings))
        try:
            yield running
        except BaseException:
            running.stop()
            running.join(_END_MARGIN_S)
            raise
        running.join()

    def expected(self, requests: Sequence[Request]) -> dict[str, str]:
        """The output of each request in a run without any cache, by request id."""
        return {request.request_id: self._expected(request) for request in requests}

    def loop(
        self,
        requests: Sequence[Request],
        *,
        arm: str = "fault",
        timeout_s: float = REQUEST_TIMEOUT_S,
        on_sample: Watcher | None = None,
        on_send: OnSend | None = None,
        **settings: Any,
    ) -> OpenLoop:
        """The open loop behind both, not started yet."""
        cluster, history = self._cluster(), self._history
        settings.setdefault("route", SessionAffine(engines=tuple(cluster.engines)))
        expected = self.expected(requests)

        def watch(sample: Sample) -> None:
            hashed = expected[sample.request.request_id]
            history.complete(sample, arm=arm, expected=hashed)
            self._on_sample(arm, sample)
            if on_sample is not None:
                on_sample(sample)

        def sending(request: Request, engine: str, at_s: float) -> None:
            history.invoke(request, engine, at_s, arm)
            if on_send is not None:
                on_send(request, engine, at_s)

        return OpenLoop(
            lambda engine, request: cluster.prefill(
                engine, request, timeout_s=timeout_s
            ),
            requests,
            timeout_s=timeout_s,
            on_sample=watch,
            on_send=sending,
            abort=cluster.abort,
            **settings,
        )

    def _expected(self, request: Request) -> str:
        key = (request.input_length, tuple(request.hash_ids))
        if key not in self._oracle:
            if len(self._oracle) >= _ORACLE_LIMIT:
                self._oracle.clear()
            self._oracle[key] = self._cluster().expected_output(request)
        return self._oracle[key]
