from __future__ import annotations

import pytest

from refimpl.errors import UsageError
from refimpl.settings import in_real_time, load
from refimpl.store.settings import RailSpec, StoreSettings


def test_a_rail_is_told_under_the_address_that_is_advertised():
    assert RailSpec.parse("a=127.0.0.1:0,127.0.0.2:9") == RailSpec(
        name="a", listen="127.0.0.1:0", advertise="127.0.0.2:9"
    )
    assert RailSpec.parse("a=127.0.0.1:0").advertise == ""


@pytest.mark.parametrize("text", ["", "a", "=1.2.3.4:5", "a=", "a=nowhere", "a=h:x"])
def test_what_is_no_rail_is_refused(text):
    with pytest.raises((ValueError, UsageError)):
        StoreSettings(rail=(text,))


def test_two_rails_of_one_name_are_refused():
    with pytest.raises(ValueError, match="named twice"):
        StoreSettings(rail=("a=127.0.0.1:0", "a=127.0.0.2:0"))


@pytest.mark.parametrize("field", ["master", "heartbeat"])
def test_an_address_that_cannot_be_dialled_is_refused(field):
    with pytest.raises(UsageError, match=f"--{field}.*HOST:PORT"):
        StoreSettings(**{field: "nowhere"})


def test_a_store_without_a_name_is_refused():
    with pytest.raises(ValueError, match="--name"):
        StoreSettings(name="")


@pytest.mark.parametrize("field", ["ping_interval_s", "rpc_timeout_s", "idle_s"])
@pytest.mark.parametrize("value", ["0", "-1"])
def test_no_patience_at_all_is_refused_instead_of_spinning(field, value):
    with pytest.raises(UsageError, match="too small"):
        load(StoreSettings, "store", flags={field: value}, environ={})


def test_durations_scale_and_patience_with_rpc_does_not():
    real = in_real_time(StoreSettings(time_scale=0.1))

    assert real.ping_interval_s == pytest.approx(0.1)
    assert real.grace_s == pytest.approx(0.5)
    assert real.rpc_timeout_s == 2.0


def test_nothing_listens_wider_than_loopback_unless_asked():
    settings = StoreSettings()

    assert all(rail.listen.startswith("127.") for rail in settings.rails)
    assert settings.admin_listen.startswith("127.")
