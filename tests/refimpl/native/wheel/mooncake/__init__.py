"""A stand-in for the wheel, in a process of its own; never imported by tests."""
