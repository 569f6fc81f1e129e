"""The same hostile or odd YAML, JSON and numbers get the same status from both API servers."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import pytest

from support.real.embedded import embedded_server
from support.real.programs import real_control_plane
from support.real.same_answers import APPLY, JSON_PATCH, MAPS, MERGE, PODS, STRATEGIC, Api

YAML = "application/yaml"
BASE = "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: one}\n"
POD = "apiVersion: v1\nkind: Pod\nmetadata: {name: p}\nspec:\n  containers: [{name: a, image: b}]\n"
DEEP = 20_000


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Api, Api]]:
    """Run both servers."""
    flag = "--disable-admission-plugins=ServiceAccount,TaintNodesByCondition"
    ours = tmp_path_factory.mktemp("ours") / "data"
    with (
        real_control_plane(tmp_path_factory.mktemp("real"), flag) as plane,
        embedded_server(ours, "--no-controllers") as embedded,
    ):
        apis = Api(plane.url, plane.token), Api(embedded.url, embedded.token())
        body = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "there"}}
        for api in apis:
            assert api.ask("POST", MAPS, {**body, "data": {"a": "b"}})[0] == 201
        yield apis


class Case(NamedTuple):
    """A request that both servers get."""

    method: str
    path: str
    body: bytes
    content: str


def alias_bomb() -> str:
    """Return nine aliases to nine aliases, and so on."""
    lines = ["x0: &x0 [1,1,1,1,1,1,1,1,1]"]
    lines += [f"x{n}: &x{n} [{','.join([f'*x{n - 1}'] * 9)}]" for n in range(1, 9)]
    return "\n".join(lines)


def merge_bomb() -> str:
    """Return maps that merge three times the map before them."""
    lines = ["a0: &a0 {k0: v}"]
    lines += [f"a{n}: &a{n}\n  <<: [{','.join([f'*a{n - 1}'] * 3)}]" for n in range(1, 14)]
    return "\n".join(lines)


DOCUMENTS = {
    "brackets": BASE + "x: " + "[" * DEEP + "]" * DEEP,
    "unclosed brackets": BASE + "x: " + "[" * DEEP,
    "an alias bomb": BASE + alias_bomb(),
    "a merge bomb": BASE + merge_bomb(),
    "itself": BASE + "x: &a [*a]",
    "an unknown anchor": BASE + "x: *a",
    "base 60": BASE + "data: {a: 1" + ":10" * 10_000 + "}",
    "digits": BASE + "data: {a: " + "1" * 900_000 + "}",
    "a tab": BASE + "\tx: 1",
    "a control character": BASE + "x: \x01",
    "nothing": "",
    "a comment": "# nothing",
    "a list": "[1]",
    "two documents": BASE + "---\n" + BASE,
    "a key twice": BASE + "data:\n  a: b\n  a: c\n",
    "a list as key": BASE + "data: {[a]: b}",
    "null as key": BASE + "data: {~: b}",
    "a number as key": BASE + "data: {010: b, 1.5: c, yes: d}",
    "a merge": BASE + "data: {a: b, <<: {a: c, d: e}}",
    "a merge of a number": BASE + "data: {<<: 5}",
}
SCALARS = [
    "010",
    "0o10",
    "0b11",
    "0x1F",
    "1_000",
    "12:30:45",
    "1:30",
    "+12",
    "-012",
    "1e3",
    "1E3",
    ".5",
    "5.",
    "yes",
    "No",
    "on",
    "OFF",
    "y",
    "n",
    "~",
    "null",
    "2001-12-14",
    ".inf",
    "-.INF",
    ".nan",
    "<<",
    "=",
    "0x",
    "0o8",
    "08",
    "1e",
    "1e400",
    "123456789012345678901234567890",
    "9223372036854775808",
    "-0",
    "1.0",
    "!!str&12",
    "!!int&'12'",
    "!!int&abc",
    "!!float&3",
    "!!bool&'yes'",
    "!!binary&aGk=",
    "!!binary&a",
    "!foo&bar",
]


def outcome(api: Api, case: Case) -> tuple[int, Any]:
    """Return the status of an answer, and the data or the spec that it holds."""
    code, body, _ = api.ask(case.method, case.path, case.body, case.content)
    if code < 300:
        return code, body.get("data", body.get("spec", {}).get("activeDeadlineSeconds"))
    return code, None


@pytest.mark.parametrize("name", DOCUMENTS)
@pytest.mark.parametrize("content", [YAML, APPLY])
def test_documents(servers: tuple[Api, Api], name: str, content: str) -> None:
    """Each document is taken or refused by both, and what is taken means the same."""
    body = DOCUMENTS[name].encode()
    case = Case("POST", f"{MAPS}?dryRun=All", body, content)
    if content == APPLY:
        case = Case("PATCH", f"{MAPS}/one?dryRun=All&fieldManager=me", body, content)
    real, ours = servers
    assert outcome(ours, case) == outcome(real, case)


@pytest.mark.parametrize("text", SCALARS)
def test_scalars(servers: tuple[Api, Api], text: str) -> None:
    """Each scalar has the same type and value to both, as a text and as a number."""
    scalar = text.replace("&", " ")
    real, ours = servers
    as_text = Case("POST", f"{MAPS}?dryRun=All", f"{BASE}data:\n  a: {scalar}\n".encode(), YAML)
    assert outcome(ours, as_text) == outcome(real, as_text)
    number = f"{POD}  activeDeadlineSeconds: {scalar}\n".encode()
    as_number = Case("POST", f"{PODS}?dryRun=All", number, YAML)
    assert outcome(ours, as_number) == outcome(real, as_number)


HEAD = '{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"one"},"x":'
NESTED = '{"a":' * DEEP + "1" + "}" * DEEP
DIGITS = "1" * 6_000


@pytest.mark.parametrize(
    "case",
    [
        pytest.param(
            Case("POST", MAPS, f"{HEAD}{NESTED}}}".encode(), "application/json"), id="body"
        ),
        pytest.param(
            Case("PATCH", f"{MAPS}/there", f'{{"data":{NESTED}}}'.encode(), MERGE), id="merge"
        ),
        pytest.param(
            Case("PATCH", f"{MAPS}/there", f'{{"data":{NESTED}}}'.encode(), STRATEGIC),
            id="strategic",
        ),
        pytest.param(
            Case(
                "PATCH",
                f"{MAPS}/there",
                f'[{{"op":"add","path":"/data","value":{NESTED}}}]'.encode(),
                JSON_PATCH,
            ),
            id="operations",
        ),
        pytest.param(Case("PATCH", f"{MAPS}/there", b"data: {a: c}", MERGE), id="a merge in YAML"),
        pytest.param(
            Case("PATCH", f"{MAPS}/there", b"data: {a: c}", STRATEGIC), id="a strategic in YAML"
        ),
        pytest.param(Case("GET", f"{MAPS}?resourceVersion={DIGITS}", b"", YAML), id="a version"),
        pytest.param(Case("GET", f"{MAPS}?limit={DIGITS}", b"", YAML), id="a limit"),
        pytest.param(Case("GET", f"{MAPS}?timeoutSeconds={DIGITS}", b"", YAML), id="a timeout"),
        pytest.param(
            Case("DELETE", f"{MAPS}/there?dryRun=All&gracePeriodSeconds={DIGITS}", b"", YAML),
            id="a grace period",
        ),
    ],
)
def test_requests(servers: tuple[Api, Api], case: Case) -> None:
    """Depth and digits without end get the same status."""
    real, ours = servers
    assert outcome(ours, case)[0] == outcome(real, case)[0] == 400
