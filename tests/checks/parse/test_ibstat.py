"""`ibstat`: devices, ports, words."""

from __future__ import annotations

import pytest

from checks.facts import Facts, Unread
from checks.parse.garbled import Garbled
from checks.parse.ibstat import ibstat, parse_ibstat

TEXT = """\
CA 'mlx5_0'
\tCA type: MT4129
\tNumber of ports: 1
\tFirmware version: 28.39.1002
\tHardware version: 0
\tNode GUID: 0xa088c20300e2b1ac
\tSystem image GUID: 0xa088c20300e2b1ac
\tPort 1:
\t\tState: Active
\t\tPhysical state: LinkUp
\t\tRate: 400
\t\tBase lid: 0
\t\tLMC: 0
\t\tSM lid: 0
\t\tCapability mask: 0x00010000
\t\tPort GUID: 0xa288c2fffee2b1ac
\t\tLink layer: Ethernet
CA 'mlx5_9'
\tCA type: MT4129
\tNumber of ports: 2
\tFirmware version: 28.39.2048
\tPort 1:
\t\tState: Initializing
\t\tPhysical state: LinkErrorRecovery
\t\tLink layer: InfiniBand
\tPort 2:
\t\tState: Down
\t\tPhysical state: Polling
\t\tLink layer: InfiniBand
"""


def test_ports_belong_to_their_device_and_are_spelled_as_netlink_does():
    found = parse_ibstat(TEXT)

    assert found["mlx5_0"].firmware == "28.39.1002"
    port = found["mlx5_0"].ports[1]
    assert (port.state, port.physical) == ("ACTIVE", "LINK_UP")
    assert port.link_layer == "Ethernet"
    first, second = (found["mlx5_9"].ports[at] for at in (1, 2))
    assert (first.state, first.physical) == ("INIT", "LINK_ERROR_RECOVER")
    assert (second.state, second.link_layer) == ("DOWN", "InfiniBand")


def test_an_excerpt_without_a_line_for_the_port_is_its_first_port():
    text = "CA 'mlx5_9'\nState: Down\nPhysical state: Polling\nLink layer: InfiniBand\n"

    port = parse_ibstat(text)["mlx5_9"].ports[1]

    assert (port.state, port.physical) == ("DOWN", "POLLING")


def test_a_text_cut_anywhere_within_its_last_device_is_refused():
    start = TEXT.index("CA 'mlx5_9'") + len("CA 'mlx5_9'")

    for end in range(start, len(TEXT) - 1):
        with pytest.raises(Garbled):
            parse_ibstat(TEXT[:end])


def test_one_port_of_a_device_is_told_with_a_colon():
    text = "CA: 'mlx5_9'\nPort 2:\n\tState: Down\n\tLink layer: Ethernet\n"

    assert parse_ibstat(text)["mlx5_9"].ports[2].state == "DOWN"


@pytest.mark.parametrize("text", ["", "ibpanic: [4711] main: stat of IB device\n"])
def test_a_text_that_names_no_device_is_refused(text):
    with pytest.raises(Garbled):
        parse_ibstat(text)


def test_a_state_that_nobody_knows_is_refused():
    with pytest.raises(Garbled):
        parse_ibstat(TEXT.replace("State: Active", "State: Acti"))


@pytest.mark.parametrize("line", ["ibstat -l", "ibstat -p", "ibstat -s mlx5_0"])
def test_a_list_of_names_is_no_source(line):
    entry = {"rc": 0, "stdout": TEXT, "stderr": "", "ms": 1, "timeout": False}
    document = {"schema": "preflight.facts/1", "cmds": {line: entry}}

    with pytest.raises(Unread):
        ibstat(Facts(document))
