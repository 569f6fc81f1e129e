"""What commands print: lines for people, JSON or YAML for programs.

The one place that writes to standard output and error; tables are drawn by `screens`. Lines hold
names and messages of others, so each is made plain: it stays one line and steers no terminal. JSON
and YAML keep every value as it is, and write what cannot be seen as escapes of their own.
"""

from __future__ import annotations

import codecs
import io
import locale
import os
import re
import sys
from enum import StrEnum
from typing import Annotated, Any, Final, TextIO

import typer

from keepclose.model.plain_text import escape_hidden, make_plain

_ERRORS: Final = "keepclose.nearest"
# NB: click writes UTF-8 to a stream whose encoding is called ASCII, and leaves others as they are.
_ASCII: Final = "keepclose-ascii"
_NEAREST: Final = {
    **dict.fromkeys("✓✔", "+"),
    **dict.fromkeys("✗✘\N{MULTIPLICATION SIGN}", "x"),
    **dict.fromkeys("·•…", "."),
    **dict.fromkeys("─━═╌╍╴╶╸╺╾╼—\N{EN DASH}\N{MINUS SIGN}\N{HYPHEN}", "-"),
    **dict.fromkeys("│┃║╎╏╵╷╹╻", "|"),
    **dict.fromkeys("┌┏╔┐┓╗└┗╚┘┛╝├┣╠┤┫╣┬┳╦┴┻╩┼╋╬╭╮╯╰╇╈╞╡╪", "+"),
    **dict.fromkeys("█▉▊▋▌▍▎▏▓▒░", "#"),
    **dict.fromkeys("\N{LEFT SINGLE QUOTATION MARK}\N{RIGHT SINGLE QUOTATION MARK}", "'"),
    **dict.fromkeys("“”„″«»", '"'),
    **dict.fromkeys("≤←", "<"),
    **dict.fromkeys("≥→", ">"),
    "≈": "~",
    "µ": "u",
    "μ": "u",
    "°": "o",
    "\N{NO-BREAK SPACE}": " ",
    "\N{NARROW NO-BREAK SPACE}": " ",
}
_UNKNOWN: Final = "?"
_ESCAPED_BYTES: Final = range(0xDC80, 0xDD00)
_NOT_ASCII: Final = re.compile(r"[^\x00-\x7f]")


def adapt_streams() -> None:
    """Have standard output and error take every sign; call it before anything is printed."""
    codecs.register_error(_ERRORS, _replace)
    _reserve_numbers()
    for stream in (sys.stdout, sys.stderr):
        # NB: a Python program that calls the command may have put anything in their place.
        if isinstance(stream, io.TextIOWrapper):
            _adapt(stream)


def has_unicode(stream: TextIO | None) -> bool:
    """Return whether a stream takes every sign as it is; one that is closed takes anything."""
    return stream is None or (stream.encoding or "").lower().replace("_", "-").startswith("utf")


def escape_json(text: str) -> str:
    """Return JSON in ASCII alone, with the same meaning."""
    return _NOT_ASCII.sub(lambda match: _escape(match[0]), text)


def _reserve_numbers() -> None:
    """Open what the caller closed of the first three files, so that no other file gets its number.

    Else what a command prints would end up in its data.
    """
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)


def _adapt(stream: io.TextIOWrapper) -> None:
    if codecs.lookup(stream.encoding).name == "ascii" or _is_asked_for_ascii():
        codecs.register(_find_codec)
        stream.reconfigure(encoding=_ASCII, errors=_ERRORS)
    else:
        stream.reconfigure(errors=_ERRORS)


def _is_asked_for_ascii() -> bool:
    """Return whether UTF-8 is a guess of Python's where the locale says ASCII, as LC_ALL=C does.

    NB: Python writes UTF-8 in the C locale, as most people have not chosen it. Without LC_ALL it
    sets LC_CTYPE to C.UTF-8, which stays here; so does what a variable of Python asks for.
    """
    is_chosen = not os.environ.keys().isdisjoint({"PYTHONUTF8", "PYTHONIOENCODING"})
    if is_chosen or not sys.flags.utf8_mode:
        return False
    return codecs.lookup(locale.nl_langinfo(locale.CODESET)).name == "ascii"


def _find_codec(name: str) -> codecs.CodecInfo | None:
    if name.replace("_", "-") != _ASCII:
        return None
    ascii_codec = codecs.lookup("ascii")
    return codecs.CodecInfo(
        name=_ASCII,
        encode=ascii_codec.encode,
        decode=ascii_codec.decode,
        incrementalencoder=ascii_codec.incrementalencoder,
        incrementaldecoder=ascii_codec.incrementaldecoder,
        streamwriter=ascii_codec.streamwriter,
        streamreader=ascii_codec.streamreader,
    )


def _replace(error: UnicodeError) -> tuple[str | bytes, int]:
    """Return what is written in place of signs that an encoding has not, and where it ends."""
    if not isinstance(error, UnicodeEncodeError):
        raise error
    sign = error.object[error.start]
    number = ord(sign)
    if number in _ESCAPED_BYTES:
        # A byte of a file's name that is no text; a terminal may know better than we do.
        return bytes([number - 0xDC00]), error.start + 1
    return _NEAREST.get(sign, _UNKNOWN), error.start + 1


def _escape(sign: str) -> str:
    pairs = sign.encode("utf-16-be", "surrogatepass")
    units = (pairs[start : start + 2].hex() for start in range(0, len(pairs), 2))
    return "".join(f"\\u{unit}" for unit in units)


class TableOrJson(StrEnum):
    """Forms of most answers."""

    TABLE = "table"
    JSON = "json"


class TableJsonOrYaml(StrEnum):
    """Forms of answers that stand beside manifests."""

    TABLE = "table"
    JSON = "json"
    YAML = "yaml"


AnswerForm = Annotated[TableOrJson, typer.Option("-o", "--output", help="Form of the answer.")]
_CLEAR_LINE = "\r\x1b[K"


def say(*lines: str, err: bool = False) -> None:
    """Print each text on a line of its own, made plain; none prints nothing."""
    if lines:
        typer.echo("\n".join(map(make_plain, lines)), err=err)


def show_passing(text: str) -> None:
    """Show how far work is, on a line of standard error that the next one replaces.

    Only a terminal gets it; an empty text takes the line away.
    """
    if sys.stderr.isatty():
        typer.echo(_CLEAR_LINE + make_plain(text), err=True, nl=False)


def echo_document(text: str) -> None:
    """Print a whole text in a format of its own, such as a script or HTML, which did its escaping.

    NB: never a text of others.
    """
    typer.echo(text, nl=False)


def echo_json(document: object) -> None:
    """Print anything that msgspec encodes, indented by two; Raw keeps text as it came."""
    import msgspec

    text = msgspec.json.format(msgspec.json.encode(document), indent=2).decode()
    typer.echo(escape_hidden(text) if has_unicode(sys.stdout) else escape_json(text))


def echo_yaml(document: object) -> None:
    """Print plain values as YAML; a text with more than one line stands on one, in quotes."""
    import yaml

    from keepclose.kube.yaml_nodes import STR, plain_tag

    class _Dumper(yaml.SafeDumper):
        """Writes no line that begins with a part of a text."""

    def represent(dumper: Any, text: str) -> Any:
        # NB: y and 1e3 are strings to this dumper, and none to readers of Kubernetes.
        style = '"' if "\n" in text or plain_tag(text) != STR else None
        return dumper.represent_scalar(STR, text, style=style)

    _Dumper.add_representer(str, represent)
    typer.echo(
        yaml.dump(document, Dumper=_Dumper, sort_keys=False, width=sys.maxsize),
        nl=False,
    )
