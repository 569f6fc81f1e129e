"""Which writer is taken, and what is said when none can be."""

from __future__ import annotations

from pathlib import Path

import pytest
from structlog.testing import capture_logs

from keepclose.proxy.nft.libnftables import LibnftablesWriter
from keepclose.proxy.nft.requirements import (
    FEATURES,
    POOLS,
    find_host_problems,
    find_missing,
    has_net_admin,
    kernel_problem,
    nft_problem,
    transaction_of,
)
from keepclose.proxy.nft.select_writer import (
    NftablesUnavailableError,
    NftCommandWriter,
    WriterSettings,
    choose_writer,
)
from keepclose.proxy.nft.writer import NftError, NftFailure
from keepclose.proxy.process import fit_settings
from keepclose.proxy.settings import ProxySettings
from keepclose.testing.recording_writer import RecordingWriter
from support.netns import namespaces_or_skip


async def test_the_library_is_taken_where_it_works() -> None:
    """And the log says so; the probes leave nothing behind."""
    with namespaces_or_skip("nft") as [inside]:
        with capture_logs() as logs:
            chosen = await choose_writer(WriterSettings(namespace=inside.path))
        assert isinstance(chosen.writer, LibnftablesWriter)
        assert (chosen.name, chosen.reason) == ("libnftables", "it works in process")
        assert logs == [
            {
                "event": "nftables writer selected",
                "log_level": "info",
                "writer": "libnftables",
                "reason": "it works in process",
            }
        ]
        assert inside.run("nft", "list", "tables") == ""
        await chosen.writer.close()


async def test_the_program_is_taken_where_the_library_is_missing() -> None:
    """The reason is the library's fault."""
    with namespaces_or_skip("nft") as [inside]:
        chosen = await choose_writer(
            WriterSettings(namespace=inside.path, library="libnone.so.9"), host_problems=list
        )
        assert isinstance(chosen.writer, NftCommandWriter)
        assert chosen.name == "nft"
        assert chosen.reason.startswith("libnone.so.9 cannot be used: libnone.so.9: cannot open")
        await chosen.writer.close()


async def test_the_program_is_taken_when_asked_for() -> None:
    """A working library does not matter then."""
    with namespaces_or_skip("nft") as [inside]:
        chosen = await choose_writer(WriterSettings(prefer="nft", namespace=inside.path))
        assert (chosen.name, chosen.reason) == ("nft", "selected by the settings")
        await chosen.writer.close()


async def test_neither_is_there() -> None:
    """Both faults are told at once, with the way out."""
    settings = WriterSettings(library="libnone.so.9", program="no-such-nft")
    with pytest.raises(NftablesUnavailableError) as caught:
        await choose_writer(settings, host_problems=list)
    assert len(caught.value.problems) == 2
    assert caught.value.problems[0].startswith("libnone.so.9 cannot be used")
    assert caught.value.problems[1] == "no-such-nft is not installed; install the package nftables"
    with pytest.raises(NftablesUnavailableError) as caught:
        await choose_writer(settings._replace(prefer="libnftables"), host_problems=list)
    assert len(caught.value.problems) == 1


@pytest.mark.parametrize(
    ("text", "want"),
    [
        pytest.param("echo nftables v0.9.8", "nft is 0.9.8; 1.0.1 or newer is needed", id="old"),
        pytest.param("exit 1", "ended with code 1", id="broken"),
        pytest.param("sleep 60", "did not end within 0.3 s", id="hanging"),
    ],
)
async def test_a_program_that_cannot_be_used(tmp_path: Path, text: str, want: str) -> None:
    """It is asked for its version before anything else."""
    program = tmp_path / "nft"
    program.write_text(f"#!/bin/sh\n{text}\n")
    program.chmod(0o755)
    settings = WriterSettings(prefer="nft", program=str(program), limit=0.3)
    with pytest.raises(NftablesUnavailableError) as caught:
        await choose_writer(settings, host_problems=list)
    assert want in str(caught.value)


async def test_obstacles_come_first() -> None:
    """Without rights nothing is tried."""
    with pytest.raises(NftablesUnavailableError, match="nftables cannot be used here: a; b"):
        await choose_writer(host_problems=lambda: ["a", "b"])


async def test_a_kernel_without_some_features() -> None:
    """Each missing feature is named, for each family."""

    class Refusing(RecordingWriter):
        async def check(self, text: str) -> None:
            await super().check(text)
            if "numgen" in text or ("fib" in text and "ip6" in text):
                raise NftError("Could not process rule: Operation not supported")

    writer = Refusing()
    assert await find_missing(writer, ("ip", "ip6")) == [
        (
            "nat to random map entries (nft_numgen, nft_nat) for ip: "
            "Could not process rule: Operation not supported"
        ),
        (
            "nat to random map entries (nft_numgen, nft_nat) for ip6: "
            "Could not process rule: Operation not supported"
        ),
        "fib lookups (nft_fib) for ip6: Could not process rule: Operation not supported",
    ]
    # All is asked for at once first, and one by one where that is refused.
    assert len(writer.checked) == 1 + 2 * len(FEATURES)
    assert writer.applied == []


async def test_missing_rights_are_no_missing_feature() -> None:
    """They are raised at once."""

    class Forbidden(RecordingWriter):
        async def check(self, text: str) -> None:
            del text
            raise NftError("Operation not permitted", failure=NftFailure.FORBIDDEN)

    with pytest.raises(NftError, match="not permitted"):
        await find_missing(Forbidden(), ("ip",))


def test_the_text_of_a_probe() -> None:
    """Every probe works in a table that nobody else has."""
    assert transaction_of(FEATURES[2], "ip6").splitlines() == [
        "add table ip6 keepclose-probe",
        "add chain ip6 keepclose-probe n { type nat hook prerouting priority -100 ; }",
        (
            "add rule ip6 keepclose-probe n meta l4proto tcp dnat ip6 addr . port to numgen random "
            "mod 2 map { 0 : 2001:db8::1 . 80 , 1 : 2001:db8::1 . 81 }"
        ),
    ]


@pytest.mark.parametrize(
    ("release", "want"),
    [
        ("6.18.44-fc", ""),
        ("5.13.0", ""),
        ("5.12.19", "the kernel is 5.12.19; nftables for Services needs 5.13 or newer"),
        ("4.19", "the kernel is 4.19; nftables for Services needs 5.13 or newer"),
        ("strange", ""),
    ],
)
def test_kernels(release: str, want: str) -> None:
    """Old ones are refused; what cannot be read is left to the probes."""
    assert kernel_problem(release) == want


@pytest.mark.parametrize(
    ("said", "want"),
    [
        ("nftables v1.0.6 (Lester Gooch #5)", ""),
        ("nftables v1.0.1 (x)", ""),
        ("nftables v1.1 (x)", ""),
        ("nftables v1.0.0 (x)", "nft is 1.0.0; 1.0.1 or newer is needed"),
        ("nftables v0.9.8 (x)", "nft is 0.9.8; 1.0.1 or newer is needed"),
        ("hello", "nft does not print its version: 'hello'"),
    ],
)
def test_versions_of_nft(said: str, want: str) -> None:
    """The first versions read the rules of the whole machine."""
    assert nft_problem(said) == want


def test_rights() -> None:
    """Only the effective capabilities count."""
    assert has_net_admin("CapPrm:\t0\nCapEff:\t0000000000001000\n")
    assert not has_net_admin("CapPrm:\t1000\nCapEff:\t0000000000000fff\n")
    assert not has_net_admin("")
    assert isinstance(find_host_problems(skip_kernel_version=True), list)


async def test_shared_maps_are_used_where_they_are_known() -> None:
    """The kernel and the nft of this machine know them, in both families."""
    with namespaces_or_skip("nft") as [inside]:
        writer = LibnftablesWriter(namespace=inside.path)
        assert await find_missing(writer, ("ip", "ip6"), (POOLS,)) == []
        assert (await fit_settings(ProxySettings("n1"), writer)).pooled
        await writer.close()


async def test_an_nft_that_does_not_know_shared_maps_gets_none() -> None:
    """Rules are then written in the older form, and the log says what that costs."""

    class Older(RecordingWriter):
        async def check(self, text: str) -> None:
            await super().check(text)
            raise NftError("syntax error, unexpected numgen")

    writer = Older()
    with capture_logs() as logs:
        fitted = await fit_settings(ProxySettings("n1", families=("IPv4",)), writer)
    assert not fitted.pooled
    assert logs == [
        {
            "event": "changes of large tables will be slow",
            "log_level": "warning",
            "missing": "maps of endpoints by number for ip: syntax error, unexpected numgen",
        }
    ]
