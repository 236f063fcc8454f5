"""The route engine: what `ip route get` would say, from dumps alone.

Linux's rule walk and longest-prefix match over `ip rule` and `ip route show table all`.
It is compared with the kernel for thousands of random sets in
`tests/checks/routing/test_kernel.py`; where the kernel may choose (multipath, equal
defaults) a decision names every device that it may choose.
"""

from __future__ import annotations
