"""Credentials of a client: tokens, passwords, client certificates, and files that hold them.

Credentials return a Proof for each request, so that a token replaced on disk is used as soon as the
next read sees it. After a 401 the transport makes them forget what they cache; only those that can
return another proof report that a retry makes sense. Secrets never appear in a repr or an error.
"""

from __future__ import annotations

import base64
import os
from typing import Final, Protocol

import msgspec

from keepclose.kube.clock import Clock
from keepclose.kube.errors import ConfigError
from keepclose.system.files import MAX_SETTINGS_BYTES, read_input

# How often a file of secrets is checked; kubelets replace tokens minutes before they expire.
RECHECK_S: Final = 60.0


class ClientCertificate(msgspec.Struct, frozen=True):
    """A certificate chain and its private key, as PEM."""

    chain: bytes
    key: bytes

    def __repr__(self) -> str:
        return "ClientCertificate(...)"


class Proof(msgspec.Struct, frozen=True):
    """What authenticates one request: an Authorization header, a certificate, both or neither."""

    authorization: str = ""
    certificate: ClientCertificate | None = None

    def __repr__(self) -> str:
        return "Proof(...)"


class Credentials(Protocol):
    """The source of proofs."""

    async def proof(self) -> Proof:
        """Return the proof of the next request; raise ConfigError when there is none."""
        ...

    def forget(self) -> bool:
        """Drop what is cached after a 401; return whether the next proof may differ."""
        ...


class SecretFile:
    """A file with a secret that another program may replace."""

    def __init__(self, path: str, *, clock: Clock, field: str = "", source: str = "") -> None:
        """Take the path; errors name `source` and `field` as its origin."""
        self._path = path
        self._clock = clock
        self._field = field
        self._source = source
        self._data = b""
        self._seen: tuple[int, int, int] | None = None
        self._checked_at: float | None = None

    def read(self) -> bytes:
        """Return the content, checked again a minute after the last check.

        A file that became unreadable keeps its last content: the next check may succeed.
        """
        now = self._clock.monotonic()
        if self._checked_at is not None and now - self._checked_at < RECHECK_S:
            return self._data
        try:
            stat = os.stat(self._path)  # noqa: PTH116
            seen = (stat.st_ino, stat.st_mtime_ns, stat.st_size)
            if seen != self._seen:
                data = read_input(self._path, most=MAX_SETTINGS_BYTES, takes_pipes=False)
                # NB: a file that is being written may be empty; the old content is still better.
                if data.strip() or self._seen is None:
                    self._data, self._seen = data, seen
        except OSError as error:
            if self._seen is None:
                raise unreadable(
                    self._path, error, field=self._field, source=self._source
                ) from error
        self._checked_at = now
        return self._data

    def forget(self) -> None:
        """Check the file at the next read."""
        self._checked_at = None


Secret = bytes | SecretFile


class StoredCredentials:
    """A token or a password, and a certificate, each as a value or a file."""

    def __init__(
        self,
        *,
        token: Secret = b"",
        username: str = "",
        password: str = "",
        chain: Secret = b"",
        key: Secret = b"",
    ) -> None:
        """Take the secrets; without any the client is anonymous."""
        self._token = token
        self._basic = ""
        if username:
            pair = f"{username}:{password}".encode()
            self._basic = f"Basic {base64.b64encode(pair).decode()}"
        self._chain = chain
        self._key = key

    async def proof(self) -> Proof:
        """Return the proof from the present secrets."""
        token = _read(self._token).decode(errors="replace").strip()
        chain, key = _read(self._chain), _read(self._key)
        return Proof(
            f"Bearer {token}" if token else self._basic,
            ClientCertificate(chain, key) if chain else None,
        )

    def forget(self) -> bool:
        """Check the files at the next proof."""
        files = [s for s in (self._token, self._chain, self._key) if isinstance(s, SecretFile)]
        for file in files:
            file.forget()
        return bool(files)


def unreadable(path: str, error: OSError, *, field: str = "", source: str = "") -> ConfigError:
    """Return the error for a file that cannot be read; `source` is the file that names it."""
    why = f"cannot read {path}: {(error.strerror or str(error)).lower()}"
    if not field:
        return ConfigError(why, fix="check the path and who may read it")
    return ConfigError(why, file=source, field=field, fix="check the path and who may read it")


def _read(secret: Secret) -> bytes:
    return secret.read() if isinstance(secret, SecretFile) else secret
