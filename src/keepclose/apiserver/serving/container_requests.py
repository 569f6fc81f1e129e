"""Requests that need running containers: logs, exec, attach, port-forward.

No container runs behind this server: in a lab a pod is a network namespace with a listener. The
refusals say what to use instead, in words that kubectl shows as they are.
"""

from __future__ import annotations

import re
from typing import Final

from keepclose.apiserver.status_errors import Failure

_NO_CONTAINERS: Final = "no containers run here, pods of a keepclose lab are network namespaces"
_find = re.compile(
    r"/api/v1/namespaces/([^/]+)/pods/([^/]+)/(log|exec|attach|portforward|proxy)(?:/|$)"
).match


def refusal_of(path: str) -> str:
    """Return why a request for a running container is refused; "" when it is about none."""
    match = _find(path)
    if match is None:
        return ""
    namespace, pod, subresource = match.groups()
    instead = f"use: keepclose lab exec {pod} -- COMMAND"
    if subresource == "log":
        instead = f"see what its kubelet did with: kubectl describe pod -n {namespace} {pod}"
    elif subresource in ("portforward", "proxy"):
        instead = f"reach its address with: keepclose lab exec outside -- COMMAND, or {instead[5:]}"
    return f"pods/{subresource} is not served: {_NO_CONTAINERS}; {instead}"


def refuse_container_request(path: str) -> None:
    """Raise a Failure when the request needs a running container."""
    why = refusal_of(path)
    if why:
        raise Failure(501, "NotImplemented", why, details={})
