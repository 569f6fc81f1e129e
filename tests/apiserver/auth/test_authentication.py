"""Who sends a request."""

from __future__ import annotations

from typing import Any

import pytest

from keepclose.apiserver.auth.credentials import authenticate
from keepclose.apiserver.auth.users import ANONYMOUS, RequestUser, authenticated_user
from keepclose.apiserver.status_errors import StatusError

VIEWER = RequestUser("keepclose:viewer", ("keepclose:viewers", "system:authenticated"))
GOOD = "a-token-that-is-good"


class OneToken:
    """Knows a single token."""

    def find(self, token: str) -> RequestUser | None:
        """Return whose token it is."""
        return VIEWER if token == GOOD else None


def certificate(*attributes: tuple[str, str]) -> dict[str, Any]:
    """Return a verified certificate as the TLS layer shows it."""
    return {"subject": tuple((attribute,) for attribute in attributes), "version": 3}


def who(authorization: str | None, peer: dict[str, Any] | None = None) -> RequestUser | StatusError:
    """Return who sends a request with this header and this certificate."""
    headers = {} if authorization is None else {"Authorization": authorization}
    return authenticate(headers, peer, tokens=OneToken())


@pytest.mark.parametrize(
    ("authorization", "want_user"),
    [
        pytest.param(None, ANONYMOUS, id="no header"),
        pytest.param("", ANONYMOUS, id="empty header"),
        pytest.param("Bearer", ANONYMOUS, id="no token"),
        pytest.param("Bearer ", ANONYMOUS, id="empty token"),
        pytest.param(f"Bearer  {GOOD}", ANONYMOUS, id="two blanks"),
        pytest.param("Basic dTpw", ANONYMOUS, id="another scheme"),
        pytest.param(f"Bearer {GOOD}", VIEWER, id="good token"),
        pytest.param(f"  bearer {GOOD} more", VIEWER, id="scheme in small letters, words after"),
    ],
)
def test_tokens_name_users(authorization: str | None, want_user: RequestUser) -> None:
    """As in Kubernetes, what is no bearer token counts as none."""
    assert who(authorization) == want_user


def test_a_wrong_token_is_refused() -> None:
    """Credentials that nobody has are a mistake to be told, not an anonymous request."""
    answer = who("Bearer wrong")
    assert isinstance(answer, StatusError)
    assert (answer.code, answer.reason, answer.message) == (401, "Unauthorized", "Unauthorized")


@pytest.mark.parametrize(
    ("peer", "want_user"),
    [
        pytest.param(
            certificate(
                ("organizationName", "system:masters"),
                ("organizationName", "ops"),
                ("commonName", "jane"),
            ),
            authenticated_user("jane", "system:masters", "ops"),
            id="name and groups",
        ),
        pytest.param(
            certificate(("commonName", "joe")), authenticated_user("joe"), id="name alone"
        ),
        pytest.param(certificate(("organizationName", "ops")), ANONYMOUS, id="no name"),
        pytest.param(certificate(("commonName", "")), ANONYMOUS, id="empty name"),
        pytest.param({}, ANONYMOUS, id="nothing verified"),
    ],
)
def test_certificates_name_users(peer: dict[str, Any], want_user: RequestUser) -> None:
    """CN is the user, each O a group."""
    assert who(None, peer) == want_user


def test_a_certificate_wins_over_a_token() -> None:
    """Who shows both is whom the certificate names, however wrong the token."""
    assert who("Bearer wrong", certificate(("commonName", "joe"))) == authenticated_user("joe")
    assert who(f"Bearer {GOOD}", certificate(("organizationName", "ops"))) == VIEWER
