"""Libraries of long-running commands, loaded without those parts of them that take longest.

structlog loads rich, if that is installed, to draw traces on terminals; our logs are JSON. aiohttp
reads all certificate authorities of the machine for a context that our client never uses: it has
one with the authorities of its kubeconfig. And nearly all that imports create stays, so collecting
garbage meanwhile finds nothing. Together that is a third of the time in which a command starts.

Only for processes of our own commands: a program that uses keepclose as a library gets both whole.
"""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module


def import_lean(*modules: str) -> None:
    """Import structlog, aiohttp and then modules of ours; those that are loaded already stay."""
    with _collecting_nothing():
        with _without_module("rich"):
            import structlog  # noqa: F401 - loaded for its later users
        with _environment(SSL_CERT_FILE=os.devnull, SSL_CERT_DIR=os.devnull):
            import aiohttp  # noqa: F401
        for module in modules:
            import_module(module)


@contextmanager
def _collecting_nothing() -> Iterator[None]:
    """Hold the garbage collector off within the block."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


@contextmanager
def _without_module(name: str) -> Iterator[None]:
    """Have imports of a module fail within the block, unless it is loaded already."""
    if name in sys.modules:
        yield
        return
    # NB: None is how Python itself marks a module that cannot be imported.
    sys.modules[name] = None  # type: ignore[assignment]
    try:
        yield
    finally:
        del sys.modules[name]


@contextmanager
def _environment(**values: str) -> Iterator[None]:
    """Have other environment variables within the block."""
    before = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value
