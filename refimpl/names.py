"""What a name may be: it stands in log lines, metric labels, paths and messages.

A name that another process hands us is as foreign as any other bytes from the network.
"""

from __future__ import annotations

import re
from typing import Final

NAME_RULE: Final = "1 to 128 of A-Z a-z 0-9 . _ - @ + : ~ and not . or .. alone"
_NAME: Final = re.compile(r"[A-Za-z0-9._@+:~-]{1,128}", re.ASCII)
MOST_CHARACTERS: Final = 4096
"""Of any text that can be set."""


def is_name(text: str) -> bool:
    """Safe in one line, as a file name, as a label and in a URL's path."""
    return _NAME.fullmatch(text) is not None and text not in (".", "..")


def is_plain(text: str) -> bool:
    """Without control characters, line ends and lone surrogates, and not endless."""
    return len(text) <= MOST_CHARACTERS and text.isprintable()
