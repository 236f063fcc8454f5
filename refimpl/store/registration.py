"""How a store is known to the master: mounted, mounted anew, unmounted.

Every mount has a new segment id. After the master forgot us (restart, expiry) other
objects may be placed on old bytes: readers that still hold old locations name the old
id and are refused (Mooncake#1336).
"""

from __future__ import annotations

import logging
import math
import secrets
import threading
import time
from typing import TYPE_CHECKING, Any, Final

import grpc

from refimpl.core.codes import Code
from refimpl.proto import pool_pb2, pool_pb2_grpc
from refimpl.role import GRPC_OPTIONS
from refimpl.security.tls import open_channel

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from refimpl.security.tls import Tls
    from refimpl.store.settings import StoreSettings

_LOG: Final = logging.getLogger(__name__)
_DETAILS_MOST: Final = 300


def new_segment_id() -> int:
    """A random id, never 0: that means none."""
    return secrets.randbits(63) | 1


class Registration:
    """Keeps the store mounted, from a thread of its own.

    Args:
        settings: in real time.
        rails: advertised address by rail name.
        renew: makes the data plane serve under another id; called before each mount
            but the first.
        segment: id of the first mount.
        client: identity of this process, which the heartbeat carries.
        tls: certificates of the line to the master.
        beat_key: what our heartbeats are signed with, b"" for nothing. That we are not
            known cannot be signed: the master is asked before it is believed.
    """

    def __init__(
        self,
        settings: StoreSettings,
        rails: Mapping[str, str],
        renew: Callable[[int], object],
        *,
        segment: int,
        client: int,
        clock: Callable[[], float] = time.monotonic,
        tls: Tls | None = None,
        beat_key: bytes = b"",
    ) -> None:
        self._clock = clock
        self._beat_key = beat_key
        self._in_doubt = False
        self.hints_refuted = 0
        """Times the heartbeat door said that we are not known, and we were."""
        self._mounted_at = -math.inf
        self.first_mount = threading.Event()
        self._settings = settings
        self._rails = dict(rails)
        self._renew = renew
        self.segment = segment
        self.client = client
        self.mounts = 0
        self.is_mounted = False
        self._fresh = True
        self._may_be_mounted = False
        """A mount was taken, or asked for without an answer."""
        self._left = False
        self._told: int | None = None
        self._last_words = ""
        self._wake = threading.Event()
        self._stop = threading.Event()
        self._call_lock = threading.Lock()
        self._channel = open_channel(settings.master, _options(settings), tls)
        self._stub = pool_pb2_grpc.MasterStub(self._channel)  # type: ignore[no-untyped-call]
        self._thread = threading.Thread(
            target=self._run, name="registration", daemon=True
        )

    def start(self) -> None:
        """Mounts as soon as the master answers, and again when it forgot us."""
        self._wake.set()
        self._thread.start()

    def remount(self) -> None:
        """The master does not know us (any more).

        A beat that was under way while we mounted says so too; losing all objects for
        that would be a pity, and a true one is told again with the next beat.
        """
        if self._clock() - self._mounted_at < self._settings.ping_interval_s:
            return
        if self._beat_key:
            self._in_doubt = True
        else:
            self.is_mounted = False
        self._wake.set()

    def drain(self, grace_s: float) -> Code:
        """Asks the master for no new allocations; readable for the grace. No remounts.

        From here on the segment is on its way out, whatever the heartbeat hears.
        """
        self._stop.set()
        self._wake.set()
        return self._unmount(grace_s)

    def leave(self) -> Code:
        """Takes the segment out of the pool; once."""
        if self._left:
            return Code.OK
        self._left = True
        self._stop.set()
        self._wake.set()
        code = self._unmount(0.0)
        self._thread.join(self._settings.rpc_timeout_s)
        self._channel.close()
        return code

    def _run(self) -> None:
        while not self._stop.is_set():
            self._wake.wait()
            if self._stop.is_set():
                return
            self._wake.clear()
            self._resolve_doubt()
            if not self.is_mounted and not self._mount():
                # Forever, at the pace of the heartbeat: a store outlives masters.
                self._stop.wait(self._settings.ping_interval_s)
                self._wake.set()

    def _resolve_doubt(self) -> None:
        """Asks the master, over TLS, whether it knows us.

        Without an answer the next beat says the same again.
        """
        if not self._in_doubt:
            return
        self._in_doubt = False
        try:
            listed = self._stub.ListSegments(
                pool_pb2.ListSegmentsRequest(), timeout=self._settings.rpc_timeout_s
            )
        except grpc.RpcError as error:
            _LOG.debug("master: %s", error)
            return
        if any(segment.id == self.segment for segment in listed.segments):
            self.hints_refuted += 1
        else:
            self.is_mounted = False

    def _mount(self) -> bool:
        with self._call_lock:
            if self._stop.is_set():
                return False
            if not self._fresh:
                self.segment = new_segment_id()
                self._renew(self.segment)
            code = self._call(self._stub.MountSegment, self._mount_request())
            # A refused id was never mounted, and one without an answer may be asked
            # for again (mounting is idempotent); any other is not used twice.
            self._fresh = code in (None, Code.SEGMENT_ALREADY_EXISTS)
            self.is_mounted = code == Code.OK
            self._may_be_mounted = self.is_mounted or code is None
            self.mounts += self.is_mounted
            self._mounted_at = self._clock()
        if self.is_mounted:
            self.first_mount.set()
        self._tell("mount", code)
        return self.is_mounted

    def _mount_request(self) -> Any:
        settings = self._settings
        return pool_pb2.MountRequest(
            segment=pool_pb2.Segment(
                id=self.segment,
                name=settings.name,
                host_id=settings.host_id or settings.name,
                size=settings.size,
                rails=[
                    pool_pb2.Rail(name=name, address=address)
                    for name, address in self._rails.items()
                ],
                numa_node=settings.numa_node,
            ),
            client=self.client,
            beat_key=self._beat_key,
        )

    def _unmount(self, grace_s: float) -> Code:
        with self._call_lock:
            if not self._may_be_mounted:
                return Code.OK
            request = pool_pb2.UnmountRequest(
                id=self.segment, client=self.client, grace_s=grace_s
            )
            code = self._call(self._stub.UnmountSegment, request)
        self._tell("unmount", code)
        return Code.RPC_FAIL if code is None else Code(code)

    def _call(self, method: Any, request: Any) -> int | None:
        """The code of the master, None when it did not answer."""
        try:
            answer = method(request, timeout=self._settings.rpc_timeout_s)
        except grpc.RpcError as error:
            self._last_words = _in_one_line(error)
            return None
        return int(answer.code)

    def _tell(self, what: str, code: int | None) -> None:
        """Logs changes only: retries go on for ever."""
        if code == self._told:
            return
        self._told = code
        if code == Code.OK:
            _LOG.info(
                "%s %s: done, segment %016x", what, self._settings.name, self.segment
            )
        else:
            no_answer = f"no answer ({self._last_words})"
            why = no_answer if code is None else f"code {code}"
            _LOG.warning(
                "%s %s at %s: %s; trying on",
                what,
                self._settings.name,
                self._settings.master,
                why,
            )


def _in_one_line(error: grpc.RpcError) -> str:
    """What a failed call says of itself; a refused certificate is named there."""
    details = getattr(error, "details", lambda: "")()
    return " ".join(str(details).split())[:_DETAILS_MOST]


def _options(settings: StoreSettings) -> list[tuple[str, int]]:
    pace_ms = max(50, int(settings.ping_interval_s * 1000))
    return [
        *GRPC_OPTIONS,
        ("grpc.initial_reconnect_backoff_ms", 50),
        ("grpc.min_reconnect_backoff_ms", max(100, pace_ms)),
        ("grpc.max_reconnect_backoff_ms", pace_ms),
        ("grpc.use_local_subchannel_pool", 1),
        ("grpc.enable_retries", 0),
    ]
