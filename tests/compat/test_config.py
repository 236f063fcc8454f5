from __future__ import annotations

import pytest

from refimpl.compat.config import ObjectDataType, ReplicateConfig, SoftPinAction
from refimpl.core.codes import Code


def test_the_defaults_are_upstreams():
    config = ReplicateConfig()

    assert str(config) == (
        "ReplicateConfig: { replica_num: 1, nof_replica_num: 0, dfs_replica_num: 0, "
        "soft_pin_action: PRESERVE, soft_pin_ttl_ms: default, with_hard_pin: False, "
        "preferred_segments: [], preferred_nof_segments: [], preferred_segment: , "
        "prefer_alloc_in_same_node: False, data_type: UNKNOWN }"
    )
    assert config.group_ids is None
    assert config.refusal() == Code.OK


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("replica_num", -1),
        ("replica_num", "2"),
        ("replica_num", True),
        ("soft_pin_ttl_ms", -1),
        ("soft_pin_ttl_ms", 1 << 64),
        ("soft_pin_action", 1),
        ("with_hard_pin", 1),
        ("preferred_segment", None),
        ("preferred_segments", "host:1"),
        ("preferred_segments", [1]),
        ("data_type", 0),
        ("group_ids", [1]),
    ],
)
def test_a_value_of_a_wrong_type_is_refused_where_it_is_assigned(field, value):
    config = ReplicateConfig()
    before = getattr(config, field)
    with pytest.raises(TypeError, match=field):
        setattr(config, field, value)

    assert getattr(config, field) == before


def test_an_unknown_field_is_an_attribute_error():
    with pytest.raises(AttributeError, match="replicas_num"):
        ReplicateConfig().replicas_num = 2


def test_a_ttl_may_be_taken_back():
    config = ReplicateConfig()
    config.soft_pin_ttl_ms = (1 << 64) - 1
    config.soft_pin_ttl_ms = None

    assert config.soft_pin_ttl_ms is None


def test_enumerations_print_as_upstreams_do():
    assert str(SoftPinAction.ENABLE) == "SoftPinAction.ENABLE"
    assert str(ObjectDataType.KVCACHE) == "ObjectDataType.KVCACHE"


def test_the_preferred_segment_is_first_and_not_named_twice():
    config = ReplicateConfig()
    config.preferred_segments = ["a:1", "b:2"]
    config.preferred_segment = "b:2"

    assert config.preferred == ("b:2", "a:1")


def test_a_hard_pin_outweighs_a_soft_one():
    config = ReplicateConfig()
    config.soft_pin_action = SoftPinAction.ENABLE
    soft = config.pin
    config.with_hard_pin = True

    assert (soft, config.pin) == ("soft", "hard")
