"""Writes to standard output and error: lines for people, JSON or YAML for programs.

The only module that writes there; `screen` draws tables. Lines hold names and messages from
outside, so each is made plain: it stays one line and cannot control a terminal. JSON and YAML keep
every value, and escape characters that cannot be seen.

Where the locale has no UTF-8, a character that cannot be written becomes the nearest one of ASCII,
one for one, so that columns stay aligned: a command that has acted must never end with a traceback
of its report. Nothing changes for UTF-8.
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
# NB: click writes UTF-8 to a stream whose encoding is named ascii; it leaves other names alone.
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
_CLEAR_LINE: Final = "\r\x1b[K"


def adapt_streams() -> None:
    """Let standard output and error accept every character; call it before anything is printed."""
    codecs.register_error(_ERRORS, _replace)
    _reserve_numbers()
    for stream in (sys.stdout, sys.stderr):
        # NB: a Python program that calls the command may have replaced them by any object.
        if isinstance(stream, io.TextIOWrapper):
            _adapt(stream)


def has_unicode(stream: TextIO | None) -> bool:
    """Return whether a stream encodes every character; a closed stream counts as one that does."""
    return stream is None or (stream.encoding or "").lower().replace("_", "-").startswith("utf")


def escape_json(text: str) -> str:
    """Return JSON in ASCII alone, with the same meaning."""
    return _NOT_ASCII.sub(lambda match: _escape(match[0]), text)


class TableOrJson(StrEnum):
    """Output formats of most commands."""

    TABLE = "table"
    JSON = "json"


class TableJsonOrYaml(StrEnum):
    """Output formats of commands that read manifests."""

    TABLE = "table"
    JSON = "json"
    YAML = "yaml"


OutputFormat = Annotated[TableOrJson, typer.Option("-o", "--output", help="Output format.")]


def say(*lines: str, err: bool = False) -> None:
    """Print each text on a line of its own, made plain; without texts print nothing."""
    if lines:
        typer.echo("\n".join(map(make_plain, lines)), err=err)


def count_things(number: float, noun: str) -> str:
    """Return a number with its noun, which has an s unless the number is 1."""
    return f"{number:,.0f} {noun}{'' if number == 1 else 's'}"


def show_share(share: float) -> str:
    """Return a share in whole percent."""
    return f"{100 * share:.0f} %"


def show_times(ratio: float) -> str:
    """Return how many times its fair share an endpoint gets."""
    return f"{ratio:.2f}x"


def show_passing(text: str) -> None:
    """Show progress on a line of standard error that the next text replaces.

    Only a terminal gets it; an empty text clears the line.
    """
    if sys.stderr.isatty():
        typer.echo(_CLEAR_LINE + make_plain(text), err=True, nl=False)


def echo_document(text: str) -> None:
    """Print a whole document, such as a script or HTML, unescaped.

    NB: never for text from outside; the document's renderer must have escaped that.
    """
    typer.echo(text, nl=False)


def echo_json(document: object) -> None:
    """Print any value that msgspec encodes, indented by two; a Raw value stays as it is."""
    import msgspec

    text = msgspec.json.format(msgspec.json.encode(document), indent=2).decode()
    typer.echo(escape_hidden(text) if has_unicode(sys.stdout) else escape_json(text))


def echo_yaml(document: object) -> None:
    """Print plain values as YAML; a text of several lines is printed on one, in quotes."""
    typer.echo(render_yaml(document), nl=False)


def render_yaml(document: object) -> str:
    """Return plain values as YAML that readers of Kubernetes understand alike."""
    import yaml

    from keepclose.kube.yaml_nodes import STR, plain_tag

    class _Dumper(yaml.SafeDumper):
        """Never begins a line with a part of a text."""

    def represent(dumper: Any, text: str) -> Any:
        # NB: y and 1e3 are strings to PyYAML, but not to the YAML readers of Kubernetes.
        style = '"' if "\n" in text or plain_tag(text) != STR else None
        return dumper.represent_scalar(STR, text, style=style)

    _Dumper.add_representer(str, represent)
    return str(yaml.dump(document, Dumper=_Dumper, sort_keys=False, width=sys.maxsize))


def _reserve_numbers() -> None:
    """Open /dev/null for standard streams that the caller closed.

    Otherwise the next file that a command opens would get the number of a standard stream, and its
    output would end up in that file.
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
    """Return whether the locale says ASCII, as LC_ALL=C does, and Python writes UTF-8 by itself.

    NB: Python writes UTF-8 in the C locale, as most users have not chosen it. Without LC_ALL it
    sets LC_CTYPE to C.UTF-8, which stays UTF-8 here; Python's environment variables win too.
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
    """Return the replacement of a character that an encoding lacks, and the position after it."""
    if not isinstance(error, UnicodeEncodeError):
        raise error
    sign = error.object[error.start]
    number = ord(sign)
    if number in _ESCAPED_BYTES:
        # A byte of a file name that is not UTF-8; the terminal may use that encoding.
        return bytes([number - 0xDC00]), error.start + 1
    return _NEAREST.get(sign, _UNKNOWN), error.start + 1


def _escape(sign: str) -> str:
    pairs = sign.encode("utf-16-be", "surrogatepass")
    units = (pairs[start : start + 2].hex() for start in range(0, len(pairs), 2))
    return "".join(f"\\u{unit}" for unit in units)
