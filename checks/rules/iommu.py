"""IOMMU and ACS: whether devices reach memory and each other without detours.

On bare metal peer-to-peer traffic between NIC and GPU wants identity domains and no
redirection by ACS. In a virtual machine the host needs both, and ATS must be on: the
kind of machine is looked at first. Where nothing tells it, bare metal is assumed.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from checks.facts import Facts, Unread, derived
from checks.finding import Outcome, bad, info, ok, skip
from checks.parse.cmdline import (
    CMDLINE,
    asks_off,
    asks_passthrough,
    cmdline,
    iommu_tokens,
    next_cmdline,
)
from checks.parse.kernel_log import kernel_log
from checks.parse.lspci import Device, devices
from checks.ports import PCI
from checks.rules.declare import NotHere, Subject, check, compared
from checks.rules.pci_subjects import (
    Function,
    each_function,
    gpus,
    is_vm,
    nics,
    unplaced_nics,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from checks.node import Node
    from checks.parse.lspci import Acs

TYPE = "iommu_group/type"
_TRANSLATED = ("DMA",)
_IDENTITY = "identity"
_USELESS = {
    "amd_iommu": frozenset({"on"}),
    "iommu": frozenset({"on"}),
    "intel_iommu": frozenset({"pt"}),
}
_DEFAULT = re.compile(r"iommu: Default domain type: (\w+)")
_ADDRESS = r"((?:[0-9a-f]{4,}:)?[0-9a-f]{2}:[0-9a-f]{2}\.[0-7])"
_DMAR = re.compile(
    rf"DMAR:.*\[DMA (?:Read|Write)[^\]]*\].*?Request device \[{_ADDRESS}\]"
)
_AMD = re.compile(r"AMD-Vi: Event logged \[IO_PAGE_FAULT\b")
_AMD_DEVICE = re.compile(rf"\bdevice={_ADDRESS}")
_UNITS = ("DMAR", "AMD-Vi", "arm-smmu")
"""Words that are looked for first: logs are long, and regular expressions slow."""
_PREFIX = re.compile(rf"^\S+ {_ADDRESS}: ")
_SMMU = re.compile(rf"arm-smmu.*event.*F_\w+ client: {_ADDRESS}")


def domain_of(facts: Facts, function: Function) -> str:
    """Its `iommu_group/type`; "" where it is in no group."""
    try:
        return function.line(facts, TYPE)
    except Unread as error:
        if error.kind == "absent":
            return ""
        raise


def _each_domain(node: Node) -> list[Subject[Function]]:
    """NICs and GPUs; without any, every device whose domain was collected."""
    try:
        found = each_function(node) + unplaced_nics(node, TYPE)
    except Unread:
        found = []
        for path in node.facts.matching(f"{PCI}/*/{TYPE}"):
            bdf = path.removeprefix(f"{PCI}/").split("/")[0]
            one = Function(bdf=bdf)
            found.append(Subject(item=one, label=bdf, touches=one.touches))
        if not found:
            raise
    return found


@check(
    "iommu-domain-type",
    group="iommu",
    severity="E",
    why="translated DMA: GPUDirect hangs or crawls, large regions miss the IOTLB",
    fix=("boot with iommu=pt (and intel_iommu=on on Intel)",),
    source=("R31 nccl#1737", "Documentation/ABI/testing/sysfs-kernel-iommu_groups"),
    needs=(f"{PCI}/*/{TYPE}",),
    follows=("iommu-effective-vs-cmdline",),
    over=_each_domain,
)
def domain_type(node: Node, function: Function) -> Outcome:
    wanted = node.profile.iommu.domain
    domain = domain_of(node.facts, function)
    shown = domain or "no group"
    if wanted:
        expected = f"{wanted} (profile)"
        return ok(shown, expected) if domain == wanted else bad(shown, expected)
    expected = "identity, or no group"
    if domain in {"", _IDENTITY}:
        return ok(shown, expected)
    if is_vm(node):
        return skip(f"{shown}: a virtual machine has its domains from its host")
    return bad(shown, expected)


@check(
    "iommu-effective-vs-cmdline",
    group="iommu",
    severity="E",
    why="what was asked at boot is not in effect: firmware or kernel overrode it",
    fix=(
        "dmesg | grep -i -e iommu -e dmar: look for `force enabled`",
        "look for CONFIG_IOMMU_DEFAULT_DMA_* and the DMA remapping of the BIOS",
    ),
    source=("R34", "Documentation/admin-guide/kernel-parameters.txt"),
    needs=(CMDLINE, f"{PCI}/*/{TYPE}", "dmesg -J"),
)
def effective(node: Node, _: None) -> Outcome:
    arguments = cmdline(node.facts)
    told = " ".join(iommu_tokens(arguments)) or "nothing about the IOMMU"
    if asks_off(arguments):
        return _off(node, told)
    if asks_passthrough(arguments):
        return _passthrough(node, told)
    return ok(f"{told}: no passthrough was asked", "what was asked is in effect")


def _passthrough(node: Node, told: str) -> Outcome:
    expected = "passthrough in effect"
    default = _default_domain(node.facts)
    if default == "Translated":
        return bad(f"{told}, but the default domain is Translated", expected)
    domains = _domains(node)
    kept = [domain for domain in domains.values() if domain.startswith(_TRANSLATED)]
    if domains and len(kept) == len(domains):
        return bad(f"{told}, but every domain is {kept[0]}", expected)
    if domains or default == "Passthrough":
        return ok(f"{told}, and it is in effect", expected)
    raise Unread("missing", f"{PCI}/*/{TYPE}", "no domain was collected")


def _off(node: Node, told: str) -> Outcome:
    domains = _domains(node)
    grouped = sorted(bdf for bdf, domain in domains.items() if domain)
    if grouped:
        return bad(f"{told}, but {grouped[0]} is in a group", "no IOMMU groups")
    if domains:
        return ok(f"{told}, and there are no groups", "no IOMMU groups")
    raise Unread("missing", f"{PCI}/*/{TYPE}", "no domain was collected")


def _domains(node: Node) -> dict[str, str]:
    """Domains of NICs and GPUs, as far as they can be read; Unread if none can."""
    found: dict[str, str] = {}
    refused: Unread | None = None
    try:
        every = _each_domain(node)
    except Unread:
        return {}
    for each in every:
        try:
            found[each.item.bdf] = domain_of(node.facts, each.item)
        except Unread as error:
            refused = refused or error
    if not found and refused is not None and refused.kind != "missing":
        raise refused
    return found


def _default_domain(facts: Facts) -> str:
    """What the kernel said at boot; "" where its log is gone or may not be read."""
    try:
        lines = kernel_log(facts)
    except Unread as error:
        if error.kind not in {"missing", "denied", "no tool", "failed"}:
            raise
        return ""
    for line in lines:
        match = "domain type" in line.text and _DEFAULT.search(line.text)
        if match:
            return match[1]
    return ""


@compared(
    "iommu-cmdline",
    group="iommu",
    severity="W",
    why="nodes that boot with other arguments behave unlike their peers",
    fix=("set GRUB_CMDLINE_LINUX alike, update-grub, reboot",),
    source=("article: IOMMU settings",),
    needs=(CMDLINE,),
    follows=("iommu-cmdline-invalid",),
)
def arguments_alike(node: Node, _: None) -> Outcome | str:
    value = " ".join(iommu_tokens(cmdline(node.facts))) or "none"
    if not node.profile.iommu.cmdline:
        return value
    wanted = " ".join(sorted(node.profile.iommu.cmdline))
    expected = f"{wanted} (profile)"
    if value == wanted:
        return ok(value, expected, value=value)
    return bad(value, expected, severity="E")


@check(
    "iommu-cmdline-invalid",
    group="iommu",
    severity="W",
    why="the argument does nothing, and somebody believes that it is set",
    fix=("write iommu=pt instead; AMD's IOMMU is on by default",),
    source=("Documentation/admin-guide/kernel-parameters.txt",),
    needs=(CMDLINE,),
)
def invalid_arguments(node: Node, _: None) -> Outcome:
    arguments = cmdline(node.facts)
    useless = [
        f"{name}={arguments[name]}"
        for name, values in sorted(_USELESS.items())
        if name in arguments and set(arguments[name].split(",")) <= values
    ]
    if useless:
        return bad(" ".join(useless), "only arguments that exist")
    return ok(" ".join(iommu_tokens(arguments)) or "none", "only arguments that exist")


@check(
    "iommu-pending-reboot",
    group="iommu",
    severity="W",
    why="the next boot brings other IOMMU settings than those in effect now",
    fix=("reboot the drained node, or correct the boot loader's configuration",),
    source=("kernel-install(8)", "grub-mkconfig"),
    needs=(CMDLINE, "/etc/default/grub", "/etc/kernel/cmdline"),
)
def pending_reboot(node: Node, _: None) -> Outcome:
    now = " ".join(iommu_tokens(cmdline(node.facts))) or "none"
    try:
        origin, arguments = next_cmdline(node.facts)
    except Unread as error:
        if error.kind == "absent":
            raise NotHere("neither GRUB nor kernel-install is configured") from None
        raise
    later = " ".join(iommu_tokens(arguments)) or "none"
    expected = f"{later} ({origin})"
    return ok(now, expected) if now == later else bad(now, expected)


def _each_bridge(node: Node) -> list[Subject[Device | Unread]]:
    """Every bridge that lspci told of, and what it refused to tell of."""
    known = {each.bdf for each in gpus(node)} | _addresses(node)
    found = []
    for bdf, device in sorted(devices(node.facts).items()):
        unsure = isinstance(device, Unread) or not device.kind
        if (unsure and bdf not in known) or (
            isinstance(device, Device) and device.is_bridge
        ):
            found.append(Subject(item=device, label=bdf, touches=frozenset({bdf})))
    if not found and is_vm(node):
        raise NotHere("a virtual machine without bridges")
    return found


def _addresses(node: Node) -> set[str]:
    try:
        return {port.bdf() for port in node.ports}
    except Unread:
        return set()


def _acs(device: Device | Unread) -> Acs | None:
    if isinstance(device, Unread):
        raise Unread(device.kind, device.what, device.reason)
    return device.acs()


@check(
    "iommu-acs-redirect",
    group="iommu",
    severity="E",
    why="GPU-NIC traffic goes through the root complex: hangs, errors, low bandwidth",
    fix=(
        "switch ACS off in the BIOS",
        "setpci -s BDF ECAP_ACS+6.w=0000 for each bridge, at every boot",
    ),
    source=("R28 nccl#304, nccl#214", "R32 nccl-tests#256", "PCIe base 6.12"),
    needs=("lspci -Dvvv -s BDF",),
    over=_each_bridge,
)
def acs_redirect(node: Node, device: Device | Unread) -> Outcome:
    acs = _acs(device)
    expected = "ReqRedir- CmpltRedir- UpstreamFwd-"
    if acs is None:
        return ok("no ACS", expected)
    if not acs.redirects:
        return ok("no redirection", expected)
    shown = " ".join(f"{name}+" for name in acs.redirects)
    if is_vm(node):
        return info(shown, "as its host wants it: a virtual machine needs ATS instead")
    severity = "C" if node.profile.iommu.gdr_required else "E"
    return bad(shown, expected, severity=severity)


@check(
    "iommu-acs-srcvalid",
    group="iommu",
    severity="I",
    why="source validation checks who sends and redirects nothing: it is harmless",
    fix=(),
    source=("R30 nccl#606",),
    needs=("lspci -Dvvv -s BDF",),
    over=_each_bridge,
)
def acs_srcvalid(node: Node, device: Device | Unread) -> Outcome:
    acs = _acs(device)
    if acs is not None and acs.source_validation and not acs.redirects:
        return info("only SrcValid+", "harmless")
    return ok("SrcValid is not the only one" if acs else "no ACS", "harmless")


@check(
    "iommu-acs-unreadable",
    group="iommu",
    severity="I",
    why="lspci hides capabilities from everybody but root: nothing is known of ACS",
    fix=("collect as root",),
    source=("experiment: lspci without privilege",),
    needs=("lspci -Dvvv -s BDF",),
    over=_each_bridge,
)
def acs_unreadable(node: Node, device: Device | Unread) -> Outcome:
    _acs(device)
    return ok("readable", "readable capabilities")


def _each_translating(node: Node) -> list[Subject[Device | Unread]]:
    """In a virtual machine: NICs, and whatever else tells of ATS."""
    virtual = is_vm(node)
    if virtual is None or not node.facts.tells_something:
        raise Unread("missing", "systemd-detect-virt", "not collected")
    if not virtual:
        return [Subject(item=Unread("absent", "ATS", "bare metal"))]
    listed = devices(node.facts)
    chosen = {
        bdf
        for bdf, device in listed.items()
        if isinstance(device, Device) and (device.is_nic or device.says("ATSCtl"))
    }
    labels = {}
    try:
        labels = {each.bdf: each.label for each in nics(node)}
    except Unread:
        labels = {}
    chosen |= set(labels)
    missing = Unread("missing", "lspci -Dvvv", "not collected")
    return [
        Subject(
            item=listed.get(bdf, missing),
            label=labels.get(bdf, bdf),
            touches=frozenset({bdf}),
        )
        for bdf in sorted(chosen)
    ]


@check(
    "iommu-acs-vm-ats",
    group="iommu",
    severity="W",
    why="without ATS peer-to-peer traffic of a virtual machine goes through the CPU",
    fix=("on the host: mstconfig -d BDF set ATS_ENABLED=1, then reset the NIC",),
    source=("R32 nccl-tests#256, nccl#949, nccl#1205",),
    needs=("lspci -Dvvv -s BDF", "systemd-detect-virt"),
    over=_each_translating,
)
def vm_ats(node: Node, device: Device | Unread) -> Outcome:
    if isinstance(device, Unread):
        if device.kind == "absent":
            return ok("bare metal", "ATSCtl Enable+ in a virtual machine")
        raise Unread(device.kind, device.what, device.reason)
    on = device.ats()
    shown = "no ATS" if on is None else f"ATSCtl Enable{'+' if on else '-'}"
    return ok(shown, "ATSCtl Enable+") if on else bad(shown, "ATSCtl Enable+")


@derived
def faults(facts: Facts) -> dict[str, tuple[str, ...]]:
    """Lines of the kernel's log about refused DMA, by the device that asked."""
    found: dict[str, list[str]] = {}
    for text in (line.text for line in kernel_log(facts)):
        if not any(word in text for word in _UNITS):
            continue
        for bdf in _blamed(text):
            found.setdefault(bdf, []).append(text)
    return {bdf: tuple(lines) for bdf, lines in sorted(found.items())}


def _blamed(text: str) -> Iterator[str]:
    for pattern in (_DMAR, _SMMU):
        match = pattern.search(text)
        if match:
            yield _full(match[1])
            return
    if _AMD.search(text):
        match = _AMD_DEVICE.search(text) or _PREFIX.search(text)
        yield _full(match[1]) if match else ""


def _full(bdf: str) -> str:
    return bdf if bdf.count(":") > 1 else f"0000:{bdf}"


def _each_faulting(node: Node) -> list[Subject[tuple[Function, bool]]]:
    """NICs and GPUs; beside them other devices that faulted, as (device, is ours)."""
    lines = faults(node.facts)
    try:
        ours = each_function(node)
    except Unread:
        if lines:
            raise
        return [Subject(item=(Function(bdf=""), True))]
    known = {each.item.bdf for each in ours}
    found = [
        Subject(item=(s.item, True), label=s.label, key=s.key, touches=s.touches)
        for s in ours
    ]
    for bdf in lines:
        if bdf not in known:
            one = Function(bdf=bdf)
            label = bdf or "unknown device"
            found.append(Subject(item=(one, False), label=label, touches=one.touches))
    return found


@check(
    "iommu-dmar-fault",
    group="iommu",
    severity="E",
    why="the IOMMU refused a transfer: memory freed under DMA, or a wrong domain",
    fix=("look at what ended at that time", "update the driver", "boot with iommu=pt"),
    source=("R33 mgbench#8, OpenNetworkLinux PR#897, litepcie#150, tt-umd#1814",),
    needs=("dmesg -J",),
    over=_each_faulting,
)
def dmar_fault(node: Node, item: tuple[Function, bool]) -> Outcome:
    function, ours = item
    lines = faults(node.facts).get(function.bdf, ())
    if not lines:
        return ok("none in the kernel's log", "no refused DMA")
    shown = f"{len(lines)} times: {lines[-1][:200]}"
    if not ours:
        return info(shown, "no device of ours")
    return bad(shown, "no refused DMA")
