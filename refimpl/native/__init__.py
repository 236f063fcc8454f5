"""Mooncake's own client, in a process of its own.

`client.py` is the seam to the wheel, `worker.py` the process, `process.py` the engine's
end of it. Its threads spin while they wait and its setup keeps the interpreter for
itself: apart, they take neither the engine's processor nor its interpreter, and a crash
of native code costs the cache and no request.
"""
