"""A long-running command starts without what it does not need."""

from __future__ import annotations

import subprocess
import sys

PROBE = """
import gc, os, ssl, sys
os.environ["SSL_CERT_FILE"] = "/somewhere"
os.environ.pop("SSL_CERT_DIR", None)
import keepclose.cli.main
from keepclose.cli.startup import import_lean
import_lean("keepclose.proxy.process", "keepclose.kube.auth.kubeconfig")
from keepclose.cli.options import read_duration
read_duration("--sync-period", "30s")
import keepclose.cli.startup
import aiohttp.connector
print("prometheus_client" in sys.modules, "rich" in sys.modules, os.environ["SSL_CERT_FILE"])
print(len(aiohttp.connector._SSL_CONTEXT_VERIFIED.get_ca_certs()))
import rich.console
print(rich.console.Console.__name__, "SSL_CERT_DIR" in os.environ)
print("keepclose.controller" in sys.modules, "keepclose.slices" in sys.modules, gc.isenabled())
"""


def test_a_proxy_starts_without_what_it_does_not_need() -> None:
    """No terminal or metrics library, no controller, no authorities; all else stays."""
    done = subprocess.run(
        [sys.executable, "-c", PROBE], check=True, capture_output=True, text=True, timeout=120
    )
    want = ["False False /somewhere", "0", "Console False", "False False True"]
    assert done.stdout.splitlines() == want


def test_what_is_loaded_already_stays() -> None:
    """A program that has loaded rich itself keeps it."""
    probe = (
        "import sys, rich; from keepclose.cli.startup import import_lean; import_lean();"
        "print(sys.modules['rich'] is rich)"
    )
    done = subprocess.run(
        [sys.executable, "-c", probe], check=True, capture_output=True, text=True, timeout=120
    )
    assert done.stdout == "True\n"
