"""The one refusal of a parser: the text is not what this source prints."""

from __future__ import annotations

from checks.facts import Unread


class Garbled(Unread):
    """The text of a source cannot be read: cut off, or of a format nobody knows."""

    def __init__(self, what: str, reason: str) -> None:
        super().__init__("garbled", what, reason)
