"""Who may talk to whom: tokens, mutual TLS, the handshake of the data plane.

Everything here is off or free on loopback. Secrets come from the environment or from
files, never from a command line: every user of a host can read those.
"""

from __future__ import annotations
