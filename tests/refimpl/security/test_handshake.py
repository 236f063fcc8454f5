"""The two halves of the handshake against each other, and against those who cheat."""

from __future__ import annotations

import pytest

from refimpl.core.codes import Code, Outcome, outcome_of
from refimpl.security.handshake import (
    GREETING,
    HELLO,
    CallerHandshake,
    HandshakeRefused,
    StoreHandshake,
    greeting_without_secret,
)
from refimpl.security.secret import Secret

SECRET = Secret(b"the secret of this cluster")
OTHER = Secret(b"the secret of another one")
SEGMENT = 0x7777


def _code(caller: CallerHandshake, greeting: bytes) -> Code:
    with pytest.raises(HandshakeRefused) as caught:
        caller.answer(greeting)
    return caught.value.code


def test_who_shares_the_secret_is_admitted():
    caller = CallerHandshake(SECRET, SEGMENT)
    store = StoreHandshake(SECRET, caller.hello, SEGMENT)

    assert store.admits(caller.answer(store.greeting))


def test_a_store_with_another_secret_proves_nothing():
    caller = CallerHandshake(SECRET, SEGMENT)
    store = StoreHandshake(OTHER, caller.hello, SEGMENT)

    assert _code(caller, store.greeting) == Code.NOT_AUTHENTICATED


def test_a_store_without_a_secret_proves_nothing():
    caller = CallerHandshake(SECRET, SEGMENT)

    assert _code(caller, greeting_without_secret(SEGMENT)) == Code.NOT_AUTHENTICATED


def test_a_caller_with_another_secret_is_not_admitted():
    caller, liar = CallerHandshake(SECRET, SEGMENT), CallerHandshake(OTHER, SEGMENT)
    store = StoreHandshake(SECRET, caller.hello, SEGMENT)
    liars = StoreHandshake(OTHER, liar.hello, SEGMENT)

    assert not store.admits(liar.answer(liars.greeting))


def test_another_segment_is_told_and_proved():
    caller = CallerHandshake(SECRET, SEGMENT)
    store = StoreHandshake(SECRET, caller.hello, SEGMENT + 1)

    assert store.code == Code.SEGMENT_NOT_FOUND
    assert _code(caller, store.greeting) == Code.SEGMENT_NOT_FOUND


def test_another_segment_of_a_liar_is_not_believed():
    caller = CallerHandshake(SECRET, SEGMENT)
    store = StoreHandshake(OTHER, caller.hello, SEGMENT + 1)

    assert _code(caller, store.greeting) == Code.NOT_AUTHENTICATED


def test_every_flipped_bit_of_a_greeting_is_noticed():
    caller = CallerHandshake(SECRET, SEGMENT)
    greeting = StoreHandshake(SECRET, caller.hello, SEGMENT).greeting
    unread = {4, 5}  # two bytes that are reserved
    for at in set(range(GREETING.size)) - unread:
        bent = bytearray(greeting)
        bent[at] ^= 1

        assert _code(caller, bent) == Code.NOT_AUTHENTICATED, at


def test_every_flipped_bit_of_what_was_asked_is_noticed():
    """Somebody between them changes the hello: the store answers something else."""
    caller = CallerHandshake(SECRET, SEGMENT)
    for at in range(8, HELLO.size):
        bent = bytearray(caller.hello)
        bent[at] ^= 1
        store = StoreHandshake(SECRET, bytes(bent), SEGMENT)

        assert _code(caller, store.greeting) == Code.NOT_AUTHENTICATED, at


def test_a_recorded_proof_is_worth_nothing_on_another_connection():
    caller = CallerHandshake(SECRET, SEGMENT)
    first = StoreHandshake(SECRET, caller.hello, SEGMENT)
    recorded = caller.answer(first.greeting)
    again = StoreHandshake(SECRET, caller.hello, SEGMENT)

    assert not again.admits(recorded)
    assert _code(CallerHandshake(SECRET, SEGMENT), first.greeting) == (
        Code.NOT_AUTHENTICATED
    )


def test_a_stores_own_proof_cannot_be_sent_back_to_it():
    caller = CallerHandshake(SECRET, SEGMENT)
    store = StoreHandshake(SECRET, caller.hello, SEGMENT)
    proof = GREETING.unpack(store.greeting)[-1]

    assert not store.admits(proof)


def test_a_store_that_proves_nothing_is_a_fault_like_any_other():
    assert outcome_of(Code.NOT_AUTHENTICATED) is Outcome.FAULT
