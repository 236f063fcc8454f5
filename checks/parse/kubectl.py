"""`kubectl get KIND [NAME] -o json`: objects, one by one or in lists.

An object without the annotations of Multus is not an object whose annotations were not
read: whatever parses is whole, whatever is cut off does not parse. Annotations hold
JSON as text: the network status is a list, the request a list or `ns/name@iface,...`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from ipaddress import ip_interface
from typing import Any

from checks.facts import Facts, Result, Unread, derived
from checks.parse.garbled import Garbled

NETWORKS = "k8s.v1.cni.cncf.io/networks"
STATUS = ("k8s.v1.cni.cncf.io/network-status", "k8s.v1.cni.cncf.io/networks-status")
_DONE = frozenset({"Succeeded", "Failed"})

Object = Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Attachment:
    """One network of a pod, as Multus says that it was attached."""

    name: str
    interface: str
    ips: tuple[str, ...]
    is_default: bool
    mtu: int | None
    rdma_device: str


@derived
def objects(facts: Facts, kind: str) -> tuple[Object, ...]:
    """Every object of a kind that was asked for, lists opened, none twice.

    Unread where nobody asked, or where any answer is not whole.
    """
    asked = _asked(facts, kind)
    found: dict[tuple[str, str], Object] = {}
    refused: Unread | None = None
    for result in asked:
        try:
            loaded = _loaded(result)
        except Unread as error:
            refused = error
            continue
        for each in loaded:
            found.setdefault(key_of(each), each)
    if refused is not None:
        raise refused
    return tuple(found[key] for key in sorted(found))


def is_asked(facts: Facts) -> bool:
    """Whether anybody asked Kubernetes anything."""
    return bool(facts.find("kubectl"))


def key_of(each: Object) -> tuple[str, str]:
    """Namespace and name."""
    meta = part(each, "metadata")
    return str(meta.get("namespace", "")), str(meta.get("name", ""))


def label_of(each: Object) -> str:
    """`namespace/name`, or the name alone."""
    return "/".join(word for word in key_of(each) if word)


def part(each: Any, *names: str) -> Mapping[str, Any]:
    """A mapping inside an object; empty where it is not there."""
    for name in names:
        each = each.get(name) if isinstance(each, Mapping) else None
    return each if isinstance(each, Mapping) else {}


def items(each: Any, name: str) -> list[Mapping[str, Any]]:
    """A list of mappings inside an object; empty where it is not there."""
    found = each.get(name) if isinstance(each, Mapping) else None
    every = found if isinstance(found, list) else []
    return [one for one in every if isinstance(one, Mapping)]


@derived
def own_node(facts: Facts) -> Object:
    """The Node object of this node."""
    every = objects(facts, "node")
    hostname = facts.said("hostname")
    named = [n for n in every if _same_host(key_of(n)[1], hostname)]
    if named or len(every) == 1:
        return (named or list(every))[0]
    raise Unread("missing", f"kubectl get node {hostname}", "no such object was read")


@derived
def own_pods(facts: Facts) -> tuple[Object, ...]:
    """Pods of this node that have not ended."""
    every = objects(facts, "pod")
    hostname = facts.said("hostname")
    placed = {str(part(pod, "spec").get("nodeName", "")) for pod in every} - {""}
    here = {name for name in placed if _same_host(name, hostname)}
    return tuple(
        pod
        for pod in every
        if str(part(pod, "status").get("phase", "")) not in _DONE
        and (not here or str(part(pod, "spec").get("nodeName", "")) in {"", *here})
    )


def annotations_of(pod: Object) -> Mapping[str, Any]:
    return part(pod, "metadata", "annotations")


def requested(pod: Object) -> tuple[str, ...]:
    """Names of the networks a pod asks for besides the default one, with repeats."""
    text = str(annotations_of(pod).get(NETWORKS, "")).strip()
    if not text:
        return ()
    if text.startswith("["):
        rows = _json(text, NETWORKS)
        return tuple(str(row.get("name", "")) for row in items({"rows": rows}, "rows"))
    return tuple(
        word.strip().partition("@")[0] for word in text.split(",") if word.strip()
    )


def attachments(pod: Object) -> tuple[Attachment, ...] | None:
    """What was attached; None where Multus said nothing of it."""
    found = annotations_of(pod)
    text = next((str(found[name]) for name in STATUS if name in found), "")
    if not text.strip():
        return None
    rows = items({"rows": _json(text, STATUS[0])}, "rows")
    return tuple(_attachment(row) for row in rows)


def quantity(value: Any) -> int:
    """A whole quantity such as `8`, `1k`, `16Gi`."""
    row = re.fullmatch(r"(\d+)(m|[kMGTPE]i?|Ki)?", str(value).strip())
    if row is None:
        raise Garbled("kubectl", f"no quantity: {value!r}")
    unit = row[2] or ""
    if unit == "m":
        return int(row[1]) // 1000
    power = " kMGTPE".index(unit[0].replace("K", "k")) if unit else 0
    scale: int = (1024 if unit.endswith("i") else 1000) ** power
    return int(row[1]) * scale


def _attachment(row: Mapping[str, Any]) -> Attachment:
    mtu = row.get("mtu")
    pci = part(row, "device-info", "pci")
    return Attachment(
        name=str(row.get("name", "")),
        interface=str(row.get("interface", "")),
        ips=_addresses(row.get("ips")),
        is_default=row.get("default") is True,
        mtu=mtu if isinstance(mtu, int) else None,
        rdma_device=str(pci.get("rdma-device", "")),
    )


def _addresses(told: Any) -> tuple[str, ...]:
    if told is None:
        return ()
    if not isinstance(told, list):
        raise Garbled(STATUS[0], f"ips is no list: {told!r:.60}")
    for each in told:
        try:
            ip_interface(each)
        except (ValueError, TypeError):
            raise Garbled(STATUS[0], f"no address: {each!r:.60}") from None
    return tuple(map(str, told))


def _asked(facts: Facts, kind: str) -> list[Result]:
    found = list(facts.find("kubectl", "get", kind))
    if not found:
        raise Unread("missing", f"kubectl get {kind}", "not collected")
    return found


def _loaded(result: Result) -> list[Object]:
    """The objects of one answer; a server without that kind has none of it."""
    if result.rc != 0 and "doesn't have a resource type" in result.stderr:
        result.ended()
        return []
    loaded = result.json()
    if not isinstance(loaded, Mapping):
        raise Garbled(result.line, "no object")
    if isinstance(loaded.get("items"), list):
        return items(loaded, "items")
    if not loaded:
        raise Garbled(result.line, "an empty object")
    return [loaded]


def _json(text: str, where: str) -> Any:
    try:
        return json.loads(text)
    except ValueError as error:
        raise Garbled(where, f"no JSON: {error}") from None


def _same_host(one: str, other: str) -> bool:
    return bool(one) and one.partition(".")[0] == other.partition(".")[0]
