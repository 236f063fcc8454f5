"""A host knows its planes."""

from __future__ import annotations

from chaos.hosts.host import Host


def test_rails_come_in_the_order_of_their_numbers():
    devices = {"management": "mgmt0", "rail10": "r10", "rail2": "r2", "rail0": "r0"}
    host = Host(name="h", roles=("store-0",), agent=None, devices=devices)

    assert host.rails == ("rail0", "rail2", "rail10")
