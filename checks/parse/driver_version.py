"""Versions of NIC drivers, whose spelling differs from release to release.

One driver is called `24.10-0.7.0` by its module, `OFED-internal-24.10-0.7.0` or
`MLNX_OFED_LINUX-24.10-0.7.0.0 (OFED-24.10-0.7.0):` by its package; a feature that
compared the texts broke when the format changed (network-operator#3104, #3105). Drivers
of the kernel have no version of their own: tools print the kernel's release for them.
"""

from __future__ import annotations

import re
from functools import lru_cache

INBOX = "inbox"
_OFED = re.compile(r"(?<![\d.])(\d{1,2}\.\d{1,2}-\d+\.\d+\.\d+)")
_KERNEL = re.compile(r"^\d+\.\d+\.\d+\S*$")
_PLAIN = re.compile(r"^\d+\.\d+-\d+$")


@lru_cache(maxsize=4096)
def normalised(text: str) -> str:
    """The version as all spellings agree on it; a kernel's own is `inbox RELEASE`."""
    text = text.strip().rstrip(":").strip()
    release = _OFED.search(text)
    if release:
        return release[1]
    if _KERNEL.match(text) and not _PLAIN.match(text):
        return f"{INBOX} {text}"
    return text
