"""Admin doors of roles: small JSON over HTTP, asked straight, with a deadline."""

from __future__ import annotations

import http.client
import json
import urllib.error
import urllib.request
from typing import Any, Final

from chaos.errors import HarnessError

ADMIN_TIMEOUT_S: Final = 2.0
_DIRECT: Final = urllib.request.build_opener(urllib.request.ProxyHandler({}))


def ask(
    role: str, address: str, method: str, path: str, *, body: str = "", token: str = ""
) -> Any:
    """What a role's admin door answers, as JSON; nothing is an empty object.

    Raises:
        HarnessError: It refused, does not answer, or not in JSON.
    """
    data = body.encode() if body else None
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    url = f"http://{address}{path}"
    request = urllib.request.Request(url, data=data, method=method, headers=headers)
    try:
        with _DIRECT.open(request, timeout=ADMIN_TIMEOUT_S) as answer:
            text = answer.read()
    except urllib.error.HTTPError as error:
        detail = error.read().decode(errors="replace")
        error.close()
        message = f"{role} refused {method} {path}: {detail}"
        raise HarnessError(message) from error
    except (OSError, http.client.HTTPException) as error:
        message = f"{role} does not answer {method} {path}: {error!r}"
        raise HarnessError(message) from error
    try:
        return json.loads(text) if text else {}
    except ValueError as error:
        message = f"{role} answers {method} {path} with {text[:80]!r}"
        raise HarnessError(message) from error
