"""Single faults of `rules/meta.py`."""


def _slow(document, plan):
    document["collector"]["duration_ms"] = 24_000


def _late(document, plan):
    document["collector"]["late"] = True


MUTANTS = [
    {"check": "meta-collector-time", "status": "WARN", "change": _slow},
    {
        "check": "meta-collector-time",
        "status": "WARN",
        "change": _late,
        "note": "late",
    },
]
