"""Takes secrets out of text before it reaches a log, a report or a facts document.

Two tools. `redact` looks for what secrets look like (private keys, tokens of known
makers, passwords in addresses) and for what people call them (`password=`, `"token":`,
`--api-key X`). `allowed_environment` goes the other way for environments, where
guessing is not good enough: only variables on a list pass.

Every pattern is linear in the length of the text, and redacting twice changes nothing.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

HIDDEN = "[redacted]"

_NAME = (
    r"(?:pass(?:word|wd|phrase)|passwd|pwd|secret|token|api[_-]?key|access[_-]?key"
    r"|private[_-]?key|secret[_-]?key|account[_-]?key|signing[_-]?key|credentials?"
    r"|(?:ssh|become|sudo|db|redis|mysql|pg|ansible)[_-]?pass)"
)
"""What a setting that holds a secret is called, or how its name ends."""

_TAIL = r"(?:[_-]?(?:id|b64|base64))?"
_VALUE = (
    r"""(?:\\"[^"\\\n]*(?:\\")?|\\'[^'\\\n]*(?:\\')?"""  # quotes inside quoted JSON
    r"""|"(?:[^"\\\n]|\\.)*"?|'(?:[^'\\\n]|\\.)*'?"""
    r"""|(?:[^\s"'\\&]|\\(?![nrt"']))+)"""
)
"""Rather too much than too little: a secret may hold most signs, and the closing quote
may have been cut off."""

_BLOCK = re.compile(
    r"-----BEGIN (?P<kind>[A-Z0-9 ]{0,40}PRIVATE KEY(?: BLOCK)?)-----"
    r"(?:(?!-----END ).)*(?:-----END (?P=kind)-----)?",
    re.DOTALL,
)
"""A private key, also one whose end was cut off: then all that follows goes."""

_PLAIN: tuple[tuple[re.Pattern[str], str], ...] = (
    # scheme://user:password@host, and scheme://token@host of git remotes
    (re.compile(r"(\b[a-z][a-z0-9+.-]{1,20}://[^\s:/@]{0,256}:)[^\s/@]{1,512}@", re.I),
     rf"\g<1>{HIDDEN}@"),
    # Authorization: Bearer abc, Proxy-Authorization: Basic abc, Cookie: a=b
    (re.compile(r"(\b(?:proxy-)?authorization\b\\?[\"']?\s{0,4}[:=]\s{0,4}\\?[\"']?)"
                r"[^\r\n\"'\\]+", re.I), rf"\g<1>{HIDDEN}"),
    (re.compile(r"(\b(?:set-)?cookie\\?[\"']?\s{0,4}:\s{0,4}\\?[\"']?)[^\r\n\"'\\]+",
                re.I), rf"\g<1>{HIDDEN}"),
    (re.compile(r"(\bbearer\s{1,4})[A-Za-z0-9._~+/=-]{8,}", re.I), rf"\g<1>{HIDDEN}"),
    # tokens that name their maker
    (re.compile(r"\b(?:AKIA|ASIA|AROA|AIDA)[A-Z0-9]{16}\b"), HIDDEN),
    (re.compile(r"\bgh[pousr]_[A-Za-z0-9]{20,}"), HIDDEN),
    (re.compile(r"\bgithub_pat_[A-Za-z0-9_]{20,}"), HIDDEN),
    (re.compile(r"\bglpat-[A-Za-z0-9_-]{16,}"), HIDDEN),
    (re.compile(r"\bhf_[A-Za-z0-9]{20,}"), HIDDEN),
    (re.compile(r"\bxox[abeoprs]-[A-Za-z0-9-]{10,}"), HIDDEN),
    (re.compile(r"\bsk-[A-Za-z0-9_-]{16,}"), HIDDEN),
    (re.compile(r"\bnvapi-[A-Za-z0-9_-]{16,}"), HIDDEN),
    (re.compile(r"\bAIza[A-Za-z0-9_-]{30,}"), HIDDEN),
    (re.compile(r"\beyJ[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]*"), HIDDEN),
    (re.compile(r"\$ANSIBLE_VAULT;[^\r\n]*(?:\r?\n[ \t]*[0-9a-f]{2,})*"), HIDDEN),
)  # fmt: skip

_PAIR = re.compile(
    rf"""(?P<name>{_NAME}{_TAIL}(?:\\?["'])?)(?P<gap>\s{{0,4}}[:=]\s{{0,4}})"""
    rf"""(?P<value>{_VALUE})""",
    re.IGNORECASE,
)
"""`NAME=value`, `"name": "value"`, `name: value`; what the name begins with is open."""

_OPTION = re.compile(
    rf"""(?P<name>(?<![\w-])--?[A-Za-z0-9_-]{{0,64}}{_NAME}{_TAIL})(?P<gap>\s{{1,4}})"""
    rf"""(?P<value>{_VALUE})""",
    re.IGNORECASE,
)
"""`--name value`; without the dashes two words after each other are prose."""


def redact(text: str) -> str:
    """The text with everything that looks like a secret replaced by `[redacted]`."""
    text = _BLOCK.sub(HIDDEN, text)
    for pattern, replacement in _PLAIN:
        text = pattern.sub(replacement, text)
    return _OPTION.sub(_hide_value, _PAIR.sub(_hide_value, text))


def _hide_value(found: re.Match[str]) -> str:
    name, gap, value = found["name"], found["gap"], found["value"]
    if gap.isspace() and value.startswith("--"):
        return found[0]  # the next option
    opening = re.match(r"\\?[\"']", value)
    quote = opening[0] if opening else ""
    closing = quote if len(value) > len(quote) and value.endswith(quote) else ""
    return f"{name}{gap}{quote}{HIDDEN}{closing}"


ALLOWED_VARIABLES = (
    "CUDA_VISIBLE_DEVICES", "HOME", "HOSTNAME", "LANG", "LC_ALL", "LD_LIBRARY_PATH",
    "LD_PRELOAD", "LOGNAME", "NVIDIA_VISIBLE_DEVICES", "OMP_NUM_THREADS", "PATH",
    "PYTHONPATH", "PYTHONHASHSEED", "SHELL", "TZ", "USER",
)  # fmt: skip
ALLOWED_PREFIXES = (
    "FI_", "GLOO_", "HICACHE_", "IBV_", "LMCACHE_", "MC_", "MLX5_", "MOONCAKE_",
    "MOONQUAKE_", "NCCL_", "NVSHMEM_", "RDMAV_", "REFIMPL_", "SGLANG_", "SGL_", "UCX_",
    "VLLM_",
)  # fmt: skip
"""Variables of the systems under test; anything else in an environment is private."""

_SECRET_NAME = re.compile(rf"{_NAME}|auth", re.IGNORECASE)


def allowed_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """What of a process's environment may be kept: listed names, without secrets.

    A listed prefix does not help a name that says it is a secret (`MOONCAKE_TOKEN`).
    """
    return {
        name: redact(value)
        for name, value in environment.items()
        if (name in ALLOWED_VARIABLES or name.startswith(ALLOWED_PREFIXES))
        and not _SECRET_NAME.search(name)
    }
