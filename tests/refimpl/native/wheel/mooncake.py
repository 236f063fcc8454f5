"""A stand-in for the wheel; only the worker's process imports it."""

from pathlib import Path

__path__ = [str(Path(__file__).parent)]
