"""Compiles a plain function, together with every plain function it calls, with numba.

Allocators are ordinary Python that the controller runs uncompiled. This module copies such a
function, with globals that hold compiled copies of its callees, and numba compiles the copy; the
original never changes. Machine code is cached between processes under a name that carries a digest
of all source code that went into it, so a changed callee can never be served from an old file.
Fast-math stays off: the order of float operations decides ties. A cache folder that cannot be
written is no error; the next process only compiles again.
"""

from __future__ import annotations

import builtins
import hashlib
import importlib
import importlib.util
import os
import tempfile
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import cache
from pathlib import Path
from types import CodeType, FunctionType
from typing import Any, TypeVar, cast

Function = TypeVar("Function", bound=Callable[..., Any])

_LOCK = threading.RLock()
_REPORTS: list[Callable[[], None]] = []
_COMPILED: dict[tuple[str, bool], Callable[..., Any]] = {}


def is_available() -> bool:
    """Return whether the compiler (numba) is installed, without importing it."""
    return importlib.util.find_spec("numba") is not None


def bind_function(function: Function, bindings: Mapping[str, Callable[..., Any]]) -> Function:
    """Return an uncompiled copy of a plain function with `bindings` among its globals.

    A row loop gets its allocator this way; names that are not bound keep their meaning.
    """
    plain = _plain(function)
    return cast("Function", _copy(plain, dict(plain.__globals__) | dict(bindings)))


def compile_function(
    function: Function, bindings: Mapping[str, Callable[..., Any]] | None = None
) -> Function:
    """Return the function compiled together with the plain functions it calls.

    `bindings` replaces globals of the function first, as `bind_function` does. Equal calls return
    the same object. Machine code is generated at the first call, or loaded from a matching file.
    NB: neither the function nor its callees may create lists or arrays, or call themselves.
    """
    with _LOCK:
        return cast("Function", _compile(_plain(function), dict(bindings or {}), keep=True))


def report_compiling(report: Callable[[], None]) -> None:
    """Call `report` once, when machine code is generated for the first time in this process.

    Code that is loaded from a file is no reason to. The call may come from any thread.
    """
    _REPORTS[:] = [report]


def find_cache_folder() -> Path | None:
    """Return the folder for machine code, or None when no folder can be used.

    NUMBA_CACHE_DIR wins, then the user's cache folder, then a private one among the temporary
    files. NB: files in it are executed, so a folder that another user owns is rejected.
    """
    chosen = os.environ.get("NUMBA_CACHE_DIR")
    if chosen:
        return Path(chosen)
    home = os.environ.get("XDG_CACHE_HOME") or str(Path("~").expanduser() / ".cache")
    temporary = Path(tempfile.gettempdir()) / f"keepclose-{os.getuid()}"
    for folder in (Path(home) / "keepclose", temporary):
        if _is_usable(folder):
            return folder
    return None


def _is_usable(folder: Path) -> bool:
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        status = folder.stat()
        with tempfile.TemporaryFile(dir=folder):
            return status.st_uid == os.getuid() and not status.st_mode & 0o022
    except OSError:
        return False


def _plain(function: Callable[..., Any]) -> FunctionType:
    if not isinstance(function, FunctionType) or function.__closure__:
        raise TypeError(f"only plain module-level functions can be compiled, not {function!r}")
    return function


def _copy(function: FunctionType, scope: dict[str, Any]) -> FunctionType:
    copied = FunctionType(
        function.__code__, scope, function.__name__, function.__defaults__, function.__closure__
    )
    copied.__qualname__ = function.__qualname__
    copied.__module__ = function.__module__
    copied.__doc__ = function.__doc__
    return copied


def _compile(
    function: FunctionType, bindings: dict[str, Callable[..., Any]], *, keep: bool
) -> Callable[..., Any]:
    digest = hashlib.sha256("\n".join(_describe(function, bindings, [])).encode()).hexdigest()[:20]
    # NB: only functions that callers request are cached in files; their code includes all callees.
    if (digest, keep) in _COMPILED:
        return _COMPILED[digest, keep]
    numba = importlib.import_module("numba")
    if _REPORTS:
        _listen()
    scope = dict(function.__globals__) | bindings
    for name, value in _find_globals(function, bindings):
        if isinstance(value, FunctionType):
            scope[name] = _compile(value, {}, keep=False)
    copied = _copy(function, scope)
    copied.__qualname__ = f"{function.__qualname__}_{digest}"
    folder = find_cache_folder() if keep else None
    # numba reads the folder when it decorates; the setting of the process is restored.
    before = numba.config.CACHE_DIR
    try:
        if folder is not None:
            numba.config.CACHE_DIR = str(folder)
        compiled = numba.njit(
            nogil=True,
            # No division by zero occurs, so this changes no result; it saves a check for each.
            error_model="numpy",
            # Nothing is allocated, so nothing needs reference counts, which cost two atomic
            # operations for each array argument. Inlining saves passing its seven words.
            _nrt=False,
            forceinline=not keep,
            no_cfunc_wrapper=True,
            no_cpython_wrapper=not keep,
            cache=folder is not None,
        )(copied)
    finally:
        numba.config.CACHE_DIR = before
    if not keep:
        _forget_literals(compiled, numba.types.unliteral)
    _COMPILED[digest, keep] = cast("Callable[..., Any]", compiled)
    return _COMPILED[digest, keep]


@cache
def _listen() -> None:
    """Wait for the compiler, which asks its files first."""
    events = importlib.import_module("numba.core.event")

    class CompilingListener(events.Listener):  # type: ignore[misc, name-defined]
        def on_start(self, _event: object) -> None:
            with suppress(IndexError):
                _REPORTS.pop()()

        def on_end(self, _event: object) -> None:
            pass

    events.register("numba:compile", CompilingListener())


def _forget_literals(compiled: Any, unliteral: Callable[[Any], Any]) -> None:
    """Compile a callee once for all numbers, and not again for each constant argument.

    Nothing is lost by that: inlining restores the constants. It halves the time to compile.
    """
    resolve = compiled.get_call_template

    def get_call_template(arguments: Any, keywords: Any) -> Any:
        plain = tuple(unliteral(argument) for argument in arguments)
        return resolve(plain, {name: unliteral(value) for name, value in keywords.items()})

    compiled.get_call_template = get_call_template


def _find_globals(
    function: FunctionType, bindings: Mapping[str, Callable[..., Any]]
) -> list[tuple[str, Any]]:
    values: list[tuple[str, Any]] = []
    for name in function.__code__.co_names:
        if name in bindings:
            values.append((name, bindings[name]))
        elif name in function.__globals__ and not hasattr(builtins, name):
            values.append((name, function.__globals__[name]))
    return values


def _describe(
    function: FunctionType, bindings: Mapping[str, Callable[..., Any]], above: list[FunctionType]
) -> list[str]:
    """Return all that the machine code depends on: byte code, constants, callees, defaults."""
    if function in above:
        raise TypeError(f"{function.__qualname__} calls itself, which cannot be compiled")
    code = function.__code__
    parts = [function.__module__, function.__qualname__, code.co_filename]
    parts += [code.co_code.hex(), repr(code.co_names), repr(code.co_varnames)]
    if any(isinstance(item, CodeType) for item in code.co_consts):
        raise TypeError(f"{function.__qualname__} has a function inside, which cannot be compiled")
    parts.append(repr(code.co_consts))
    parts.append(repr(function.__defaults__))
    for name, value in _find_globals(function, bindings):
        if isinstance(value, FunctionType):
            parts += [f"call {name}", *_describe(value, {}, [*above, function])]
        elif isinstance(value, int | float):
            parts.append(f"constant {name} {value!r}")
    return parts
