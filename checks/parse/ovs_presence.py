"""Whether a node runs Open vSwitch at all, from whatever tells it.

A program that is installed and was never started is no Open vSwitch: the run directory
decides, then what the programs answered, then the link `ovs-system` of the kernel's
datapath. That this link is missing proves nothing: the userspace datapath has none.
"""

from __future__ import annotations

from checks.facts import Facts, Unread, derived
from checks.parse.ip_addr import links
from checks.parse.ovs_log import events

RUN = "/run/openvswitch"
_PROGRAMS = ("ovs-vsctl", "ovs-appctl", "ovs-ofctl")


@derived
def is_present(facts: Facts) -> bool:
    """Present, or seen to be absent; Unread where nothing tells."""
    if _has_datapath(facts):
        return True
    results = [r for program in _PROGRAMS for r in facts.find(program)]
    if any(r.rc == 0 and r.stdout.strip() for r in results):
        return True
    directory = _directory(facts)
    if directory is not None:
        return directory
    if any(r.rc != 127 for r in results) or _has_log(facts):
        return True
    if results:
        return False
    raise Unread("missing", RUN, "nothing tells whether Open vSwitch runs")


def _directory(facts: Facts) -> bool | None:
    try:
        return facts.exists(RUN)
    except Unread:
        return None


def _has_log(facts: Facts) -> bool:
    try:
        return bool(events(facts))
    except Unread:
        return False


def _has_datapath(facts: Facts) -> bool:
    try:
        return "ovs-system" in links(facts)
    except Unread:
        return False
