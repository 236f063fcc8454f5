"""What a command line reads, whatever its spelling.

`ip -j rule`, `/sbin/ip -json -4 rule show` and `sudo -n ip -4 -j rule list` read the
same thing. A facts document is keyed by command lines as they were run, so a rule asks
for a *reading*: the program, its canonical words, its options and where it ran.

Words are the positional arguments in canonical spelling. Options keep their value, or
"" where they have none. `where` is "" on the host, else `netns:NAME`, `pid:PID` or
`pod:NAMESPACE/NAME` for commands run inside another network namespace.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from pathlib import PurePosixPath
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

Words = tuple[str, ...]

_VALUED: Mapping[str, frozenset[str]] = {
    "ip": frozenset({"-n", "-netns", "-f", "-family", "-b", "-batch", "-rc"}),
    "rdma": frozenset({"-f"}),
    "ovs-appctl": frozenset({"-t", "--target", "-T", "--timeout"}),
    "ovs-vsctl": frozenset(
        {"-t", "--timeout", "--db", "--columns", "-f", "--format", "-d", "--data"}
    ),
    "ovs-ofctl": frozenset({"-O", "--protocols", "-t", "--timeout"}),
    "lspci": frozenset({"-s", "-d", "-i", "-p", "-O"}),
    "mstconfig": frozenset({"-d", "--dev"}),
    "mlxreg": frozenset({"-d", "--device", "--reg_name", "--indexes", "--reg_id"}),
    "mlnx_qos": frozenset({"-i", "--interface"}),
    "ibv_devinfo": frozenset({"-d", "--ib-dev", "-i", "--ib-port"}),
    "kubectl": frozenset(
        {"-n", "--namespace", "-o", "--output", "-c", "--container", "--context"}
    ),
    "journalctl": frozenset({"-o", "--output", "-u", "--unit", "--since", "--until"}),
    "lldpctl": frozenset({"-f"}),
    "nvme": frozenset({"-o", "--output-format"}),
    "chronyc": frozenset({"-h", "-p"}),
    "systemctl": frozenset({"-p", "--property", "--type", "--state"}),
    "sudo": frozenset({"-u", "--user", "-g"}),
    "timeout": frozenset({"-k", "--kill-after", "-s", "--signal"}),
    "nsenter": frozenset({"-t", "--target"}),
    "ping": frozenset({"-c", "-W", "-w", "-M", "-s", "-I", "-i", "-Q"}),
}
_PROGRAMS: Mapping[str, str] = {"mlxconfig": "mstconfig", "show_gids.py": "show_gids"}
_IP_OBJECTS: Mapping[str, Words] = {
    "addr": ("a", "ad", "add", "addr", "addre", "addres", "address"),
    "link": ("l", "li", "lin", "link"),
    "route": ("r", "ro", "rou", "rout", "route"),
    "rule": ("ru", "rul", "rule"),
    "neigh": ("n", "ne", "nei", "neig", "neigh", "neighbor", "neighbour"),
}
_IP_CANONICAL = {
    spelling: name for name, spellings in _IP_OBJECTS.items() for spelling in spellings
}
_SHOW = frozenset({"show", "list", "ls", "lst"})
_ETHTOOL: Mapping[str, str] = {
    "-i": "driver",
    "--driver": "driver",
    "-k": "features",
    "--show-features": "features",
    "--show-offload": "features",
    "-a": "pause",
    "--show-pause": "pause",
    "-S": "statistics",
    "--statistics": "statistics",
    "--show-fec": "fec",
    "-g": "rings",
    "--show-ring": "rings",
    "-l": "channels",
    "--show-channels": "channels",
    "-m": "module",
    "--module-info": "module",
}
_OVS_TABLES: Mapping[str, str] = {
    name.lower(): name
    for name in (
        "Open_vSwitch",
        "Bridge",
        "Port",
        "Interface",
        "Controller",
        "Manager",
    )
}
_KINDS: Mapping[str, str] = {
    "no": "node",
    "nodes": "node",
    "po": "pod",
    "pods": "pod",
    "ds": "daemonset",
    "daemonsets": "daemonset",
    "ns": "namespace",
    "namespaces": "namespace",
    "cm": "configmap",
    "configmaps": "configmap",
    "netpol": "networkpolicy",
    "networkpolicies": "networkpolicy",
    "sriovnetworknodestates": "sriovnetworknodestate",
    "nicclusterpolicies": "nicclusterpolicy",
    "net-attach-def": "network-attachment-definition",
    "network-attachment-definitions": "network-attachment-definition",
    "networkattachmentdefinition": "network-attachment-definition",
    "networkattachmentdefinitions": "network-attachment-definition",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """What one command line reads."""

    line: str
    program: str
    words: Words
    options: Mapping[str, str]
    where: str = ""

    def option(self, *names: str) -> str | None:
        """The value of the first of these options that is given ("" without value)."""
        return next(
            (self.options[name] for name in names if name in self.options), None
        )

    @property
    def family(self) -> int | None:
        """4 or 6 where the line says so, else None."""
        named = self.option("-f", "-family")
        if "-4" in self.options or named == "inet":
            return 4
        return 6 if "-6" in self.options or named == "inet6" else None


@lru_cache(maxsize=65536)
def reading(line: str) -> Reading:
    """Reads one command line, arguments joined by one space."""
    words = [word for word in line.split(" ") if word]
    where, words = _unwrapped(words)
    if not words:
        return Reading(line=line, program="", words=(), options={}, where=where)
    program = _program(words[0])
    rest, options = _split(program, words[1:])
    canonical = _CANONICAL.get(program, _as_is)(rest, options)
    where = where or (
        f"netns:{options['-n']}" if program == "ip" and "-n" in options else ""
    )
    return Reading(
        line=line, program=program, words=canonical, options=options, where=where
    )


def pci_address(text: str) -> str:
    """A PCI address in full, with its domain: `1b:00.0` is `0000:1b:00.0`."""
    text = text.removeprefix("pci/").lower()
    return text if text.count(":") != 1 else f"0000:{text}"


def _program(word: str) -> str:
    name = PurePosixPath(word).name
    return _PROGRAMS.get(name, name)


def _split(program: str, words: list[str]) -> tuple[list[str], dict[str, str]]:
    """Positional words and options; clustered short flags (`-Dvvv`) are taken apart."""
    valued = _VALUED.get(program, frozenset())
    rest: list[str] = []
    options: dict[str, str] = {}
    stream = iter(words)
    for word in stream:
        if not word.startswith("-") or word in {"-", "--"}:
            rest.append(word)
        elif word in valued:
            options[word] = next(stream, "")
        elif "=" in word:
            name, _, value = word.partition("=")
            options[name] = value
        elif program in {"lspci", "ss", "journalctl"} and not word.startswith("--"):
            _cluster(word, valued, stream, options)
        else:
            options[word] = ""
    return rest, options


def _cluster(
    word: str, valued: frozenset[str], stream: object, options: dict[str, str]
) -> None:
    for letter in word[1:]:
        name = f"-{letter}"
        options[name] = next(stream, "") if name in valued else ""  # type: ignore[call-overload]


def _unwrapped(words: list[str]) -> tuple[str, list[str]]:
    """Takes sudo, timeout, env and the like off, and says where the rest runs."""
    where = ""
    for _ in range(8):
        step = _unwrap_one(words)
        if step is None:
            break
        place, words = step
        where = place or where
    return where, words


def _unwrap_one(words: list[str]) -> tuple[str, list[str]] | None:
    if not words:
        return None
    program = _program(words[0])
    if program in {"sudo", "timeout", "nsenter"}:
        return _after_options(program, words[1:])
    if program == "env" or "=" in words[0].split("/")[0]:
        rest = words[1:] if program == "env" else words
        while rest and "=" in rest[0]:
            rest = rest[1:]
        return "", rest
    if words[1:3] == ["netns", "exec"] and program == "ip" and len(words) > 4:
        return f"netns:{words[3]}", words[4:]
    if program in {"kubectl", "crictl", "docker", "podman"} and "exec" in words[:4]:
        return _inside_container(program, words)
    return None


def _after_options(program: str, words: list[str]) -> tuple[str, list[str]]:
    valued = _VALUED[program]
    where = ""
    while words and words[0].startswith("-"):
        option = words[0]
        taken = 2 if option in valued else 1
        if program == "nsenter" and option in {"-t", "--target"} and len(words) > 1:
            where = f"pid:{words[1]}"
        if program == "nsenter" and option.startswith("--net="):
            where = f"netns:{option.removeprefix('--net=')}"
        words = words[taken:]
        if option == "--":
            break
    if program == "timeout":
        words = words[1:]
    return where, words


def _inside_container(program: str, words: list[str]) -> tuple[str, list[str]]:
    rest, options = _split(program if program == "kubectl" else "kubectl", words[1:])
    rest = [word for word in rest if word != "exec"]
    namespace = options.get("-n", options.get("--namespace", ""))
    pod = rest[0] if rest else ""
    if "--" in words:
        inner = words[words.index("--") + 1 :]
    else:
        inner = words[words.index(pod) + 1 :] if pod in words else []
    return f"pod:{namespace}/{pod}".replace("pod:/", "pod:"), inner


def _as_is(rest: list[str], options: dict[str, str]) -> Words:
    return tuple(rest)


def _ip(rest: list[str], options: dict[str, str]) -> Words:
    if not rest:
        return ()
    thing = _IP_CANONICAL.get(rest[0], rest[0])
    return (thing, *[word for word in rest[1:2] if word not in _SHOW], *rest[2:])


def _shown(rest: list[str], options: dict[str, str]) -> Words:
    """`rdma link show`, `devlink dev eswitch show X`, `dcb pfc show dev X`."""
    return tuple(word for word in rest if word not in _SHOW and word != "dev") or (
        ("dev",) if "dev" in rest else ()
    )


def _rdma(rest: list[str], options: dict[str, str]) -> Words:
    return tuple(word for word in rest if word not in _SHOW)


def _ethtool(rest: list[str], options: dict[str, str]) -> Words:
    operation = next((_ETHTOOL[name] for name in options if name in _ETHTOOL), "link")
    return (operation, *rest)


def _at_bdf(*names: str) -> Callable[[list[str], dict[str, str]], Words]:
    def canonical(rest: list[str], options: dict[str, str]) -> Words:
        found = [options[name] for name in names if name in options]
        return tuple(pci_address(value) for value in found)

    return canonical


def _at_interface(rest: list[str], options: dict[str, str]) -> Words:
    return tuple(
        options[name] for name in ("-i", "--interface") if name in options
    ) or tuple(rest)


def _devlink(rest: list[str], options: dict[str, str]) -> Words:
    words = [word for word in rest if word not in _SHOW]
    return tuple(f"pci/{pci_address(w)}" if w.startswith("pci/") else w for w in words)


def _ovs_vsctl(rest: list[str], options: dict[str, str]) -> Words:
    """`list interface` and `list Interface` are the same table."""
    if len(rest) < 2 or rest[0] not in {"list", "find", "get"}:
        return tuple(rest)
    table = rest[1].lower().replace("-", "_")
    return (rest[0], _OVS_TABLES.get(table, rest[1]), *rest[2:])


def _kubectl(rest: list[str], options: dict[str, str]) -> Words:
    if len(rest) < 2 or rest[0] != "get":
        return tuple(rest)
    kind, slash, name = rest[1].partition("/")
    kind = kind.lower().partition(".")[0]
    named = (name, *rest[2:]) if slash else tuple(rest[2:])
    return ("get", _KINDS.get(kind, kind), *named)


_CANONICAL: Mapping[str, Callable[[list[str], dict[str, str]], Words]] = {
    "ip": _ip,
    "rdma": _rdma,
    "devlink": _devlink,
    "dcb": _shown,
    "ethtool": _ethtool,
    "lspci": _at_bdf("-s"),
    "mstconfig": _at_bdf("-d", "--dev"),
    "mlxreg": _at_bdf("-d", "--device"),
    "mlnx_qos": _at_interface,
    "kubectl": _kubectl,
    "ovs-vsctl": _ovs_vsctl,
}
