"""Text of others in what commands print: it is shown, and neither obeyed nor taken for ours."""

from __future__ import annotations

import ast
import io
import json
import re
import subprocess
import sys
import threading
import unicodedata
from collections.abc import Iterator
from contextlib import contextmanager
from copy import deepcopy
from functools import lru_cache
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import msgspec
import pytest
import typer.main
import yaml

import keepclose
from keepclose.cli.main import command_line
from keepclose.model.decoding import KINDS
from keepclose.model.plain_text import MAX_CHARACTERS, escape_hidden, make_plain
from keepclose.proxy.status import ProxyStatus

JsonObject = dict[str, Any]
SECONDS = 120
KEEPCLOSE = [sys.executable, "-m", "keepclose"]
FORGED = ("fix     kubectl delete namespace kube-system", "error: forged by a name")
HOSTILE = (
    "\x1b]0;title\x07\x1b[2J\x1b[31mred\x9b31m\x00\x08\x7f\r\t"
    f"\n{FORGED[0]}\n{FORGED[1]}\r\n\u2028{FORGED[0]}\u2029\x0b\x0c\x85"
    "\u202egnp.exe\u2066\u2069\u200e\u200b\u200d\ufeff\u00ad\U000e0041\ue000\u3164"
    f"e{chr(0x301) * 60}[red]markup[/red][link=http://127.0.0.1/]link[/link]:smile:"
)
"""Everything that steers a terminal, forges a line, or hides, in one text."""
NAMING = ("name", "namespace", "labels", "annotations")
_COLOUR = re.compile(r"\x1b\[[0-9;]*m")
_STEERING = ("Cc", "Cf", "Cs", "Co", "Zl", "Zp")


def check(output: str, *, has_colour: bool = False) -> None:
    """Fail where a text of others got through to a terminal, or begins a line."""
    plain = _COLOUR.sub("", output) if has_colour else output
    raw = {char for char in plain if char != "\n" and unicodedata.category(char) in _STEERING}
    assert not raw, f"{raw!r} in {plain[:2000]!r}"
    for line in plain.split("\n"):
        assert not line.lstrip(" │").startswith(FORGED), line
    assert chr(0x301) * 10 not in plain


@lru_cache
def command_of(name: str) -> Any:
    """Return the command line as the program makes it for one command, made once."""
    return typer.main.get_command(command_line([name]))


def run(*arguments: str, colour: bool = False) -> tuple[int, str]:
    """Run a command in this process and return its code and all that it printed."""
    stream = io.TextIOWrapper(io.BytesIO(), encoding="utf-8", write_through=True)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("COLUMNS", "100")
        patch.delenv("FORCE_COLOR", raising=False)
        if colour:
            patch.setenv("FORCE_COLOR", "1")
        patch.setattr(sys, "stdout", stream)
        patch.setattr(sys, "stderr", stream)
        with pytest.raises(SystemExit) as ending:
            command_of(arguments[0]).main(args=list(arguments), prog_name="keepclose")
    code = ending.value.code
    return code if isinstance(code, int) else 0, stream.buffer.getvalue().decode()


# What a cluster dump holds, with a value for each part that a decision reads.
CLUSTER: list[JsonObject] = [
    {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": name, "labels": {"topology.kubernetes.io/zone": zone}},
        "status": {
            "allocatable": {"cpu": "4"},
            "conditions": [{"type": "Ready", "status": "True"}],
        },
    }
    for name, zone in (("n1", "zone-a"), ("n2", "zone-b"))
] + [
    {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": "web", "namespace": "shop"},
        "spec": {
            "trafficDistribution": "PreferSameZone",
            "selector": {"app": "web"},
            "clusterIP": "10.96.0.10",
            "ports": [{"name": "http", "port": 80}],
        },
    },
    {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "web-1", "namespace": "shop", "labels": {"app": "web"}},
        "spec": {"nodeName": "n1", "containers": [{"name": "main", "image": "web"}]},
        "status": {
            "phase": "Running",
            "podIP": "10.0.0.1",
            "podIPs": [{"ip": "10.0.0.1"}],
            "conditions": [{"type": "Ready", "status": "True"}],
        },
    },
    {
        "apiVersion": "discovery.k8s.io/v1",
        "kind": "EndpointSlice",
        "metadata": {
            "name": "plain-1",
            "namespace": "shop",
            "labels": {"kubernetes.io/service-name": "plain"},
        },
        "addressType": "IPv4",
        "endpoints": [{"addresses": ["10.0.0.9"], "nodeName": "n1", "zone": "zone-a"}],
        "ports": [{"name": "http", "port": 80, "protocol": "TCP"}],
    },
    {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": "plain", "namespace": "shop"},
        "spec": {"clusterIP": "10.96.0.11", "ports": [{"name": "http", "port": 80}]},
    },
    {
        "apiVersion": "v1",
        "kind": "Endpoints",
        "metadata": {"name": "plain", "namespace": "shop"},
        "subsets": [{"addresses": [{"ip": "10.0.0.7"}], "ports": [{"port": 80}]}],
    },
]


def string_paths(info: Any, path: tuple[str | int, ...] = ()) -> Iterator[tuple[str | int, ...]]:
    """Yield the place of each text in a type; of lists the first item, of maps one key, "*"."""
    types = msgspec.inspect
    match info:
        case types.StrType() | types.AnyType() | types.RawType():
            yield path
        case types.StructType():
            for field in info.fields:
                yield from string_paths(field.type, (*path, field.encode_name))
        case types.UnionType():
            seen = [one for one in info.types if not isinstance(one, types.NoneType)]
            for one in seen:
                yield from string_paths(one, path)
        case types.DictType():
            yield (*path, "*")
            yield from string_paths(info.value_type, (*path, "key"))
        case types.ListType() | types.VarTupleType() | types.SetType() | types.FrozenSetType():
            yield from string_paths(info.item_type, (*path, 0))
        case _:
            return


def put(value: Any, path: tuple[str | int, ...], text: str) -> Any:
    """Return a value with a text at a place, which is made where it is not there."""
    if not path:
        return text
    first, *rest = path
    if isinstance(first, int):
        items = list(value) if isinstance(value, list) else []
        return [put(items[0] if items else None, tuple(rest), text), *items[1:]]
    members = dict(value) if isinstance(value, dict) else {}
    if first == "*":
        return {**members, text: "value"}
    return {**members, first: put(members.get(first), tuple(rest), text)}


def variants() -> list[Any]:
    """Return one place for each text of each kind that a dump may hold."""
    return [
        pytest.param(kind, path, id=f"{kind}-{'.'.join(map(str, path))}")
        for (_, kind), struct in KINDS.items()
        if kind in {one["kind"] for one in CLUSTER}
        for path in dict.fromkeys(string_paths(msgspec.inspect.type_info(struct)))
        if path not in (("apiVersion",), ("kind",))
        # The metadata of all kinds is the same; the rules for names are not.
        if kind == "Service" or path[0] != "metadata" or path[1] in NAMING
    ]


@pytest.mark.parametrize(("kind", "path"), variants())
def test_a_dump_with_hostile_text_in_any_field_is_shown_and_not_obeyed(
    kind: str, path: tuple[str | int, ...], tmp_path: Path
) -> None:
    """Refused or used, the field leaves only visible text in tables, JSON, YAML and errors."""
    objects = deepcopy(CLUSTER)
    for number, obj in enumerate(objects):
        if obj["kind"] == kind:
            objects[number] = put(obj, path, HOSTILE)
    file = tmp_path / "dump.json"
    file.write_text(json.dumps({"apiVersion": "v1", "kind": "List", "items": objects}))
    code, table = run("resolve", "-f", str(file), colour=True)
    check(table, has_colour=True)
    if code == 0:
        code, text = run("resolve", "-f", str(file), "-o", "json")
        check(text)
        plain = json.loads(text[text.index("{\n") :])
        _, text = run("resolve", "-f", str(file), "-o", "yaml")
        check(text)
        assert yaml.safe_load(text[text.index("services:") :]) == plain


@pytest.mark.parametrize("field", ["apiVersion", "kind"])
def test_hostile_kinds_are_named_and_not_obeyed(field: str, tmp_path: Path) -> None:
    """A kind that is not read is named in a warning, whatever its name is."""
    file = tmp_path / "dump.json"
    hostile = {**CLUSTER[2], field: HOSTILE}
    file.write_text(json.dumps({"apiVersion": "v1", "kind": "List", "items": [*CLUSTER, hostile]}))
    _, text = run("resolve", "-f", str(file), colour=True)
    check(text, has_colour=True)


def test_json_keeps_hostile_text_as_it_is(tmp_path: Path) -> None:
    """A zone that steers terminals comes out of -o json and -o yaml as it went in."""
    objects = deepcopy(CLUSTER)
    objects[4]["endpoints"][0]["zone"] = HOSTILE
    file = tmp_path / "dump.json"
    file.write_text(json.dumps({"apiVersion": "v1", "kind": "List", "items": objects}))
    for form, read in (("json", json.loads), ("yaml", yaml.safe_load)):
        code, text = run("resolve", "-f", str(file), "--service", "shop/plain", "-o", form)
        assert code == 0, text
        [service] = read(text)["services"]
        zones = [one.get("zone") for each in service["slices"] for one in each["endpoints"]]
        assert HOSTILE in zones


def fill(info: Any) -> Any:
    """Return plain values of a type with hostile text wherever a text may be."""
    types = msgspec.inspect
    match info:
        case types.StructType():
            return {field.encode_name: fill(field.type) for field in info.fields}
        case types.DictType():
            return {HOSTILE: fill(info.value_type)}
        case types.ListType() | types.VarTupleType():
            return [fill(info.item_type)]
        case types.EnumType():
            return next(iter(info.cls)).value
        case types.IntType() | types.FloatType():
            return 1
        case types.BoolType():
            return True
        case types.UnionType():
            return fill(next(one for one in info.types if not isinstance(one, types.NoneType)))
        case _:
            return HOSTILE


@contextmanager
def serving(status: int, body: bytes) -> Iterator[int]:
    """Answer every request on a port of this machine in the same way."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        do_POST = do_PUT = do_PATCH = do_GET  # noqa: N815 - names of the library

        def log_message(self, *_arguments: object) -> None:
            return

    server = HTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield server.server_port
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def test_proxy_status_shows_hostile_text_and_does_not_obey_it() -> None:
    """Nodes, zones, Services, reasons and fixes of a proxy's page are lines of their own."""
    body = msgspec.json.encode(fill(msgspec.inspect.type_info(ProxyStatus)))
    with serving(200, body) as port:
        for form in ("table", "json"):
            address = f"127.0.0.1:{port}"
            _, text = run(
                "proxy", "status", "--metrics-address", address, "-o", form, colour=form == "table"
            )
            check(text, has_colour=form == "table")
            assert "]0;title" in text


def test_what_is_no_proxy_is_named_and_not_obeyed() -> None:
    """A server that answers with something else gets its words into no terminal."""
    body = json.dumps({"node": 1, HOSTILE: HOSTILE}, ensure_ascii=False).encode("utf-8", "replace")
    with serving(200, body) as port:
        code, text = run("proxy", "status", "--metrics-address", f"127.0.0.1:{port}")
        assert code == 4
        check(text)


@pytest.mark.parametrize(
    "arguments",
    [
        [HOSTILE],
        [f"--{HOSTILE}"],
        ["traffic", HOSTILE],
        ["traffic", "web", HOSTILE],
        ["traffic", "web", "--connections", HOSTILE],
        ["traffic", "web", "--family", HOSTILE],
        ["traffic", f"a/{HOSTILE}", "-n", "b"],
        ["traffic", "web", "--data-dir", HOSTILE.replace("\x00", "")],
        ["resolve", "-f", HOSTILE.replace("\x00", "")],
        ["resolve", "-f", HOSTILE],
        ["resolve", "-f", "-", "--feature-gates", HOSTILE],
        ["up", "--zones", HOSTILE],
        ["up", "--manifest", HOSTILE.replace("\x00", "")],
        ["up", "--feature-gates", HOSTILE],
        ["up", "--emulated-version", HOSTILE],
        ["lab", HOSTILE],
        ["lab", "status", "--data-dir", HOSTILE.replace("\x00", "")],
        ["simulate", "--dataset", HOSTILE],
        ["simulate", "--algorithm", HOSTILE],
        ["simulate", "--weights", HOSTILE],
        ["simulate", "--input", HOSTILE.replace("\x00", "")],
        ["simulate", "compare", HOSTILE, "b"],
        ["simulate", "churn", "--scenario", HOSTILE],
        ["proxy", "status", "--metrics-address", HOSTILE],
        ["proxy", "status", "--metrics-address", "127.0.0.1:" + "9" * 5000],
        ["controller", "--kubeconfig", HOSTILE.replace("\x00", "")],
        ["controller", "--lease-duration", HOSTILE],
        ["apiserver", "--service-node-port-range", HOSTILE],
        ["apiserver", "--service-node-port-range", f"{'1' * 5000}-2"],
        ["completion", HOSTILE],
    ],
    ids=lambda arguments: "-".join(make_plain(one, most=20) for one in arguments),
)
def test_words_of_the_command_line_are_repeated_and_not_obeyed(arguments: list[str]) -> None:
    """Scripts pass on names of others; an error repeats them in a form that steers nothing."""
    code, text = run(*arguments)
    assert code not in (0, 1)
    check(text)
    assert "Traceback" not in text


def test_rows_of_a_table_of_inputs_are_shown_and_not_obeyed(tmp_path: Path) -> None:
    """Labels and headings of CSV files, good and bad ones, stay within their cells."""
    label = HOSTILE.replace('"', "").replace("\x00", "")
    for cells in ("1 2,3 4", "x,y"):
        file = tmp_path / "rows.csv"
        file.write_text(f'name,"{label}",zone-b\n"{label}",{cells}\n', encoding="utf-8")
        for command in (["simulate"], ["simulate", "compare", "local", "original"]):
            _, text = run(*command, "--input", str(file))
            check(text)
            _, text = run(*command, "--input", str(file), "-o", "json")
            check(text)


KUBECONFIG = """\
apiVersion: v1
kind: Config
current-context: it
contexts: [{{name: it, context: {{cluster: it, user: it}}}}]
clusters: [{{name: it, cluster: {{server: "http://127.0.0.1:{port}"}}}}]
users: [{{name: it, user: {{token: t}}}}]
"""


def test_words_of_a_hostile_api_server_are_shown_and_not_obeyed(tmp_path: Path) -> None:
    """The message of a Status that refuses a proxy is one line of its error."""
    status = {
        "kind": "Status",
        "apiVersion": "v1",
        "status": "Failure",
        "message": HOSTILE,
        "reason": "Forbidden",
        "code": 403,
    }
    kubeconfig = tmp_path / "kubeconfig"
    with serving(403, json.dumps(status).encode()) as port:
        kubeconfig.write_text(KUBECONFIG.format(port=port))
        done = subprocess.run(
            [*KEEPCLOSE, "proxy", "--dry-run", "--node-name", "n1", "--kubeconfig", kubeconfig],
            capture_output=True,
            timeout=SECONDS,
            check=False,
        )
    assert done.returncode != 0
    text = done.stderr.decode()
    check(text)
    assert "\\x1b]0;title" in text or "\\u001b]0;title" in text
    assert "Traceback" not in text


@pytest.mark.parametrize("place", ["name", "namespace", "kind", "label"])
def test_names_in_a_manifest_of_up_are_shown_and_not_obeyed(place: str, tmp_path: Path) -> None:
    """An object that the lab's server refuses is named in the error with its file, as one line."""
    obj: JsonObject = {
        "apiVersion": "v1",
        "kind": HOSTILE if place == "kind" else "ConfigMap",
        "metadata": {"name": "it"},
    }
    if place == "label":
        obj["metadata"]["labels"] = {HOSTILE: HOSTILE}
    elif place != "kind":
        obj["metadata"][place] = HOSTILE
    manifest = tmp_path / "it.json"
    manifest.write_text(json.dumps(obj))
    done = subprocess.run(
        [
            *KEEPCLOSE,
            *("up", "--manifest", str(manifest), "--port", "0"),
            *("--zones", "1", "--nodes-per-zone", "1", "--data-dir", str(tmp_path / "data")),
        ],
        capture_output=True,
        timeout=SECONDS,
        check=False,
        stdin=subprocess.DEVNULL,
    )
    assert done.returncode == 2
    text = done.stderr.decode()
    check(done.stdout.decode())
    check(text)
    assert "error: " in text
    assert f"       in {manifest}, document 1" in text


LOGGED = """
import asyncio, json, logging, sys, warnings
import structlog
from keepclose.cli.startup import log_to_standard_error

text = json.loads(sys.argv[1])
log_to_standard_error()
structlog.get_logger().warning(text, **{"key": text, text: text})
structlog.get_logger().warning("long", value="x" * 10_000_000)
logging.getLogger("library").error(text)
warnings.warn(text)
try:
    raise RuntimeError(text)
except RuntimeError:
    structlog.get_logger().exception(text)

async def lose() -> None:
    asyncio.get_running_loop().call_exception_handler(
        {"message": text, "exception": RuntimeError(text)}
    )

asyncio.run(lose())
"""


def test_a_log_has_one_json_object_a_line_whatever_is_logged() -> None:
    """Messages, keys, exceptions, warnings and records of libraries forge no line of a log."""
    done = subprocess.run(
        [sys.executable, "-c", LOGGED, json.dumps(HOSTILE)],
        capture_output=True,
        timeout=SECONDS,
        check=True,
    )
    text = done.stderr.decode("ascii")
    check(text)
    records = [json.loads(line) for line in text.splitlines()]
    assert len(records) == 6
    assert all({"event", "level", "timestamp"} <= record.keys() for record in records)
    assert records[0]["key"] == HOSTILE
    assert len(records[1]["value"]) < 20_000


UNEXPECTED = """
import json, sys
from keepclose.cli import main

def break_down(*_, **__):
    raise RuntimeError(json.loads(sys.argv.pop()))

main.command_line = break_down
main.run()
"""


def test_an_unexpected_error_is_one_line_of_visible_text() -> None:
    """An exception that carries words of others shows them as one line."""
    done = subprocess.run(
        [sys.executable, "-c", UNEXPECTED, "up", json.dumps(HOSTILE)],
        capture_output=True,
        timeout=SECONDS,
        check=False,
    )
    assert done.returncode == 70
    check(done.stderr.decode())
    assert "RuntimeError: \\x1b]0;title" in done.stderr.decode()


def test_plain_text_is_one_visible_line() -> None:
    """Each kind of character that steers, hides or floods becomes an escape, and others stay."""
    assert make_plain("zone-a · ✓ é 日本") == "zone-a · ✓ é 日本"
    assert make_plain("a\x1b[2Jb\nc\td") == r"a\x1b[2Jb\nc\td"
    assert make_plain("\u202e\u2028\U000e0041\ud800") == r"\u202e\u2028\U000e0041\ud800"
    assert make_plain("e" + "\u0301" * 6) == "e" + "\u0301" * 4 + r"\u0301\u0301"
    assert make_plain(HOSTILE) == make_plain(make_plain(HOSTILE))
    long = make_plain("x" * (MAX_CHARACTERS + 1234))
    assert long == "x" * MAX_CHARACTERS + "... (1,234 more characters)"


@pytest.mark.parametrize("number", [0x7F, 0x9B, 0x202E, 0x2028, 0xE0041, 0x3164, 0xFEFF])
def test_escaped_json_means_the_same(number: int) -> None:
    """What escapes put in place of a character is read back as that character."""
    text = json.dumps(f"a{chr(number)}b", ensure_ascii=False)
    escaped = escape_hidden(text)
    assert json.loads(escaped) == f"a{chr(number)}b"
    assert escaped.isascii()


# The modules that print; every other one goes by them.
PRINTING = {"cli/render/output.py"}
DRAWING = {"cli/render/screen.py", "cli/render/progress.py"}


def test_everything_is_printed_in_one_place() -> None:
    """No module calls print, typer.echo or a standard stream, or draws with rich, by itself."""
    root = Path(keepclose.__file__).parent
    found: list[str] = []
    for file in sorted(root.rglob("*.py")):
        name = file.relative_to(root).as_posix()
        for node in ast.walk(ast.parse(file.read_text("utf-8"))):
            if _prints(node) and name not in PRINTING:
                found.append(f"{name}:{node.lineno} prints")  # type: ignore[attr-defined]
            if _draws(node) and name not in DRAWING:
                found.append(f"{name}:{node.lineno} draws")  # type: ignore[attr-defined]
    assert not found


def _prints(node: ast.AST) -> bool:
    match node:
        case ast.Call(func=ast.Name(id="print" | "secho" | "echo")):
            return True
        case ast.Attribute(value=ast.Name(id="typer" | "click"), attr="echo" | "secho"):
            return True
        case ast.Attribute(
            value=ast.Attribute(value=ast.Name(id="sys"), attr="stdout" | "stderr"),
            attr="write" | "writelines" | "buffer",
        ):
            return True
        case _:
            return False


def _draws(node: ast.AST) -> bool:
    match node:
        case ast.ImportFrom(module=str(module)):
            return module.split(".")[0] == "rich"
        case ast.Import(names=names):
            return any(one.name.split(".")[0] == "rich" for one in names)
        case _:
            return False
