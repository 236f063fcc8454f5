"""A healthy cohort of sixteen nodes with eight rails each, as facts documents.

Every part in `healthy_parts/` adds what the checks of its group read, and the
single-fault mutants of it. Nothing here is random: node n and rail r decide all.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass
from functools import cache, cached_property
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

from checks.facts import Facts

PARTS = Path(__file__).parent / "healthy_parts"
NODES = 16
RAILS = 8
PSID = "MT_0000000838"
FIRMWARE = "28.43.2566"
KERNEL = "6.8.0-60-generic"
SEGMENT_BYTES = 64 << 30


@dataclass(frozen=True)
class RailPlan:
    """One rail of one node."""

    node: int
    index: int

    @property
    def name(self):
        return f"rail{self.index}"

    @property
    def device(self):
        return f"mlx5_{self.index}"

    @property
    def netdev(self):
        return f"ens{self.index + 1}f0np0"

    @property
    def numa(self):
        return self.index // 4

    @property
    def bdf(self):
        return f"0000:{0x1A + 0x10 * self.index:02x}:00.0"

    @property
    def gpu_bdf(self):
        return f"0000:{0x1B + 0x10 * self.index:02x}:00.0"

    @property
    def bridge_bdf(self):
        """The switch port above both the NIC and its GPU."""
        return f"0000:{0x17 + 0x10 * self.index:02x}:00.0"

    @property
    def mac(self):
        return f"02:00:5e:{self.index:02x}:00:{self.node + 1:02x}"

    @property
    def guid(self):
        return f"0200:5eff:fe{self.index:02x}:{self.node + 1:04x}"

    @property
    def ip(self):
        return f"198.18.{self.index}.{self.node + 1}"

    @property
    def prefixlen(self):
        return 24

    @property
    def network(self):
        return f"198.18.{self.index}.0/24"

    @property
    def gateway(self):
        return f"198.18.{self.index}.254"

    @property
    def table(self):
        return str(101 + self.index)

    @property
    def ifindex(self):
        return 10 + self.index

    @property
    def link_local(self):
        return f"fe80::5eff:fe{self.index:02x}:{self.node + 1:x}"

    @property
    def gids(self):
        """(index, gid in full, type) as mlx5 fills its table."""
        local = f"fe80:0000:0000:0000:0000:5eff:fe{self.index:02x}:{self.node + 1:04x}"
        octets = [int(part) for part in self.ip.split(".")]
        mapped = "0000:0000:0000:0000:0000:ffff:{:02x}{:02x}:{:02x}{:02x}".format(
            *octets
        )
        types = ("IB/RoCE v1", "RoCE v2")
        return tuple(
            (at, gid, types[at % 2])
            for at, gid in enumerate((local, local, mapped, mapped))
        )


@dataclass(frozen=True)
class Plan:
    """One node; everything a part may want to know of it."""

    index: int

    @property
    def name(self):
        return f"node-{self.index:02d}"

    hostname = name
    mgmt = "eno1"
    pid = 4242
    segment_bytes = SEGMENT_BYTES
    psid = PSID
    firmware = FIRMWARE
    kernel = KERNEL

    @property
    def ip(self):
        """Its management address."""
        return f"192.0.2.{self.index + 1}"

    @property
    def mgmt_mac(self):
        return f"02:00:5e:ff:00:{self.index + 1:02x}"

    master = "192.0.2.200"
    mgmt_gateway = "192.0.2.254"
    mgmt_ifindex = 2

    @property
    def rails(self):
        return tuple(RailPlan(self.index, rail) for rail in range(RAILS))

    @property
    def peers(self):
        return tuple(Plan(other) for other in range(NODES) if other != self.index)


@dataclass(frozen=True)
class Mutant:
    """One fault, and the one finding that must name it."""

    check: str
    change: object
    subject: object = ""
    status: str = "FAIL"
    node: str = "node-07"
    fleet: bool = False
    part: str = ""
    note: str = ""
    log: bool = False
    """Its evidence is one line of a log without an end: a cut cannot be seen."""

    def __str__(self):
        return f"{self.check}{f'-{self.note}' if self.note else ''}"


class Healthy:
    """The cohort; documents are built once and copied on demand."""

    plans = tuple(Plan(index) for index in range(NODES))

    @cached_property
    def _documents(self):
        return tuple(self._document(plan) for plan in self.plans)

    def documents(self):
        """Fresh copies, safe to change."""
        return copy.deepcopy(list(self._documents))

    def document(self, index=7):
        return copy.deepcopy(self._documents[index])

    def mutated(self, mutant):
        """The cohort with one fault; untouched nodes are shared, not copied."""
        documents = list(self._documents)
        if mutant.fleet:
            documents = copy.deepcopy(documents)
            mutant.change(documents, self.plans)
        else:
            at = self._index(mutant)
            documents[at] = copy.deepcopy(documents[at])
            mutant.change(documents[at], self.plans[at])
        _measure(documents)
        return documents

    def parsed(self, documents):
        """The same documents for `judge`; untouched ones are parsed only once."""
        return [
            self._facts(at) if document is self._documents[at] else document
            for at, document in enumerate(documents)
        ]

    @cache  # noqa: B019 - there is one cohort for all tests
    def _facts(self, at):
        return Facts(self._documents[at])

    def subject(self, mutant):
        plan = self.plans[self._index(mutant)]
        return mutant.subject(plan) if callable(mutant.subject) else mutant.subject

    def _index(self, mutant):
        return next(p.index for p in self.plans if p.name == mutant.node)

    def _document(self, plan):
        cmds, files, environ, verbs = {}, {}, {}, {}
        for name, part in parts().items():
            _merge(cmds, getattr(part, "cmds", _nothing)(plan), name)
            _merge(files, getattr(part, "files", _nothing)(plan), name)
            environ.update(getattr(part, "env", _nothing)(plan))
            _merge(verbs, getattr(part, "verbs", _nothing)(plan), name)
        path = f"/proc/{plan.pid}/environ"
        _merge(files, {path: "".join(f"{k}={v}\0" for k, v in environ.items())}, path)
        document = {
            "schema": "preflight.facts/1",
            "collector": {
                "version": "1",
                "euid": 0,
                "duration_ms": 900,
                "bracket": [1789999999.5, 1790000000.5],
            },
            "node": {
                "hostname": plan.hostname,
                "boot_id": f"boot-{plan.index}",
                "virt": "none",
                "wall": {"t": 1790000000.0},
                "role": "store",
            },
            "cmds": {line: command(entry) for line, entry in cmds.items()},
            "files": {path: file(entry) for path, entry in files.items()},
            **({"verbs": verbs} if verbs else {}),
        }
        _measure([document])
        return document


def command(entry):
    """Text is its output; (rc, stdout, stderr) as it says; a list is (t, sample)."""
    if isinstance(entry, str):
        entry = (0, entry, "")
    if isinstance(entry, tuple):
        rc, stdout, stderr = (*entry, "", "")[:3]
        return {"rc": rc, "stdout": stdout, "stderr": stderr, "ms": 1, "timeout": False}
    if isinstance(entry, list):
        return [{**command(each), "t": t} for t, each in entry]
    return entry


def file(entry):
    """Text is its text; a tuple is a directory; a list is (t, sample)."""
    if isinstance(entry, str):
        return {"text": entry}
    if isinstance(entry, tuple):
        return {"entries": list(entry)}
    if isinstance(entry, list):
        return [{**file(each), "t": t} for t, each in entry]
    return entry


@cache
def parts():
    """The modules of `healthy_parts`, by name; core first."""
    found = {}
    for path in sorted(PARTS.glob("*.py"), key=lambda p: (p.stem != "core", p.stem)):
        spec = spec_from_file_location(f"healthy_parts_{path.stem}", path)
        module = module_from_spec(spec)
        spec.loader.exec_module(module)
        found[path.stem] = module
    return found


def mutants():
    """Every mutant of every part."""
    return [
        Mutant(**{"part": name, **each})
        for name, part in parts().items()
        for each in getattr(part, "MUTANTS", ())
    ]


def _measure(documents):
    """Writes the true length beside every output, as the collector does."""
    for document in documents:
        for entry in document["cmds"].values():
            for each in entry if isinstance(entry, list) else [entry]:
                each["bytes"] = len(each.get("stdout", "").encode())


def _merge(into, more, part):
    """Adds what a part brings; two parts may not say different things of one source."""
    for key, value in more.items():
        assert into.setdefault(key, value) == value, f"{part} contradicts: {key}"


def _nothing(plan):
    return {}
