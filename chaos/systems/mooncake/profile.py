"""Settings of Mooncake by name: as it comes, and tuned with the timeouts that exist.

What can be said: flags of the master, and variables of the environment, which the
stores and all clients read. Mooncake has whole seconds only for its client time to
live, and several waits that no setting reaches: they are the findings.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final

from chaos.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Mapping

DEFAULT: Final = "default"
TUNED: Final = "tuned"
VARIABLE: Final = "MOONQUAKE_MOONCAKE_PROFILE"
_FLAG_TYPES: Final = (bool, int, float, str)


@dataclass(frozen=True, slots=True, kw_only=True)
class Profile:
    """What every role is started with.

    `master` are flags without dashes; `env` is for stores, clients and engines. What
    neither says keeps Mooncake's own default, which the properties know.
    """

    name: str
    master: Mapping[str, Any] = field(default_factory=dict)
    env: Mapping[str, str] = field(default_factory=dict)

    @property
    def client_ttl_s(self) -> float:
        """A segment whose owner was silent for so long is dropped (default 10 s)."""
        return float(self.master.get("client_ttl", 10))

    @property
    def lease_ttl_s(self) -> float:
        """How long a found object is safe from eviction and removal (default 10 s)."""
        return float(self.master.get("default_kv_lease_ttl", 10_000)) / 1000

    @property
    def rpc_timeout_s(self) -> float:
        """The longest answer of the master that a client waits for (default 30 s)."""
        return float(self.env.get("MC_RPC_TIMEOUT_MS", 30_000)) / 1000

    @property
    def transfer_timeout_s(self) -> float:
        """A transfer without progress for so long has failed (default 30 s)."""
        return float(self.env.get("MC_TCP_PROGRESS_TIMEOUT_SEC", 30))

    def flags(self) -> list[str]:
        """The master's flags."""
        return [f"--{name}={_text(value)}" for name, value in self.master.items()]

    def changed(
        self,
        master: Mapping[str, Any] | None = None,
        env: Mapping[str, Any] | None = None,
    ) -> Profile:
        """The same with other flags and variables.

        Raises:
            UsageError: A value is no flag's, or a variable is not Mooncake's.
        """
        for name, value in (master or {}).items():
            if not isinstance(value, _FLAG_TYPES):
                raise UsageError(f"the master's {name} cannot be {value!r}")
        for name in env or {}:
            if not name.startswith(("MC_", "MOONCAKE_")):
                fix = "its names begin with MC_ or MOONCAKE_"
                raise UsageError(f"{name} is no variable of Mooncake", fix)
        return replace(
            self,
            master={**self.master, **(master or {})},
            env={**self.env, **{k: str(v) for k, v in (env or {}).items()}},
        )


PROFILES: Final[Mapping[str, Profile]] = {
    DEFAULT: Profile(name=DEFAULT),
    TUNED: Profile(
        name=TUNED,
        master={"client_ttl": 3, "default_kv_lease_ttl": 5000},
        env={
            "MC_TCP_STATUS_TIMEOUT_SEC": "1",
            "MC_TCP_PROGRESS_TIMEOUT_SEC": "1",
            "MC_RPC_TIMEOUT_MS": "1000",
            "MC_RPC_CONNECT_TIMEOUT_MS": "1000",
            "MC_HANDSHAKE_CONNECT_TIMEOUT": "1",
        },
    ),
}


def profile_of(name: str) -> Profile:
    """The profile of that name.

    Raises:
        UsageError: There is none.
    """
    if name not in PROFILES:
        fix = f"there are {' and '.join(PROFILES)}"
        raise UsageError(f"no profile of Mooncake is called {name!r}", fix)
    return PROFILES[name]


def _text(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
