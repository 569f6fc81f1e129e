"""A disk that runs full under a real server: reads and deletes go on, and readiness says why not.

The server runs in a mount namespace of its own on a small tmpfs, which ConfigMaps fill up.
"""

from __future__ import annotations

import http.client
import json
import os
import ssl
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, NamedTuple

import pytest

from keepclose.apiserver.storage.log import RESERVE_BYTES

DISK_BYTES: Final = 40 << 20
MAPS: Final = "/api/v1/namespaces/default/configmaps"
# Less than the 1 MiB that a ConfigMap may hold.
LARGE: Final = "x" * 900_000


class Answer(NamedTuple):
    """Status and body of an answer."""

    status: int
    body: str

    @property
    def object(self) -> Any:
        """The body as JSON."""
        return json.loads(self.body)


class SmallServer:
    """A server whose data directory is on a small disk."""

    def __init__(self, process: subprocess.Popen[str], url: str, directory: Path) -> None:
        self.process = process
        self.directory = Path(f"/proc/{process.pid}/root") / directory.relative_to("/")
        self.port = int(url.rpartition(":")[2])
        self.token = (self.directory / "tokens" / "admin").read_text().strip()
        self.context = ssl.create_default_context(
            cadata=(self.directory / "pki" / "ca.crt").read_text()
        )

    def connect(self) -> http.client.HTTPSConnection:
        """Return a connection of its own."""
        return http.client.HTTPSConnection("127.0.0.1", self.port, context=self.context, timeout=60)

    def call(self, method: str, path: str, body: object = None) -> Answer:
        """Return the answer to a request."""
        connection = self.connect()
        headers = {"Authorization": f"Bearer {self.token}", "Content-Type": "application/json"}
        sent = None if body is None else json.dumps(body)
        connection.request(method, path, body=sent, headers=headers)
        response = connection.getresponse()
        answer = Answer(response.status, response.read().decode())
        connection.close()
        return answer

    def create(self, name: str, text: str = LARGE) -> Answer:
        """Create a ConfigMap."""
        return self.call("POST", MAPS, {"metadata": {"name": name}, "data": {"text": text}})

    def await_ready(self) -> None:
        """Ask until the server is ready; it looks at the disk once a second."""
        end = time.monotonic() + 60
        while (answer := self.call("GET", "/readyz")) != (200, "ok"):
            assert time.monotonic() < end, answer

    def fill(self) -> tuple[list[str], Answer]:
        """Create large ConfigMaps until one is refused; return their names and the refusal."""
        names: list[str] = []
        while len(names) * len(LARGE) < DISK_BYTES:
            answer = self.create(f"large-{len(names)}")
            if answer.status != 201:
                return names, answer
            names.append(f"large-{len(names)}")
        raise AssertionError("the disk took more than it can hold")


@pytest.fixture
def small(tmp_path: Path) -> Iterator[SmallServer]:
    """Provide a server on a tmpfs of 40 MiB."""
    disk = tmp_path / "disk"
    disk.mkdir()
    space = ("unshare", "-m") if os.geteuid() == 0 else ("unshare", "-rm")
    script = f'mount -t tmpfs -o size={DISK_BYTES} tmpfs {disk}; exec "$@"'
    inside = (*space, "sh", "-ec", script, "sh")
    probe = subprocess.run([*inside, "true"], capture_output=True, check=False)
    if probe.returncode:
        pytest.skip(f"no small disk can be mounted here: {probe.stderr.decode()}")
    command = [sys.executable, "-m", "keepclose", "apiserver", "--data-dir", str(disk / "data")]
    with (tmp_path / "log").open("wb") as log:
        process = subprocess.Popen(
            [*inside, *command, "--port", "0"], stdout=subprocess.PIPE, stderr=log, text=True
        )
    assert process.stdout is not None
    line = process.stdout.readline()
    try:
        assert "ready" in line, (tmp_path / "log").read_text()
        url = next(word for word in line.split() if word.startswith("http"))
        yield SmallServer(process, url, disk / "data")
    finally:
        process.terminate()
        assert process.wait(60) == 0
        process.stdout.close()


def test_a_full_disk_is_told_and_deletes_help(small: SmallServer) -> None:
    """Writes fail with the reason, reads and watches go on, and deletes bring the room back."""
    assert small.call("GET", "/readyz") == (200, "ok")
    version = small.create("small", "text").object["metadata"]["resourceVersion"]
    assert (small.directory / "store.db-reserve").stat().st_size == RESERVE_BYTES
    names, refused = small.fill()
    assert len(names) > 5
    assert refused.status == 500
    assert refused.object["reason"] == "InternalError"
    assert refused.object["message"].endswith(
        "/store.db: cannot be written: database or disk is full; "
        "check the disk; the write was not stored and may be retried"
    )
    unready = small.call("GET", "/readyz")
    assert unready.status == 500
    assert "[-]storage failed: the disk cannot be written: " in unready.body
    assert small.call("GET", "/readyz/storage").status == 500
    assert small.call("GET", "/livez") == (200, "ok")
    assert len(small.call("GET", MAPS).object["items"]) == len(names) + 2
    watch = small.connect()
    path = f"{MAPS}?watch=true&resourceVersion={version}"
    watch.request("GET", path, headers={"Authorization": f"Bearer {small.token}"})
    stream = watch.getresponse()
    for name in names:
        assert json.loads(stream.readline())["object"]["metadata"]["name"] == name
    for name in names:
        answer = small.call("DELETE", f"{MAPS}/{name}")
        assert answer.status == 200, answer.body
        event = json.loads(stream.readline())
        assert (event["type"], event["object"]["metadata"]["name"]) == ("DELETED", name)
    watch.close()
    assert small.create("afterwards").status == 201
    small.await_ready()
    assert (small.directory / "store.db-reserve").stat().st_size == RESERVE_BYTES
    assert len(small.call("GET", MAPS).object["items"]) == 3


def test_objects_with_finalizers_and_graces_can_be_deleted(small: SmallServer) -> None:
    """The marks that lead to a delete may use the reserve too; other writes may not."""
    body = {"metadata": {"name": "held", "finalizers": ["example.com/x"]}, "data": {"a": "b"}}
    assert small.call("POST", MAPS, body).status == 201
    small.fill()
    while small.create("filler", "x" * 3000).status == 201:
        small.call("DELETE", f"{MAPS}/filler")
        small.fill()
    marked = small.call("DELETE", f"{MAPS}/held")
    assert marked.status == 200, marked.body
    held = small.call("GET", f"{MAPS}/held").object
    assert held["metadata"]["deletionTimestamp"]
    held["metadata"]["finalizers"] = []
    assert small.call("PUT", f"{MAPS}/held", held).status == 200
    assert small.call("GET", f"{MAPS}/held").status == 404


def test_a_full_disk_loses_nothing(small: SmallServer) -> None:
    """After a kill on a full disk everything acknowledged is there."""
    names, _ = small.fill()
    listed = small.call("GET", MAPS).object["items"]
    for name in names[:3]:
        assert small.call("DELETE", f"{MAPS}/{name}").status == 200
    want = {item["metadata"]["name"] for item in listed} - set(names[:3])
    got = {item["metadata"]["name"] for item in small.call("GET", MAPS).object["items"]}
    assert got == want
