"""GPUDirect RDMA: can NICs reach the memory of GPUs, and by which way."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from checks.facts import Facts, Unread, derived
from checks.finding import Outcome, bad, ok, skip
from checks.parse.kernel_log import kernel_log
from checks.parse.kernel_release import kernel_release, numbers
from checks.parse.modules import loaded, modules
from checks.parse.services import services
from checks.rules.declare import NotHere, check, compared
from checks.rules.optional import UNREADABLE, optional

if TYPE_CHECKING:
    from checks.node import Node
    from checks.parse.kernel_log import Line

VARIABLE = "WITH_NVIDIA_PEERMEM"
DMABUF_SINCE = (5, 12)
REPEATED = 2
_OFF = frozenset({"0", "false", "off", "no"})
_PEERMEM = ("nvidia_peermem", "nv_peer_mem")
_SYMBOL = re.compile(
    r"\b(?:nvidia_peermem|nv_peer_mem): (?:disagrees about version of symbol"
    r"|Unknown symbol) ?\S*"
)
_CONTEXT = re.compile(r"nv_get_p2p_free_callback\S* ERROR detected invalid context")
_NVIDIA = "/proc/driver/nvidia/version"
_PARAMS = "/proc/driver/nvidia/params"


def wants_peermem(node: Node) -> bool:
    """Whether GPU memory is to be registered through nvidia_peermem.

    The profile decides; else the services do: one that does not switch it off wants it,
    because the installed code's default is on (Mooncake 2026-08, whatever its
    documentation says). Without a service the default holds.
    """
    if node.profile.nic.peermem is not None:
        return node.profile.nic.peermem
    told = services(node.facts)
    known = [service.env for service in told if service.env is not None]
    wanted = [env.get(VARIABLE, "1").strip().lower() not in _OFF for env in known]
    if any(wanted):
        return True
    if len(known) < len(told):
        raise Unread("denied", "/proc/*/environ", f"{VARIABLE} of a service is unknown")
    return not known


def _refuse_without_gpu(facts: Facts) -> None:
    """SKIP where it is seen that no NVIDIA driver is loaded."""
    names = optional(lambda: loaded(facts), UNREADABLE)
    if names is not None:
        if "nvidia" not in names:
            raise NotHere("no NVIDIA driver is loaded")
    elif optional(lambda: facts.exists(_NVIDIA), UNREADABLE) is False:
        raise NotHere("no NVIDIA driver is loaded")


@check(
    "gdr-peermem-loaded",
    group="gdr",
    severity="C",
    why="registering GPU memory fails with Bad address [14] where nobody translates it",
    fix=(
        "modprobe nvidia_peermem, and list it in /etc/modules-load.d",
        f"or use DMA-BUF: {VARIABLE}=0 on a kernel >= 5.12 with the open GPU module",
    ),
    source=("R41 Mooncake#351, sglang#6193, checkpoint-engine#34",),
    needs=("/proc/modules", "/proc/<pid>/environ"),
    follows=("gdr-peermem-symver",),
)
def peermem_loaded(node: Node, _: None) -> Outcome:
    every = modules(node.facts)
    _refuse_without_gpu(node.facts)
    name = next((name for name in _PEERMEM if name in every), "")
    registered = bool(name) and every[name].live and _uses_core(node.facts, name)
    if registered:
        return ok(f"{name} is live, and registered with ib_core")
    expected = "nvidia_peermem live, among the users of ib_core"
    seen = f"{name} does not use ib_core, or is not live" if name else "not loaded"
    if wants_peermem(node):
        return bad(f"nvidia_peermem: {seen}", expected)
    return ok(f"{seen}, and not wanted: {VARIABLE}=0 takes DMA-BUF", expected)


def _uses_core(facts: Facts, name: str) -> bool:
    core = modules(facts).get("ib_core")
    return core is None or not core.users or name in core.users


@check(
    "gdr-dmabuf-capable",
    group="gdr",
    severity="C",
    why="without nvidia_peermem GPU memory is registered as DMA-BUF, or not at all:"
    " DMA BUF supported required for GPU RDMA without nvidia-peermem",
    fix=("install the open GPU kernel module", "kernel >= 5.12", "or nvidia_peermem"),
    source=("R42 Mooncake PR#3538",),
    needs=("uname -r", "/proc/driver/nvidia/version", "/proc/<pid>/environ"),
)
def dmabuf_capable(node: Node, _: None) -> Outcome:
    _refuse_without_gpu(node.facts)
    release = kernel_release(node.facts)
    text = node.facts.text(_NVIDIA)
    lacking = []
    if numbers(release) < DMABUF_SINCE:
        lacking.append(f"kernel {release}")
    if "Open Kernel Module" not in text:
        lacking.append("the GPU's kernel module is not the open one")
    expected = "kernel >= 5.12 and the open GPU module"
    if not lacking:
        return ok(f"kernel {release}, open GPU module", expected)
    if wants_peermem(node):
        return skip(f"{', '.join(lacking)}; but nvidia_peermem is the way chosen")
    return bad(", ".join(lacking), expected)


@check(
    "gdr-peermem-symver",
    group="gdr",
    severity="C",
    why="the GPU driver was built for another RDMA stack: nvidia_peermem cannot load",
    fix=("rebuild the GPU driver against the installed OFED", "or use DMA-BUF"),
    source=("R43 gpu-operator#2868",),
    needs=("dmesg -J", "/proc/modules"),
)
def symbol_version(node: Node, _: None) -> Outcome:
    found = _matching(node.facts, _SYMBOL)
    expected = "nvidia_peermem fits the RDMA stack"
    names = optional(lambda: loaded(node.facts), UNREADABLE)
    if not found:
        if names is not None and "nvidia" not in names:
            raise NotHere("no NVIDIA driver is loaded")
        return ok("no such complaint in the kernel's log", expected)
    if names is not None and not names.isdisjoint(_PEERMEM):
        return ok("it complained before, and is loaded now", expected)
    return bad(found[-1].text[:200], expected)


@check(
    "gdr-peermem-errors",
    group="gdr",
    severity="W",
    why="memory of a GPU was freed under a registration: the next transfer may fail",
    fix=("update the GPU driver", "look for processes that ended while transferring"),
    source=("gpud kernel messages: peermem invalid context",),
    needs=("dmesg -J",),
)
def peermem_errors(node: Node, _: None) -> Outcome:
    found = _matching(node.facts, _CONTEXT)
    seen = f"{len(found)} invalid contexts in the kernel's log"
    expected = f"fewer than {REPEATED}"
    return bad(seen, expected) if len(found) >= REPEATED else ok(seen, expected)


@compared(
    "gdr-gdrcopy",
    group="gdr",
    severity="W",
    why="without gdrdrv small copies to and from GPUs take the slow way on this node",
    fix=("modprobe gdrdrv",),
    source=("GDRCopy",),
    needs=("/proc/modules",),
)
def gdrcopy(node: Node, _: None) -> str:
    names = loaded(node.facts)
    if "nvidia" not in names:
        raise NotHere("no NVIDIA driver is loaded")
    return "gdrdrv loaded" if "gdrdrv" in names else "gdrdrv not loaded"


@compared(
    "gdr-nvreg",
    group="gdr",
    severity="W",
    why="GPU-initiated transfers need these registry keys, and differ without them",
    fix=("options nvidia NVreg_... in /etc/modprobe.d, then reload the module",),
    source=("DeepEP#484", "nvshmem#23: needed only for device-assisted IBGDA"),
    needs=("/proc/driver/nvidia/params",),
)
def registry(node: Node, _: None) -> str:
    _refuse_without_gpu(node.facts)
    lines = node.facts.text(_PARAMS).splitlines()
    pairs = dict(line.split(": ", 1) for line in lines if ": " in line)
    if "EnableStreamMemOPs" not in pairs:
        raise Unread("garbled", _PARAMS, "EnableStreamMemOPs is not in it")
    keys = pairs.get("RegistryDwords", "").strip().strip('"')
    return f"EnableStreamMemOPs {pairs['EnableStreamMemOPs'].strip()}, keys {keys!r}"


@derived
def _matching(facts: Facts, pattern: re.Pattern[str]) -> tuple[Line, ...]:
    return tuple(line for line in kernel_log(facts) if pattern.search(line.text))
