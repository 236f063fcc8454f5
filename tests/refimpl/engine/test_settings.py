"""Engine settings: every flat name reaches the part that it is for, scaled once."""

from __future__ import annotations

import dataclasses

import pytest

from refimpl.core.breaker import BreakerSettings
from refimpl.core.prefetch import PrefetchSettings
from refimpl.core.quarantine import QuarantineSettings
from refimpl.engine.settings import EngineSettings, hicache_settings
from refimpl.errors import UsageError
from refimpl.hicache.settings import HiCacheSettings


def test_defaults_are_the_defaults_of_the_parts():
    got = hicache_settings(EngineSettings())

    assert got == HiCacheSettings(prefill_tokens_per_s=20_000.0)


def test_every_duration_is_scaled_once_and_the_poll_never():
    got = hicache_settings(EngineSettings(time_scale=0.1))

    assert got.prefetch.base_s == pytest.approx(0.2)
    assert got.breaker.open_for_s == pytest.approx(0.5)
    assert got.prefetch.poll_s == 0.02
    assert got.slow_floor_s == 0.1
    assert got.prefill_tokens_per_s == pytest.approx(200_000.0)


@pytest.mark.parametrize(
    ("prefix", "cls", "part"),
    [
        ("prefetch_", PrefetchSettings, "prefetch"),
        ("breaker_", BreakerSettings, "breaker"),
        ("quarantine_", QuarantineSettings, "quarantine"),
        ("", HiCacheSettings, ""),
    ],
)
def test_every_flat_name_arrives(prefix, cls, part):
    names = {f.name for f in dataclasses.fields(EngineSettings)}
    for field in dataclasses.fields(cls):
        name = prefix + field.name
        if name not in names or not isinstance(getattr(EngineSettings(), name), float):
            continue
        settings = dataclasses.replace(EngineSettings(), **{name: 0.25})
        got = hicache_settings(settings)

        assert getattr(getattr(got, part) if part else got, field.name) == 0.25


def test_every_prefixed_name_is_a_field_of_its_part():
    parts = {
        "breaker_": {f.name for f in dataclasses.fields(BreakerSettings)},
        "quarantine_": {f.name for f in dataclasses.fields(QuarantineSettings)},
        "prefetch_": {f.name for f in dataclasses.fields(PrefetchSettings)}
        | {"threads"},
    }
    for field in dataclasses.fields(EngineSettings):
        for prefix, known in parts.items():
            if field.name.startswith(prefix):
                assert field.name.removeprefix(prefix) in known


@pytest.mark.parametrize("field", ["model", "revision", "dtype"])
def test_the_fingerprint_knows_what_makes_pages_differ(field):
    mine = EngineSettings()
    other = dataclasses.replace(mine, **{field: "other"})

    assert mine.fingerprint.digest() != other.fingerprint.digest()


def test_a_master_that_cannot_be_dialled_is_refused_before_anything_starts():
    with pytest.raises(UsageError, match="--master"):
        EngineSettings(master="nowhere")


def test_a_page_that_cannot_be_cut_is_refused_with_its_numbers():
    with pytest.raises(ValueError, match="9 bytes of a page cannot be cut"):
        EngineSettings(page_bytes=9, ranks=2)
