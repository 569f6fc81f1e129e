"""Addresses of pages: what is refused, and that no message has a user or a password."""

from __future__ import annotations

import socket
import threading

import pytest

from keepclose.system.bounded_http import HttpPageError, get_page, show_url, split_url


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


@pytest.mark.parametrize(
    "status_line", [b"HTTP/1.1 \x1b[2J\r\n", b"\x1b]0;title\x07" * 1000 + b"\r\n"]
)
def test_what_another_end_answers_is_shown_in_one_visible_line(status_line: bytes) -> None:
    """An answer that is no HTTP is quoted in short, and cannot move a cursor."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def answer() -> None:
            connection, _ = server.accept()
            with connection:
                connection.recv(4096)
                connection.sendall(status_line)

        thread = threading.Thread(target=answer)
        thread.start()
        url = split_url(f"http://127.0.0.1:{server.getsockname()[1]}")
        with pytest.raises(HttpPageError) as raised:
            get_page(url, "/flows", what="flow agent", most=1000)
        thread.join()
    message = str(raised.value)
    assert message.isprintable()
    assert len(message) < 500
