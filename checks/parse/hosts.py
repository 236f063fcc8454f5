"""What a name resolves to: `getent hosts NAME`, and /etc/hosts itself.

`getent hosts` prints `ADDRESS  CANONICAL [ALIAS...]`, one line an address; rc 2 and
nothing for a name that does not resolve. Debian writes `127.0.1.1 HOSTNAME` into
/etc/hosts: then a node tells its peers an address that is their own.
"""

from __future__ import annotations

from ipaddress import ip_address

from checks.facts import Facts, Result, Unread, derived
from checks.parse.garbled import Garbled

NOT_FOUND = 2
HOSTS = "/etc/hosts"


def parse_hosts(text: str) -> dict[str, tuple[str, ...]]:
    """Addresses by name, in the order of the file."""
    found: dict[str, tuple[str, ...]] = {}
    for line in text.splitlines():
        words = line.partition("#")[0].split()
        for name in words[1:]:
            if _is_address(words[0]):
                found[name.lower()] = (*found.get(name.lower(), ()), words[0])
    return found


def parse_getent(text: str, name: str) -> tuple[str, ...]:
    """Addresses of one name; refuses text that is cut off in the middle of a line."""
    found = []
    for line in text.splitlines(keepends=True):
        words = line.split()
        if not words:
            continue
        whole = line.endswith("\n") or any(_names(word, name) for word in words[1:])
        if len(words) < 2 or not whole or not _is_address(words[0]):
            raise Garbled(f"getent hosts {name}", f"not whole: {line.strip()[:60]!r}")
        found.append(words[0])
    return tuple(found)


@derived
def resolved(facts: Facts, name: str) -> tuple[str, ...]:
    """What the resolver of the node says of a name; empty: it does not resolve."""
    result = _asked(facts, name).ended()
    if result.rc == NOT_FOUND and not result.stdout.strip():
        return ()
    return parse_getent(result.text(), name)


@derived
def in_hosts(facts: Facts, name: str) -> tuple[str, ...]:
    """What /etc/hosts says of a name; empty where it says nothing."""
    found = parse_hosts(facts.text(HOSTS))
    return found.get(name.lower(), ())


def _asked(facts: Facts, name: str) -> Result:
    for result in facts.find("getent"):
        words = result.reading.words
        if len(words) != 2 or words[0] not in {"hosts", "ahosts", "ahostsv4"}:
            continue
        if _names(words[1], name) or words[1] in {"$(hostname)", "$HOSTNAME"}:
            return result
    raise Unread("missing", f"getent hosts {name}", "not collected")


def _names(word: str, name: str) -> bool:
    word, name = word.lower(), name.lower()
    return word == name or word.partition(".")[0] == name.partition(".")[0]


def _is_address(text: str) -> bool:
    try:
        ip_address(text.partition("%")[0])
    except ValueError:
        return False
    return True
