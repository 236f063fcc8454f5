"""`mlnx_qos`: every part is read only if it is whole."""

from __future__ import annotations

import pytest

from checks.parse.garbled import Garbled
from checks.parse.mlnx_qos import parse_qos

TEXT = """\
DCBX mode: OS controlled
Priority trust state: dscp
dscp2prio mapping:
\tprio:0 dscp:07,06,05,04,03,02,01,00,
\tprio:3 dscp:31,30,29,28,27,26,
\tprio:3 dscp:25,24,
Receive buffer size (bytes): 20016,156096,0,0,0,0,0,0,max_buffer_size=1027728
Cable len: 7
PFC configuration:
\tpriority    0   1   2   3   4   5   6   7
\tenabled     0   0   0   1   0   1   0   0
\tbuffer      0   0   0   1   0   0   0   0
tc: 0 ratelimit: unlimited, tsa: vendor
\t priority:  1
"""


def test_wrapped_rows_of_one_priority_belong_together():
    found = parse_qos(TEXT, "ens1")

    assert found.dscp_prio[26] == found.dscp_prio[24] == 3
    assert found.pfc == (3, 5)
    assert (found.trust, found.dcbx, found.cable) == ("dscp", "OS controlled", "7")
    assert not found.lldpad_runs


def test_a_warning_before_it_is_read_past():
    warning = "****** WARNING: lldpad service is running and may overwrite ******\n"

    found = parse_qos(warning + TEXT, "ens1")

    assert found.lldpad_runs
    assert found.trust == "dscp"


def test_trust_pcp_prints_no_mapping():
    mapping = TEXT[TEXT.index("dscp2prio") : TEXT.index("Receive")]
    text = TEXT.replace("state: dscp", "state: pcp").replace(mapping, "")

    assert parse_qos(text, "ens1").dscp_prio is None


@pytest.mark.parametrize("at", range(len(TEXT)))
def test_a_cut_gives_a_part_whole_or_not_at_all(at):
    whole = parse_qos(TEXT, "ens1")
    try:
        found = parse_qos(TEXT[:at], "ens1")
    except Garbled:
        return

    assert found.pfc in {None, whole.pfc}
    assert found.dscp_prio in (None, whole.dscp_prio)
    assert found.trust in {"", whole.trust}
    assert found.dcbx in {"", whole.dcbx}


@pytest.mark.parametrize("text", ["", "Usage: mlnx_qos", "Priority trust state: ds"])
def test_other_text_is_refused(text):
    with pytest.raises(Garbled):
        parse_qos(text, "ens1")
