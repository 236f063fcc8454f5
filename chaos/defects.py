"""Which tests must turn red for which defect of the reference system.

A defect is a failpoint `defect.<name>` that all roles start with; see `chaos score`.
"""

from __future__ import annotations

DEFECTS: dict[str, tuple[str, ...]] = {}
