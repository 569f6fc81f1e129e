"""Commands that advise, with an API server whose lists hold what no cluster has."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
from typer.testing import CliRunner

from keepclose.cli.main import app

SERVICE = {
    "metadata": {"name": "web", "namespace": "shop", "uid": "u"},
    "spec": {
        "selector": {"app": "web"},
        "ports": [{"port": 80}],
        "type": "ClusterIP",
        "clusterIP": "10.96.0.10",
        "clusterIPs": ["10.96.0.10"],
    },
}
ODD: list[Any] = [
    {"metadata": 5},
    {"spec": []},
    7,
    None,
    {"metadata": {"name": 5}},
    {"metadata": {"name": "n", "namespace": []}},
    {"metadata": {}},
]


@contextmanager
def serving(lists: dict[str, list[Any]], default: list[Any]) -> Iterator[tuple[str, list[str]]]:
    """Serve lists by resource; yield the URL, and the methods of all requests."""
    methods: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        """Answers each request with a list of one page."""

        def do_GET(self) -> None:
            resource = self.path.partition("?")[0].rpartition("/")[2]
            items = lists.get(resource, default)
            answer = {"kind": "List", "metadata": {"resourceVersion": "1"}, "items": items}
            body = json.dumps(answer).encode()
            methods.append(self.command)
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        do_POST = do_PUT = do_PATCH = do_DELETE = do_GET  # noqa: N815 - the names of the base

        def log_message(self, *_: Any) -> None:
            """Log nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}", methods
        finally:
            server.shutdown()
            thread.join()


@pytest.mark.parametrize(
    "command",
    [["plan"], ["explain", "shop/web"], ["lint"], ["resolve"], ["snapshot", "--anonymize"]],
    ids=lambda words: str(words[0]),
)
@pytest.mark.parametrize("is_repeated", [False, True])
def test_odd_and_repeated_objects_are_left_out(
    command: list[str], is_repeated: bool, tmp_path: Path
) -> None:
    """A command answers without them, never ends by a fault of its own, and writes nothing."""
    services = [SERVICE, SERVICE] if is_repeated else [SERVICE, *ODD]
    with serving({"services": services}, [] if is_repeated else ODD) as (url, methods):
        config = {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "c", "cluster": {"server": url}}],
            "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
            "current-context": "c",
            "users": [{"name": "u", "user": {"token": "t"}}],
        }
        path = tmp_path / "config"
        path.write_text(json.dumps(config))
        result = CliRunner().invoke(app, [*command, "--kubeconfig", str(path)])
    assert result.exception is None or isinstance(result.exception, SystemExit), result.output
    assert result.exit_code in (0, 1, 3), result.output
    assert set(methods) == {"GET"}
    assert is_repeated or "missing" in result.output or command[0] == "explain"
