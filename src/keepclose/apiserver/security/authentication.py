"""Who sends a request: by client certificate, by bearer token, or nobody in particular.

As in Kubernetes: a certificate that our CA signed wins over a token, and its CN is the user, each
O a group; a token that nobody has is refused with 401, even where anyone may come; a request
without credentials, or with a scheme other than Bearer, is anonymous.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from keepclose.apiserver.auth.users import ANONYMOUS, User, known_user
from keepclose.apiserver.status_errors import Failure, unauthorized

PeerCertificate = Mapping[str, Any]
"""A certificate as `ssl.SSLSocket.getpeercert` returns it; empty when none was verified."""


class TokenSource(Protocol):
    """Who knows whose a token is."""

    def find(self, token: str) -> User | None:
        """Return whose token it is, or None."""
        ...


def authenticate(
    headers: Mapping[str, str],
    peer_certificate: PeerCertificate | None,
    *,
    tokens: TokenSource,
) -> User | Failure:
    """Return who sends the request, or the refusal of a wrong token.

    The certificate must have been verified against our CA by the TLS layer already. Header names
    are looked up as `Authorization`; pass a mapping that ignores their case.
    """
    user = certified_user(peer_certificate or {})
    if user is not None:
        return user
    token = bearer_token(headers.get("Authorization", ""))
    if not token:
        return ANONYMOUS
    return tokens.find(token) or unauthorized()


def certified_user(certificate: PeerCertificate) -> User | None:
    """Return whom a verified certificate names, or None when it names nobody."""
    names: list[str] = []
    groups: list[str] = []
    for relative_name in certificate.get("subject", ()):
        for attribute, value in relative_name:
            if attribute == "commonName":
                names.append(value)
            elif attribute == "organizationName":
                groups.append(value)
    # NB: of several names the last one counts, as in Go.
    return known_user(names[-1], *groups) if names and names[-1] else None


def bearer_token(authorization: str) -> str:
    """Return the token in the header, or an empty text."""
    # NB: `strip` alone takes bytes beyond ASCII away, which belong to the token.
    scheme, _, rest = authorization.strip(" \t").partition(" ")
    return rest.partition(" ")[0] if scheme.lower() == "bearer" else ""
