"""The service processes of a node, as subjects of rules."""

from __future__ import annotations

from typing import TYPE_CHECKING

from checks.facts import Unread
from checks.parse.services import Service, services
from checks.rules.declare import NotHere, Subject

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

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


def needs_service(node: Node) -> None:
    """Raises `NotHere` where the collector looked for services and found none."""
    if node.facts.collector.get("services") == 0 and node.facts.tells_something:
        raise NotHere("no process of Mooncake or of an engine runs here yet")


def service_env(node: Node) -> Mapping[str, str]:
    """The variables of the services; Unread where none of them could be read."""
    needs_service(node)
    every = services(node.facts)
    if not any(each.env is not None for each in every):
        kind = "denied" if every else "missing"
        raise Unread(kind, "/proc/<pid>/environ", "no environment was read")
    return node.env


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
            needs_service(node)
            path = f"/proc/<pid>/{leaf}"
            raise Unread("missing", path, "no process of a service was read")
        return found

    return over


def touch(service: Service) -> frozenset[str]:
    """What a finding about a process touches: that process."""
    return frozenset({f"pid {service.pid}"})
