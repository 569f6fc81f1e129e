"""What differs between two runs, made the same."""

from __future__ import annotations

import pytest

from support.normalising import normalise


@pytest.mark.parametrize(
    ("line", "want"),
    [
        ("demo-6b7c9d5f48-x2k9q  1/1  Running", "demo-<drawn> 1/1 Running"),
        ("replicaset.apps/demo-6b7c9d5f48", "replicaset.apps/demo-<drawn>"),
        ("kube-dns-x2k9q", "kube-dns-<drawn>"),
        ("kube-proxy demo-svc zone-a node-local", "kube-proxy demo-svc zone-a node-local"),
        ("Ready <none> 3m4s v1.36.3", "Ready <none> <time> v1.36.3"),
        ("AGE 12s 5d 2d3h 0.4 s 350 ms 350ms 2 seconds", "AGE" + " <time>" * 7),
        ("3 services 5 millions 10m", "3 services 5 millions <time>"),
        ("2026-07-01T12:00:00Z 2026-07-01T12:00:00.123456+02:00", "<moment> <moment>"),
        ("https://127.0.0.1:40123 localhost:80", "https://127.0.0.1:<port> localhost:<port>"),
        ("NodePort 10.96.3.4 <none> 80:31234/TCP", "NodePort <address> <none> 80:<port>/TCP"),
        ("10.244.1.3 10.1.2.3 172.18.0.1", "<address> 10.1.2.3 172.18.0.1"),
        (
            "/root/.keepclose /home/me/.keepclose /tmp/root/x",
            "~/.keepclose ~/.keepclose /tmp/root/x",
        ),
        ("\x1b[1mshop/web\x1b[0m", "shop/web"),
        ("started, pid 4711", "started, pid <n>"),
        ("1,000 connections, 33.3 %", "1,000 connections, 33.3 %"),
        ("   padded    out  ", "padded out"),
    ],
)
def test_what_differs_between_runs(line: str, want: str) -> None:
    """What was drawn, given out or measured is replaced; all else stays."""
    assert normalise(line) == want


def test_the_home_directory() -> None:
    """The home of a run is a tilde, wherever it is."""
    assert normalise("/tmp/x/home/.keepclose", home="/tmp/x/home") == "~/.keepclose"  # noqa: S108
