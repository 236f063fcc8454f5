"""What can go wrong with a fault itself, as opposed to the system under test.

FaultError
+-- FaultRefused      asked wrongly: no such role, no link matches (usage)
+-- FaultNotEffective the injection did not take: nothing was broken
+-- FaultNotReverted  something is left behind; the session must stop
"""

from __future__ import annotations


class FaultError(RuntimeError):
    """A fault could not do what it was asked."""


class FaultRefused(FaultError):
    """The request makes no sense on this cluster; correct the test."""


class FaultNotEffective(FaultError):
    """The fault was injected and nothing happened; look at the harness."""


class FaultNotReverted(FaultError):
    """The fault is still there after its deadline; run `chaos recover`."""

    def __init__(self, kind: str, target: str, residual: str) -> None:
        self.kind = kind
        self.target = target
        self.residual = residual
        super().__init__(f"not recovered: {kind}({target}) left behind: {residual}")
