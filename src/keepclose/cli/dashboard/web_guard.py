"""Who may ask the dashboard, and what its answers forbid a browser.

The dashboard shows a cluster and may write to it, and other web pages run in the same browser. So:

- every request for data has the token of this run in a header, which no other page can know or
  make a browser send; it is compared in constant time,
- the Host is an address or a name of this machine: a page whose own name is rebound to this
  address (DNS rebinding) would send its own name,
- an Origin, if there is one, is that of the dashboard; a write must have one,
- answers are never stored, never framed, and run no script but those of the package.

The token is in the fragment of the URL, which browsers do not send.
"""

from __future__ import annotations

import hmac
from collections.abc import Awaitable, Callable
from ipaddress import ip_address
from typing import Final
from urllib.parse import urlsplit

from aiohttp import web

from keepclose.model.plain_text import make_plain

DATA_PATH: Final = "/api/"
SECURITY_HEADERS: Final = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
        "img-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
        "require-trusted-types-for 'script'; trusted-types 'none'"
    ),
    "Cache-Control": "no-store",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
}
_SAFE_METHODS: Final = ("GET", "HEAD")
_Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class WebGuard:
    """Decides about every request; the token is that of this run."""

    def __init__(self, token: str, *, names: frozenset[str] = frozenset()) -> None:
        """Take the token, and names of this machine besides localhost."""
        self._token = token.encode()
        self._names = names | {"localhost"}

    def install(self, app: web.Application) -> None:
        """Guard all pages of an application."""

        @web.middleware
        async def guard(request: web.Request, handler: _Handler) -> web.StreamResponse:
            if (refusal := self.refuse(request)) is not None:
                return refusal
            try:
                return await handler(request)
            except web.HTTPException as error:
                return answer_error(error.status, error.reason)

        app.middlewares.append(guard)
        # NB: a signal, because an answer without end has sent its headers before it returns.
        app.on_response_prepare.append(_add_headers)

    def refuse(self, request: web.Request) -> web.Response | None:
        """Return the refusal of a request; None if it may go on."""
        host = request.headers.get("Host", "")
        if not self._is_own_host(host):
            return answer_error(403, "this Host is none of the dashboard; use its own address")
        if not request.path.startswith(DATA_PATH):
            return None
        scheme, _, given = request.headers.get("Authorization", "").partition(" ")
        # NB: surrogates of bytes that are no UTF-8 must not fail here.
        offered = given.strip().encode(errors="surrogateescape")
        if not hmac.compare_digest(offered, self._token) or scheme.lower() != "bearer":
            return answer_error(401, "the token is not that of this run; open the printed URL")
        origin = request.headers.get("Origin")
        is_write = request.method not in _SAFE_METHODS
        if (origin is None and is_write) or origin not in (None, f"http://{host}"):
            return answer_error(403, "this request comes from another page")
        return None

    def _is_own_host(self, host: str) -> bool:
        try:
            name = urlsplit(f"//{host}").hostname or ""
        except ValueError:
            return False
        if name in self._names:
            return True
        try:
            ip_address(name)
        except ValueError:
            return False
        return True


def answer_error(status: int, text: str) -> web.Response:
    """Return an error for the page to show."""
    return web.json_response({"error": make_plain(text)}, status=status)


async def _add_headers(_request: web.Request, response: web.StreamResponse) -> None:
    response.headers.update(SECURITY_HEADERS)
    response.headers.popall("Server", None)
