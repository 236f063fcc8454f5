"""`python -m chaos`: the same as the command `chaos`."""

from __future__ import annotations

import sys

from chaos.cli import main

if __name__ == "__main__":
    sys.exit(main())
