"""A clock that was wrong, or is set back, stops neither certificates nor the ends of pods."""

from __future__ import annotations

import datetime as dt
import ssl
import time
from pathlib import Path
from typing import Any

import pytest

from keepclose.apiserver.assembly import ApiServer, ServerSettings, StartError
from keepclose.apiserver.auth.certificates import CertificateAuthority
from keepclose.apiserver.controllers.pod_reaper import POD_STORE, PodReaper
from keepclose.apiserver.storage.store import Store
from keepclose.system.private_files import BrokenFileError
from keepclose.testing.api_server import serving
from keepclose.webhook.registration import is_good, make_pair
from support.kinds import raw

JsonObject = dict[str, Any]
NOW = 1_700_000_000.0
DAY = 86_400.0


def contents(directory: Path) -> dict[str, bytes]:
    """Return what the files hold."""
    return {path.name: path.read_bytes() for path in directory.iterdir()}


@pytest.mark.parametrize("ahead", [600.0, DAY, 3650 * DAY])
def test_a_server_certificate_of_the_future_is_renewed(tmp_path: Path, ahead: float) -> None:
    """One that was made while the clock was ahead is replaced as soon as the clock is right."""
    CertificateAuthority(tmp_path, now=NOW).ensure_server_certificate()
    for name in ("server.crt", "server.key"):
        (tmp_path / name).unlink()
    early = CertificateAuthority(tmp_path, now=NOW)
    early._now += dt.timedelta(seconds=ahead)
    early.ensure_server_certificate()
    before = contents(tmp_path)
    authority = CertificateAuthority(tmp_path, now=NOW)
    assert authority.ensure_server_certificate() is True
    after = contents(tmp_path)
    assert {name for name in after if after[name] != before[name]} == {"server.crt", "server.key"}
    assert authority.ensure_server_certificate() is False
    assert isinstance(authority.server_context(), ssl.SSLContext)


def test_a_small_step_back_renews_nothing(tmp_path: Path) -> None:
    """Certificates hold from five minutes before they were made: clocks differ a little."""
    CertificateAuthority(tmp_path, now=NOW).ensure_server_certificate()
    assert CertificateAuthority(tmp_path, now=NOW - 240).ensure_server_certificate() is False


def test_an_authority_of_the_future_is_named(tmp_path: Path) -> None:
    """Clients hold it, and the clock may be wrong now, so it is kept and the way out is said."""
    CertificateAuthority(tmp_path, now=NOW + 400 * DAY).ensure_server_certificate()
    before = contents(tmp_path)
    with pytest.raises(BrokenFileError) as caught:
        CertificateAuthority(tmp_path, now=NOW)
    assert str(caught.value) == (
        f"{tmp_path}/ca.crt: is valid only from 2024-12-18 22:08 UTC, and this machine's clock "
        f"says 2023-11-14 22:13; set the clock, or remove {tmp_path} to create all certificates "
        "again"
    )
    assert contents(tmp_path) == before


def test_a_server_says_that_the_clock_is_wrong(tmp_path: Path) -> None:
    """The start of a server ends with that sentence."""
    CertificateAuthority(tmp_path / "data" / "pki", now=time.time() + 400 * DAY)
    with pytest.raises(StartError, match="set the clock, or remove"):
        ApiServer(ServerSettings(data_dir=tmp_path / "data", port=0))


def test_an_expired_authority_is_made_again(tmp_path: Path) -> None:
    """No client can use it, so a new one signs a new server certificate."""
    CertificateAuthority(tmp_path, now=NOW - 4000 * DAY).ensure_server_certificate()
    before = contents(tmp_path)
    assert CertificateAuthority(tmp_path, now=NOW).ensure_server_certificate() is True
    after = contents(tmp_path)
    assert all(after[name] != before[name] for name in after)


async def test_a_client_trusts_the_renewed_certificate(tmp_path: Path) -> None:
    """A server whose certificate was of the future answers a client that checks it."""
    pki = tmp_path / "data" / "pki"
    early = CertificateAuthority(pki, now=time.time())
    early._now += dt.timedelta(days=400)
    early.ensure_server_certificate()
    async with serving(tmp_path / "data") as api:
        assert (await api.call("GET", "/readyz")).status == 200


HOSTS = ("keepclose.kube-system.svc",)


@pytest.mark.parametrize(
    ("made_at", "want"),
    [
        pytest.param(NOW - 60, True, id="just now"),
        pytest.param(NOW + 400 * DAY, False, id="in the future"),
        pytest.param(NOW - 4000 * DAY, False, id="long ago"),
    ],
)
def test_pairs_of_the_webhook(made_at: float, want: bool) -> None:
    """A pair serves while both of its certificates are valid, and not before."""
    assert is_good(make_pair(HOSTS, now=made_at), HOSTS, now=NOW) is want


def test_a_pair_of_another_authority_is_not_good() -> None:
    """The API server would refuse a certificate that the authority beside it did not sign."""
    pair, other = make_pair(HOSTS, now=NOW), make_pair(HOSTS, now=NOW)
    assert not is_good(pair._replace(ca=other.ca), HOSTS, now=NOW)
    assert not is_good(pair._replace(key=other.key), HOSTS, now=NOW)
    assert not is_good(pair._replace(ca=b"-"), HOSTS, now=NOW)


class Clocks:
    """The wall clock, which may be set, and the clock that never goes back."""

    def __init__(self) -> None:
        self.wall = NOW
        self.monotonic = 5.0

    def pass_by(self, seconds: float) -> None:
        """Let time pass."""
        self.wall += seconds
        self.monotonic += seconds


class Ending:
    """Pods in a store in memory, and those that were ended."""

    def __init__(self) -> None:
        self.store = Store.open(None)
        self.clocks = Clocks()
        self.ended: list[str] = []
        self.graces = PodReaper(
            self.store,
            self.end,
            clock=lambda: self.clocks.wall,
            monotonic=lambda: self.clocks.monotonic,
        )

    def end(self, store: str, namespace: str, name: str, *, uid: str) -> None:
        """Take note, and remove the pod."""
        del uid
        self.ended.append(name)
        self.store.delete(store, namespace, name)

    def put(self, name: str, *, grace: int) -> None:
        """Store a pod whose grace period begins now."""
        end = dt.datetime.fromtimestamp(self.clocks.wall + grace, dt.UTC)
        metadata: JsonObject = {
            "uid": name,
            "deletionTimestamp": f"{end:%Y-%m-%dT%H:%M:%SZ}",
            "deletionGracePeriodSeconds": grace,
        }
        self.graces.track(self.store.create(POD_STORE, raw("Pod", name, metadata=metadata)))


def test_a_clock_set_back_holds_no_pod() -> None:
    """The grace period of a pod passes by the time that really passes."""
    ending = Ending()
    ending.put("one", grace=30)
    ending.clocks.wall -= 3600
    left = ending.graces.delete_due()
    assert left is not None
    assert left <= 31
    ending.clocks.pass_by(left)
    assert ending.graces.delete_due() is None
    assert ending.ended == ["one"]


def test_the_order_holds_when_the_clock_is_set_between_two_pods() -> None:
    """Each pod ends within its own period, whatever the other's time says."""
    ending = Ending()
    ending.put("long", grace=600)
    ending.clocks.wall -= 86_400
    ending.put("short", grace=10)
    ending.clocks.pass_by(11)
    ending.graces.delete_due()
    assert ending.ended == ["short"]
    ending.clocks.pass_by(590)
    assert (ending.graces.delete_due(), ending.ended) == (None, ["short", "long"])


def test_a_restart_with_the_clock_set_back_counts_the_period_once_more() -> None:
    """After a restart a pod waits at most for its whole period, never for the wrong clock."""
    ending = Ending()
    ending.put("one", grace=30)
    ending.clocks.wall -= 86_400
    ending.graces.resume()
    left = ending.graces.delete_due()
    assert left is not None
    assert left <= 31
