"""Parsers: raw text of one source to typed facts, one source a file.

A parser is pure and refuses what it cannot read whole with `Garbled`. Beside it stands
the reader, decorated with `checks.facts.derived`: it finds the source in the facts of a
node and raises `Unread`. Truncated, empty and failed are three different reasons.
"""
