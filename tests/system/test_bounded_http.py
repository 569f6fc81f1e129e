"""Addresses of pages: what is refused, and that no message has a user or a password."""

from __future__ import annotations

import pytest

from keepclose.system.bounded_http import HttpPageError, show_url, split_url


@pytest.mark.parametrize(
    "address",
    [
        pytest.param("admin:s3cret@127.0.0.1:9090", id="no scheme"),
        pytest.param("http:/admin:s3cret@127.0.0.1:9090", id="one slash"),
        pytest.param("http://admin:s3cret@127.0.0.1:port", id="no port"),
        pytest.param("http://admin:2024/s3cret@127.0.0.1:9090", id="a slash in the password"),
        pytest.param("ftp://admin:s3cret@127.0.0.1", id="another scheme"),
        pytest.param("http://admin:s3cret@", id="no host"),
    ],
)
def test_a_refused_address_shows_no_password(address: str) -> None:
    """An address that cannot work is an error without what stands before its host."""
    with pytest.raises(HttpPageError) as raised:
        split_url(address)
    assert "s3cret" not in f"{raised.value} {raised.value.fix}"
    assert "admin" not in f"{raised.value} {raised.value.fix}"


def test_an_address_is_shown_without_user() -> None:
    """User and password of a valid address are kept for the request, and not shown."""
    url = split_url("https://admin:s3%2Fcret@[::1]:9090/base/")
    assert (url.username, url.hostname, url.port) == ("admin", "::1", 9090)
    assert show_url(url, url.path) == "https://[::1]:9090/base"
