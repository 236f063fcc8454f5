"""`python -m benchmarks [--json] [--quick]`: every benchmark, one after the other.

Exit code: the worst of them (1 a target missed, 3 one could not be judged, 0 all met).
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import sys

from benchmarks import gate_power, lookup, preflight, transfer

_ALL = {
    "lookup": lookup.main,
    "transfer": transfer.main,
    "preflight": preflight.main,
    "gate_power": gate_power.main,
}
_WORST_FIRST = (1, 3, 0)


def main(argv: list[str] | None = None) -> int:
    """Runs all and returns the worst exit code."""
    parser = argparse.ArgumentParser(description="speeds beside their limits")
    parser.add_argument("--json", action="store_true", help="one JSON object")
    parser.add_argument("--quick", action="store_true", help="shorter rounds")
    args = parser.parse_args(argv)
    flags = [f"--{name}" for name in ("json", "quick") if getattr(args, name)]
    codes, texts = [], {}
    for name, run in _ALL.items():
        text = io.StringIO()
        with contextlib.redirect_stdout(text if args.json else sys.stdout):
            codes.append(run(flags))
        texts[name] = text.getvalue()
    if args.json:
        print(json.dumps({k: json.loads(v) for k, v in texts.items()}, indent=2))
    return next((code for code in _WORST_FIRST if code in codes), 1)


if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt):
        sys.exit(main())
