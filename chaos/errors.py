"""What can go wrong in the harness itself, as one tree.

    ChaosError
    ├── UsageError                  the operator asked wrongly              exit 2
    ├── FaultNotInjected            a fault is not there: nothing is proved exit 3
    ├── NotHere                     a target cannot do a fault, and why     exit 3
    ├── HarnessError                the harness broke                       exit 4
    │   ├── ProcessFailed           one of our own processes did not start or died
    │   ├── NeedsNewCluster         a cluster cannot be emptied for the next test
    │   ├── HostUnreachable         no answer from the agent on a host
    │   ├── AgentError              the agent on a host refused or failed
    │   └── ProxyError              the control plane of a fault proxy failed
    │       ├── ProxyUnreachable    no answer within its deadline
    │       └── ProxyRefused        an answer, but not the one asked for
    └── ResidualFault               a fault was left behind                 exit 5

A system under test that misbehaves is no exception: that is a verdict. Every class
carries its fields and builds the message from them; `exit_code` is what a command
ends with when nobody handles it.
"""

from __future__ import annotations

from typing import Any, ClassVar


class ChaosError(Exception):
    """Anything the harness raises on purpose; catch it at the edge of a command."""

    exit_code: ClassVar[int] = 4


class UsageError(ChaosError):
    """The operator asked for something that cannot be done; the message has the fix."""

    exit_code = 2

    def __init__(self, problem: str, fix: str = "") -> None:
        super().__init__(f"{problem}; {fix}" if fix else problem)
        self.problem = problem
        self.fix = fix


class FaultNotInjected(ChaosError):
    """A fault was ordered and is not there, so no verdict may rest on it.

    Nobody's conclusion is wrong yet: the run is INCONCLUSIVE. Look at `reason`, then at
    the target: a proxy that answers 500, an address nobody listens on.
    """

    exit_code = 3

    def __init__(self, *, fault: str, target: str, reason: str) -> None:
        super().__init__(f"{fault} was not injected on {target}: {reason}")
        self.fault = fault
        self.target = target
        self.reason = reason


class NotHere(ChaosError):
    """A target cannot do what was asked, and says why: a skip, never a PASS.

    `--require CAPABILITY` makes it a failure. The reason is the probe's own.
    """

    exit_code = 3

    def __init__(self, *, capability: str, target: str, reason: str) -> None:
        super().__init__(f"the {target} target has no {capability!r} here: {reason}")
        self.capability = capability
        self.target = target
        self.reason = reason


class HarnessError(ChaosError):
    """The harness itself broke; the system under test is not to blame."""

    exit_code = 4


class ProcessFailed(HarnessError):
    """A process of ours did not get ready in time, or ended when it should not.

    `detail` holds the last lines it wrote; a taken port is the usual cause.
    """

    def __init__(self, *, process: str, reason: str, detail: str = "") -> None:
        tail = f": {detail}" if detail else ""
        super().__init__(f"{process} {reason}{tail}")
        self.process = process
        self.reason = reason
        self.detail = detail


class NeedsNewCluster(HarnessError):
    """A cluster cannot be emptied in time: a writer that died holds its places until
    the release time. Nothing is broken, but the next test needs a cluster of its own.
    """


class HostUnreachable(HarnessError):
    """No answer from the agent on a host within the deadline, or there is none.

    What was asked was executed at most once; read the state before asking again. The
    host heals itself when its lease runs out. `gone`: it has no agent of ours any more.
    """

    def __init__(self, *, host: str, op: str, reason: str, gone: bool = False) -> None:
        super().__init__(f"host {host} does not answer to {op}: {reason}")
        self.host = host
        self.op = op
        self.reason = reason
        self.gone = gone


class AgentError(HarnessError):
    """The agent on a host refused a request, or could not do it.

    A fault that was to be armed is not: the steps before the failed one were undone,
    or `detail["residual"]` says what is left.
    """

    def __init__(
        self, *, host: str, op: str, reason: str, detail: dict[str, Any] | None = None
    ) -> None:
        super().__init__(f"the agent on {host} refused {op}: {reason}")
        self.host = host
        self.op = op
        self.reason = reason
        self.detail = detail or {}


class ProxyError(HarnessError):
    """The control plane of a fault proxy failed; see the leaves."""


class ProxyUnreachable(ProxyError):
    """No answer from a fault proxy within the deadline: it hangs or it is gone."""

    def __init__(self, *, url: str, call: str, reason: str) -> None:
        super().__init__(f"no answer from the fault proxy at {url} to {call}: {reason}")
        self.url = url
        self.call = call
        self.reason = reason

    @property
    def hung(self) -> bool:
        """It took too long; else nobody listens or the server died while answering."""
        return "Timeout" in self.reason


class ProxyRefused(ProxyError):
    """A fault proxy answered with an error status, or with what nobody asked for."""

    def __init__(self, *, url: str, call: str, status: int, message: str) -> None:
        super().__init__(
            f"the fault proxy at {url} answered {status} to {call}: {message}"
        )
        self.url = url
        self.call = call
        self.status = status
        self.message = message


class ResidualFault(ChaosError):
    """A fault could not be taken back: the target is still broken by us.

    Stop the session; `chaos recover` tries again from the ledger.
    """

    exit_code = 5

    def __init__(self, *, fault: str, target: str, reason: str) -> None:
        super().__init__(f"{fault} is still on {target}: {reason}")
        self.fault = fault
        self.target = target
        self.reason = reason
