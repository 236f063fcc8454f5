from __future__ import annotations

import os
import signal

import pytest

from chaos.scenario.interrupt import Interrupted, Interrupts


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_unwinds_like_ctrl_c_and_has_its_code(number) -> None:
    with pytest.raises(Interrupted) as ended, Interrupts():
        os.kill(os.getpid(), number)

    assert ended.value.exit_code == 128 + number
    assert isinstance(ended.value, KeyboardInterrupt)


def careless() -> None:
    try:
        os.kill(os.getpid(), signal.SIGTERM)
    except Exception:
        pytest.fail("swallowed")


def test_no_except_exception_can_swallow_it() -> None:
    with Interrupts(), pytest.raises(Interrupted):
        careless()


def test_the_second_signal_does_not_wait() -> None:
    codes = []
    with Interrupts(hard_exit=codes.append):
        with pytest.raises(Interrupted):
            os.kill(os.getpid(), signal.SIGTERM)
        os.kill(os.getpid(), signal.SIGTERM)

    assert codes == [143]


def test_the_handlers_are_given_back() -> None:
    before = signal.getsignal(signal.SIGTERM)

    with Interrupts():
        assert signal.getsignal(signal.SIGTERM) != before

    assert signal.getsignal(signal.SIGTERM) == before
