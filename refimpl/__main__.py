"""`python -m refimpl` is the command `refimpl`."""

from __future__ import annotations

import sys

from refimpl.cli import main

if __name__ == "__main__":
    sys.exit(main())
