"""The service processes of a node, as subjects of rules."""

from __future__ import annotations

from typing import TYPE_CHECKING

from checks.facts import Unread
from checks.parse.services import Service, services
from checks.rules.declare import Subject

if TYPE_CHECKING:
    from collections.abc import Callable

    from checks.node import Node

_MASTERS = ("mooncake_master", "etcd")


def program(service: Service) -> str:
    """The name of its program; of an interpreter, the script or module it runs."""
    words = [word.rsplit("/", 1)[-1] for word in service.argv]
    if not words:
        return ""
    if words[0].startswith("python") and len(words) > 1:
        named = [word for word in words[1:] if not word.startswith("-")]
        return named[0] if named else words[0]
    return words[0]


def is_master(service: Service) -> bool:
    """A process that registers no memory and opens no RDMA device."""
    return program(service).startswith(_MASTERS)


def each_store(leaf: str) -> Callable[[Node], list[Subject[Service]]]:
    """Processes that register memory and whose `/proc/<pid>/leaf` was looked at."""

    def over(node: Node) -> list[Subject[Service]]:
        facts = node.facts
        found = [
            Subject(item=each, label=each.label, key=program(each), touches=touch(each))
            for each in services(facts)
            if not is_master(each) and facts.matching(f"/proc/{each.pid}/{leaf}")
        ]
        if not found:
            path = f"/proc/<pid>/{leaf}"
            raise Unread("missing", path, "no process of a service was read")
        return found

    return over


def touch(service: Service) -> frozenset[str]:
    """What a finding about a process touches: that process."""
    return frozenset({f"pid {service.pid}"})
