"""What threads say of a channel that has ended never costs the connection."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import paramiko
import pytest
from paramiko.common import (
    cMSG_CHANNEL_CLOSE,
    cMSG_CHANNEL_DATA,
    cMSG_CHANNEL_EOF,
    cMSG_CHANNEL_WINDOW_ADJUST,
)

from inventory import SshSession

if TYPE_CHECKING:
    from collections.abc import Callable

    from inventory.schema import HostEntry


def _late(kind: bytes, number: int) -> paramiko.Message:
    """A message that another thread had made before the channel was closed."""
    message = paramiko.Message()
    message.add_byte(kind)
    message.add_int(number)
    if kind == cMSG_CHANNEL_DATA:
        message.add_string(b"late")
    if kind == cMSG_CHANNEL_WINDOW_ADJUST:
        message.add_int(1)
    return message


@pytest.mark.parametrize(
    "kind",
    [
        cMSG_CHANNEL_EOF,
        cMSG_CHANNEL_DATA,
        cMSG_CHANNEL_WINDOW_ADJUST,
        cMSG_CHANNEL_CLOSE,
    ],
)
def test_words_behind_a_close_do_not_end_the_connection(
    host: Callable[..., HostEntry], kind: bytes
) -> None:
    with SshSession(host()) as session:
        with session.open(["true"]) as channel:
            assert channel.wait(timeout_s=10) == 0
            raw, transport = channel._raw, channel._transport
        deadline = time.monotonic() + 5
        while not raw.closed and time.monotonic() < deadline:
            time.sleep(0.01)

        transport._send_user_message(_late(kind, raw.remote_chanid))

        assert session.run(["echo", "on"], timeout_s=10).text == "on\n"
        assert transport.is_active()


def test_a_number_that_the_host_uses_again_is_a_channel_again(
    host: Callable[..., HostEntry],
) -> None:
    with SshSession(host()) as session:
        said = [
            session.run(["cat"], stdin=b"%d" % turn, timeout_s=10).text
            for turn in range(8)
        ]

    assert said == [str(turn) for turn in range(8)]
