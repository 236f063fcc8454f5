"""The canary gate: baseline and canary measured side by side, and judged.

`judge` (chaos/canary/gate.py) is pure: two `Samples` and a `Policy` in, a
`GateResult` out. Sources read measurements, renderers write the result; neither
decides anything.
"""
