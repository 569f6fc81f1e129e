"""The settings of a connection as plain data, and the client built from them.

All sources of settings (kubeconfig, service account, test) produce this data; nothing below this
module knows about settings files.
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
    """The user of a connection: secrets or the files that hold them; without any, anonymous.

    `field` is the path of the user in the file of the settings.
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

    `namespace` is the default namespace; `source` names in messages where the settings come from.
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
    """Return a client for the server; its first request opens the first connection."""
    transport = AioTransport(
        settings.server, credentials=make_credentials(settings, clock=clock), clock=clock
    )
    return Client(transport, clock=clock, user_agent=user_agent, retries=retries, timeout=timeout)


def make_credentials(settings: ConnectionSettings, *, clock: Clock) -> Credentials:
    """Return the credentials of the user; as in client-go a token wins over an exec plugin."""
    user = settings.user
    if user.exec is not None and not (user.token or user.token_file or user.username):
        return ExecCredentials(user.exec, clock=clock)

    def secret(data: bytes, path: str, name: str) -> Secret:
        if data or not path:
            return data
        field = f"{user.field}.{name}" if user.field else name
        return SecretFile(path, clock=clock, field=field, source=settings.source)

    # NB: tokenFile wins over token, unlike all other fields, as in client-go.
    token = b"" if user.token_file else user.token.encode()
    return StoredCredentials(
        token=secret(token, user.token_file, "tokenFile"),
        username=user.username,
        password=user.password,
        chain=secret(user.certificate, user.certificate_file, "client-certificate"),
        key=secret(user.key, user.key_file, "client-key"),
    )
