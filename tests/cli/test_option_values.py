"""Tests of the values that several commands read in the same way."""

from __future__ import annotations

import pytest

from keepclose.cli.options import read_address, read_address_or_none


@pytest.mark.parametrize(
    ("text", "want"),
    [
        pytest.param("10.0.0.1:80", ("10.0.0.1", 80), id="an IPv4 address"),
        pytest.param("[fd00::1]:80", ("fd00::1", 80), id="an IPv6 address without its brackets"),
        pytest.param(":80", ("127.0.0.1", 80), id="loopback without a host"),
        pytest.param("a.example:0", ("a.example", 0), id="any free port"),
    ],
)
def test_addresses_are_read(text: str, want: tuple[str, int]) -> None:
    """Host and port stand on either side of the last colon."""
    assert read_address("--at", text) == want
    assert read_address_or_none("--at", text) == want


@pytest.mark.parametrize("text", ["80", "a:", "a:b", "a:65536", "a:-1", ""])
def test_other_texts_are_refused(text: str, capsys: pytest.CaptureFixture[str]) -> None:
    """The command ends with 2 and names the option, what it got and what it takes."""
    with pytest.raises(SystemExit) as ended:
        read_address("--at", text)

    assert ended.value.code == 2
    assert capsys.readouterr().err == f"error: --at: {text!r} must be HOST:PORT\n"


def test_none_is_no_address(capsys: pytest.CaptureFixture[str]) -> None:
    """Only where an option says so may it be none."""
    assert read_address_or_none("--at", "none") is None
    with pytest.raises(SystemExit):
        read_address_or_none("--at", "nothing")

    assert capsys.readouterr().err == "error: --at: 'nothing' must be HOST:PORT, or none\n"
