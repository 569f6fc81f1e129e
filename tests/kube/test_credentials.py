"""Tests of tokens, passwords and certificates, and of the files that hold them."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from keepclose.kube.auth.credentials import ClientCertificate, Proof, SecretFile, StoredCredentials
from keepclose.kube.errors import ConfigError
from keepclose.testing.fake_clock import FakeClock


def replace(file: Path, text: str) -> None:
    """Replace a file as kubelets do: a new one takes its name."""
    new = file.with_suffix(".new")
    new.write_text(text)
    new.rename(file)


@pytest.mark.parametrize(
    ("credentials", "want"),
    [
        pytest.param(StoredCredentials(), Proof(), id="anonymous"),
        pytest.param(StoredCredentials(token=b" abc\n"), Proof("Bearer abc"), id="token"),
        pytest.param(
            StoredCredentials(username="ann", password="pß"),  # noqa: S106
            Proof("Basic YW5uOnDDnw=="),
            id="password",
        ),
        pytest.param(
            StoredCredentials(chain=b"C", key=b"K"),
            Proof("", ClientCertificate(b"C", b"K")),
            id="certificate",
        ),
        pytest.param(
            StoredCredentials(token=b"t", chain=b"C", key=b"K"),
            Proof("Bearer t", ClientCertificate(b"C", b"K")),
            id="token and certificate",
        ),
    ],
)
async def test_what_is_known_is_shown(credentials: StoredCredentials, want: Proof) -> None:
    """Each kind of credential makes its proof; after a 401 nothing new can come of it."""
    assert await credentials.proof() == want
    assert credentials.forget() is False


async def test_a_token_file_is_read_again_after_a_minute(tmp_path: Path) -> None:
    """A replaced token is noticed at the next look, not sooner."""
    clock, file = FakeClock(), tmp_path / "token"
    file.write_text("one\n")
    credentials = StoredCredentials(token=SecretFile(str(file), clock=clock))
    assert (await credentials.proof()).authorization == "Bearer one"
    replace(file, "two\n")
    await clock.advance(59)
    assert (await credentials.proof()).authorization == "Bearer one"
    await clock.advance(1)
    assert (await credentials.proof()).authorization == "Bearer two"


async def test_a_401_makes_the_file_be_read_at_once(tmp_path: Path) -> None:
    """After forgetting, the next proof comes from the file as it is."""
    file = tmp_path / "token"
    file.write_text("one")
    credentials = StoredCredentials(token=SecretFile(str(file), clock=FakeClock()))
    await credentials.proof()
    replace(file, "two")
    assert credentials.forget() is True
    assert (await credentials.proof()).authorization == "Bearer two"


@pytest.mark.parametrize("harm", ["gone", "empty"])
async def test_a_file_in_trouble_keeps_its_last_content(tmp_path: Path, harm: str) -> None:
    """A file that vanishes, or is caught while being written, does not lose the old token."""
    clock, path = FakeClock(), tmp_path / "token"
    path.write_text("one")
    file = SecretFile(str(path), clock=clock)
    assert file.read() == b"one"
    if harm == "gone":
        path.unlink()
    else:
        path.write_text("")
    await clock.advance(61)
    assert file.read() == b"one"
    path.write_text("two")
    await clock.advance(61)
    assert file.read() == b"two"


def test_an_unchanged_file_is_not_read_again(tmp_path: Path) -> None:
    """Only what changed is read; the same file with the same times is taken as the same."""
    path = tmp_path / "token"
    path.write_text("one")
    os.utime(path, ns=(5, 5))
    file = SecretFile(str(path), clock=FakeClock())
    assert file.read() == b"one"
    path.write_text("two")
    os.utime(path, ns=(5, 5))
    file.forget()
    assert file.read() == b"one"


def test_a_file_that_never_was_is_an_error(tmp_path: Path) -> None:
    """The error names who asked for the file, the file, and what to check."""
    file = SecretFile(
        f"{tmp_path}/token", clock=FakeClock(), field="users[a].user.tokenFile", source="/kc"
    )
    with pytest.raises(ConfigError) as raised:
        file.read()
    assert str(raised.value) == (
        f"/kc: users[a].user.tokenFile: cannot read {tmp_path}/token: no such file or directory; "
        "check the path and who may read it"
    )


def test_secrets_do_not_show() -> None:
    """Neither proofs nor certificates print what they hold."""
    certificate = ClientCertificate(b"chain", b"secret")
    assert "secret" not in repr(certificate)
    assert "secret" not in repr(Proof("Bearer secret", certificate))
