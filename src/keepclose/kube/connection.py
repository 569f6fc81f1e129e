"""The settings of a connection as plain data, and the client made of them.

Wherever settings come from, a kubeconfig, a service account or a test, they end up here; nothing
below this module knows about files of settings.
"""

from __future__ import annotations

import msgspec

from keepclose.kube.auth.credentials import Credentials, Secret, SecretFile, StoredCredentials
from keepclose.kube.auth.exec_plugin import ExecCredentials, ExecSpec
from keepclose.kube.client import USER_AGENT, Client
from keepclose.kube.clock import Clock
from keepclose.kube.transport.aiohttp_transport import AioTransport, ServerAddress
from keepclose.kube.transport.retries import Retries


class ConnectionUser(msgspec.Struct, frozen=True):
    """Who to be: secrets as they are, or the files that hold them; nothing means anonymous.

    `field` is the path of the user in the file that the settings come from.
    """

    token: str = ""
    token_file: str = ""
    username: str = ""
    password: str = ""
    certificate: bytes = b""
    certificate_file: str = ""
    key: bytes = b""
    key_file: str = ""
    exec: ExecSpec | None = None
    field: str = ""

    def __repr__(self) -> str:
        return f"User({self.field!r})"


class ConnectionSettings(msgspec.Struct, frozen=True):
    """Everything needed to reach one API server.

    `namespace` is where to look when nobody says; `source` is where all this comes from, as
    messages name it.
    """

    server: ServerAddress
    user: ConnectionUser = ConnectionUser()
    namespace: str = "default"
    source: str = ""


def connect(
    settings: ConnectionSettings,
    *,
    clock: Clock,
    user_agent: str = USER_AGENT,
    retries: Retries | None = None,
    timeout: float | None = 60.0,
) -> Client:
    """Return a client for the server; the first connection is made by its first request."""
    transport = AioTransport(
        settings.server, credentials=make_credentials(settings, clock=clock), clock=clock
    )
    return Client(transport, clock=clock, user_agent=user_agent, retries=retries, timeout=timeout)


def make_credentials(settings: ConnectionSettings, *, clock: Clock) -> Credentials:
    """Return the credentials of the user; as in client-go a stored token spares the program."""
    user = settings.user
    if user.exec is not None and not (user.token or user.token_file or user.username):
        return ExecCredentials(user.exec, clock=clock)

    def kept(data: bytes, path: str, name: str) -> Secret:
        if data or not path:
            return data
        field = f"{user.field}.{name}" if user.field else name
        return SecretFile(path, clock=clock, field=field, source=settings.source)

    # NB: of a token and a tokenFile the file wins, unlike everywhere else, as client-go has it.
    token = b"" if user.token_file else user.token.encode()
    return StoredCredentials(
        token=kept(token, user.token_file, "tokenFile"),
        username=user.username,
        password=user.password,
        chain=kept(user.certificate, user.certificate_file, "client-certificate"),
        key=kept(user.key, user.key_file, "client-key"),
    )
