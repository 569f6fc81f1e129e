"""Credentials from an exec plugin of a kubeconfig (client.authentication.k8s.io).

The plugin gets an ExecCredential in KUBERNETES_EXEC_INFO and prints one with a status. Its answer
is cached until it expires, or until the server answers 401. Concurrent requests wait for one run.
The plugin never gets the terminal: its output would mix with that of keepclose.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
from collections.abc import Mapping
from contextlib import suppress
from datetime import datetime
from typing import Any, Final

import msgspec

from keepclose.kube.auth.credentials import ClientCertificate, Proof
from keepclose.kube.clock import Clock
from keepclose.kube.errors import ConfigError

EXEC_API_VERSIONS: Final = (
    "client.authentication.k8s.io/v1",
    "client.authentication.k8s.io/v1beta1",
)
# A plugin may call an identity provider, or wait for the user at a browser.
_LIMIT_S: Final = 60.0
_MAX_BYTES: Final = 1 << 20
"""The most that a plugin may print; a certificate with chain and key has a few thousand bytes."""
# How long before their expiry credentials count as expired.
MARGIN_S: Final = 5.0


class ExecSpec(msgspec.Struct, frozen=True):
    """An exec plugin of a kubeconfig; `cluster` is set for plugins that request it.

    `field` is the path of the plugin in the kubeconfig `source`.
    """

    api_version: str
    command: str
    args: tuple[str, ...] = ()
    env: tuple[tuple[str, str], ...] = ()
    install_hint: str = ""
    cluster: dict[str, Any] | None = None
    source: str = ""
    field: str = "exec"

    def __repr__(self) -> str:
        return f"ExecSpec({self.command!r})"


class _Status(msgspec.Struct, rename="camel"):
    token: str | None = None
    client_certificate_data: str | None = None
    client_key_data: str | None = None
    expiration_timestamp: str | None = None


class _Credential(msgspec.Struct, rename="camel"):
    api_version: str = ""
    kind: str = ""
    status: _Status | None = None


class ExecCredentials:
    """Credentials that run an exec plugin on demand."""

    def __init__(
        self, spec: ExecSpec, *, clock: Clock, environ: Mapping[str, str] | None = None
    ) -> None:
        """Take the plugin; `environ` is the environment that it extends, by default our own."""
        self._spec = spec
        self._clock = clock
        self._environ = os.environ if environ is None else environ
        self._lock = asyncio.Lock()
        self._proof: Proof | None = None
        self._expires: float | None = None

    async def proof(self) -> Proof:
        """Return the cached proof, or run the plugin."""
        async with self._lock:
            if self._proof is None or (
                self._expires is not None and self._clock.now() >= self._expires - MARGIN_S
            ):
                self._proof, self._expires = self._read(await self._run())
            return self._proof

    def forget(self) -> bool:
        """Run the plugin again for the next proof."""
        self._proof = None
        return True

    async def _run(self) -> bytes:
        spec = self._spec
        environment = {**self._environ, **dict(spec.env)}
        command = shutil.which(spec.command, path=environment.get("PATH"))
        if command is None:
            hint = spec.install_hint or "install it, or name another user in the context"
            raise self._error(f"the program {spec.command!r} was not found", "command", fix=hint)
        info: dict[str, Any] = {
            "apiVersion": spec.api_version,
            "kind": "ExecCredential",
            "spec": {"interactive": False},
        }
        if spec.cluster is not None:
            info["spec"]["cluster"] = spec.cluster
        environment["KUBERNETES_EXEC_INFO"] = msgspec.json.encode(info).decode()
        loop = asyncio.get_running_loop()
        try:
            transport, run = await loop.subprocess_exec(
                _Run,
                command,
                *spec.args,
                env=environment,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.PIPE,
                start_new_session=True,
            )
        except (OSError, ValueError) as error:
            # NB: a ValueError means a NUL or a "=" in an argument or in the environment.
            why = f"cannot run {command}: {getattr(error, 'strerror', None) or error}"
            raise self._error(why, "command", fix="check that it is a program") from error
        try:
            await self._clock.wait_for(run.stopped, _LIMIT_S)
        except TimeoutError as error:
            why = f"{command} did not answer within {_LIMIT_S:g} s"
            raise self._error(why, fix="run it by hand to see what it waits for") from error
        finally:
            if transport.get_returncode() is None:
                # NB: plugins are often scripts, whose children would survive them.
                with suppress(ProcessLookupError):
                    os.killpg(transport.get_pid(), signal.SIGKILL)
            # NB: asyncio reports the exit of a process only after its pipes are closed.
            transport.close()
            await run.ended
        if run.is_too_much:
            why = f"{command} printed more than {_MAX_BYTES >> 20} MiB"
            raise self._error(why, fix="run it by hand to see what it prints")
        if code := transport.get_returncode():
            said = " ".join(run.error_output.decode(errors="replace").split())[-300:]
            why = f"{command} failed with exit code {code}"
            raise self._error(f"{why}: {said}" if said else why, fix="run it by hand")
        return run.output

    def _read(self, output: bytes) -> tuple[Proof, float | None]:
        """Return the proof that the output holds, and when it expires."""
        fix = f"it must print an ExecCredential of {self._spec.api_version} with a status"
        try:
            credential = msgspec.json.decode(output, type=_Credential)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            # NB: the output may hold a secret; only the message of msgspec is shown.
            raise self._error(
                f"{self._spec.command} did not print JSON: {error}", fix=fix
            ) from error
        if credential.kind != "ExecCredential" or credential.api_version != self._spec.api_version:
            printed = f"{credential.kind or 'no kind'} of {credential.api_version or 'no version'}"
            raise self._error(f"{self._spec.command} printed {printed}", fix=fix)
        status = credential.status or _Status()
        chain, key = status.client_certificate_data, status.client_key_data
        if bool(chain) != bool(key) or not (chain or status.token):
            why = f"{self._spec.command} returned neither a token nor a certificate with its key"
            raise self._error(why, fix=fix)
        certificate = ClientCertificate(chain.encode(), key.encode()) if chain and key else None
        proof = Proof(f"Bearer {status.token}" if status.token else "", certificate)
        return proof, self._read_expiration(status.expiration_timestamp)

    def _read_expiration(self, text: str | None) -> float | None:
        if not text:
            return None
        try:
            return datetime.fromisoformat(text).timestamp()
        except ValueError:
            why = f"{self._spec.command} returned an expirationTimestamp of {text!r}"
            raise self._error(why, fix="it must be like 2026-01-31T12:00:00Z") from None

    def _error(self, why: str, field: str = "", *, fix: str) -> ConfigError:
        path = f"{self._spec.field}.{field}" if field else self._spec.field
        return ConfigError(why, file=self._spec.source, field=path, fix=fix)


class _Run(asyncio.SubprocessProtocol):
    """The output of a running plugin, and its end."""

    def __init__(self) -> None:
        self._printed = {1: bytearray(), 2: bytearray()}
        self.is_too_much = False
        """Whether the plugin printed more than the limit."""
        self.stopped = asyncio.get_running_loop().create_future()
        """Done when the plugin ended and closed its pipes, or printed too much."""
        self.ended = asyncio.get_running_loop().create_future()
        """Done when the plugin ended and its pipes are closed."""

    @property
    def output(self) -> bytes:
        """What the plugin wrote to standard output."""
        return bytes(self._printed[1])

    @property
    def error_output(self) -> bytes:
        """What the plugin wrote to standard error."""
        return bytes(self._printed[2])

    def pipe_data_received(self, fd: int, data: bytes) -> None:
        """Collect output, up to a limit."""
        printed = self._printed[fd]
        printed += data
        if len(printed) > _MAX_BYTES:
            self.is_too_much = True
            printed.clear()
            self._stop()

    def connection_lost(self, _error: Exception | None) -> None:
        """Complete the futures."""
        self._stop()
        # NB: the waiter may have been cancelled.
        if not self.ended.done():
            self.ended.set_result(None)

    def _stop(self) -> None:
        if not self.stopped.done():
            self.stopped.set_result(None)
