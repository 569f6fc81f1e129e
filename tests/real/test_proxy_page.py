"""The page about the proxy, typed word by word on a machine that has nothing yet."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

from support.netns import namespaces_or_skip
from support.real.programs import program

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "howto" / "proxy.md").read_text()


def test_the_first_commands_of_the_page(tmp_path: Path) -> None:
    """A server, a Node and its kubeconfig come of what the page says, and rules of those."""
    (server,), (apply, _), _, (dry_run, *_) = [
        text.splitlines() for text in re.findall(r"```sh\n(.*?)```", PAGE, re.DOTALL)
    ]
    kubectl = program("kubectl").parent
    # The port of a namespace of its own is free, and tells when the server is ready.
    ready = "until curl -sk https://127.0.0.1:6443/readyz > /dev/null; do sleep 0.1; done"
    script = "\n".join(["trap 'kill %1; wait' EXIT", f"{server} &", ready, apply, dry_run])
    with namespaces_or_skip("page") as [inside]:
        done = subprocess.run(
            inside.command(
                "bash", "-euc", script.replace("~/proxy-cluster", str(tmp_path / "data"))
            ),
            capture_output=True,
            text=True,
            check=False,
            cwd=ROOT,
            timeout=300,
            env={**os.environ, "PATH": f"{kubectl}:{os.environ['PATH']}"},
        )
    assert done.returncode == 0, done.stderr
    assert "node/n1 created" in done.stdout
    assert "add element ip kube-proxy no-endpoint-services { " in done.stdout
    # The Node has pod ranges, so traffic from elsewhere is masqueraded.
    assert "ip saddr != 10.244.1.0/24" in done.stdout
