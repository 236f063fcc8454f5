"""Which packets the links of a cluster are on its hosts: by host, as nft matches.

A link that everybody uses (a rail of a store) is met where its owner listens; one that
a single role uses (its way to the master) on that role's host. Every match names the
device, so nothing of it can be on the management plane. Hosts may run several roles
that share addresses: what one of them uses is then cut for all of them, and the plan
says so.
"""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING

from chaos.errors import UsageError
from chaos.faults.nft import Match

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from chaos.hosts.host import Host, Hosts
    from chaos.systems.base import Cluster, Link

_MANAGEMENT, _CONTROL = "management", "control"


class _Found:
    """Matches by name of the host, each once."""

    def __init__(self) -> None:
        self.by_host: dict[str, list[Match]] = defaultdict(list)

    def add(self, host: Host, match: Match) -> None:
        if match not in self.by_host[host.name]:
            self.by_host[host.name].append(match)


def of_links(cluster: Cluster, links: Sequence[Link]) -> Mapping[str, Sequence[Match]]:
    """Each link where it can be met without touching others."""
    found, hosts = _Found(), _hosts_of(cluster)
    for link in links:
        if link.user and _has(hosts, link.user):
            host = hosts.of(link.user)
            found.add(host, _at_user(host, link))
        else:
            host = hosts.of(link.owner)
            found.add(host, at_owner(host, link))
    return found.by_host


def at_receivers(
    cluster: Cluster, links: Sequence[Link]
) -> Mapping[str, Sequence[Match]]:
    """Each link at both of its ends: with its owner, and with all who may use it."""
    found, hosts = _Found(), _hosts_of(cluster)
    for link in links:
        owner = hosts.of(link.owner)
        single = [hosts.of(link.user)] if _has(hosts, link.user) else []
        for user in single or hosts.all:
            if user.name != owner.name and _device_for(user, link):
                found.add(user, _at_user(user, link))
        for user in single:
            remote = user.addresses[_plane_key(link)]
            found.add(owner, at_owner(owner, link, remote=remote))
        if not single:
            found.add(owner, at_owner(owner, link))
    return found.by_host


def of_partition(
    cluster: Cluster, role: str, *, from_: str = "", plane: str = ""
) -> Mapping[str, Sequence[Match]]:
    """What a role says and hears, met on its own host.

    From everybody and on the data plane its rails are silent as a whole, unless other
    roles of the host use them too.
    """
    found, hosts = _Found(), _hosts_of(cluster)
    host = hosts.of(role)
    for link in cluster.links:
        if plane not in ("", link.plane):
            continue
        if link.owner == role and (not from_ or link.user in ("", from_)):
            for remote in _remotes(hosts, link, from_):
                found.add(host, at_owner(host, link, remote=remote))
        elif _uses(link, role, from_) and _device_for(host, link):
            found.add(host, _at_user(host, link))
    if not from_ and plane in ("", "data") and len(host.roles) == 1:
        for key in host.rails:
            found.add(host, Match(device=host.devices[key]))
    return found.by_host


def at_owner(host: Host, link: Link, *, remote: str = "") -> Match:
    """The listening end of a link."""
    address, port = _socket(link.upstream)
    return Match(
        device=_device_of(host, address, link),
        local=address,
        local_port=port,
        remote=remote,
    )


def device_of(host: Host, link: Link) -> str:
    """The device of the owner's host that a link comes in by."""
    return _device_of(host, _socket(link.upstream)[0], link)


def _at_user(host: Host, link: Link) -> Match:
    """The connecting end of a link, on the device that leads to it."""
    address, port = _socket(link.upstream)
    return Match(device=_device_for(host, link), remote=address, remote_port=port)


def _uses(link: Link, role: str, from_: str) -> bool:
    """Whether a role connects through a link that it does not own."""
    if link.owner == role or (from_ and link.owner != from_):
        return False
    return link.user == role or (bool(from_) and not link.user)


def _remotes(hosts: Hosts, link: Link, from_: str) -> list[str]:
    """The addresses of the one other side, or "" for any."""
    if not from_:
        return [""]
    other = hosts.of(from_)
    keys = other.rails if link.plane == "data" else (_CONTROL,)
    return [other.addresses[key] for key in keys if key in other.addresses]


def _plane_key(link: Link) -> str:
    return link.rail if link.plane == "data" else _CONTROL


def _device_for(host: Host, link: Link) -> str:
    """The device over which a host reaches a link; "" where it has none such."""
    return host.devices.get(_plane_key(link), "")


def _device_of(host: Host, address: str, link: Link) -> str:
    """The device that has an address, which must not be the management's."""
    keys = [key for key, found in host.addresses.items() if found == address]
    planes = [key for key in keys if key != _MANAGEMENT] or [_plane_key(link)]
    device = host.devices.get(planes[0], "")
    if not device:
        raise UsageError(f"{link.name}: no device of {host.name} has {address}")
    return device


def _has(hosts: Hosts, role: str) -> bool:
    return any(role in host.roles for host in hosts.all)


def _hosts_of(cluster: Cluster) -> Hosts:
    if cluster.hosts is None:
        raise UsageError("this target has no hosts of its own")
    return cluster.hosts


def _socket(text: str) -> tuple[str, int]:
    address, _, port = text.rpartition(":")
    return address.strip("[]"), int(port)
