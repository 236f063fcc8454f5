from __future__ import annotations

import select

from refimpl.transfer.cancel import Cancel


def readable(cancel):
    return bool(select.select([cancel], [], [], 0)[0])


def test_setting_makes_it_readable_for_ever():
    with Cancel() as cancel:
        assert not readable(cancel)
        assert not cancel.is_set()

        cancel.set()
        cancel.set()

        assert cancel.is_set()
        assert readable(cancel)
        assert readable(cancel)


def test_callbacks_are_called_once_and_may_be_taken_back():
    calls = []

    def first():
        calls.append("first")

    def second():
        calls.append("second")

    with Cancel() as cancel:
        cancel.call_when_set(first)
        cancel.call_when_set(second)
        cancel.forget(second)
        cancel.set()
        cancel.set()
        cancel.call_when_set(lambda: calls.append("late"))

    assert calls == ["first", "late"]


def test_it_may_be_set_after_it_was_closed():
    cancel = Cancel()
    cancel.close()
    cancel.close()

    cancel.set()

    assert cancel.is_set()
    assert cancel.fileno() == -1
