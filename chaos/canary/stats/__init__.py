"""Statistics of the gate: pure functions on arrays, numpy and scipy alone."""
