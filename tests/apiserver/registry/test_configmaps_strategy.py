"""Writing settings."""

from __future__ import annotations

import pytest

from keepclose.apiserver.registry.core_kinds import config_key
from support.kinds import Kinds, raw


@pytest.fixture
def kinds() -> Kinds:
    """Return strategies over a small cluster of one family."""
    return Kinds()


def test_settings_are_checked(kinds: Kinds) -> None:
    """Keys must be able to name files, stand once, and all must not be too large."""
    new = raw("ConfigMap", data={"a b": "", "x": ""}, binaryData={"x": "eA==", "..": "eA=="})
    assert kinds.write(new).causes == [
        f'data[a b]: Invalid value: "a b": {config_key("a b")[0]}',
        'data[x]: Invalid value: "x": duplicate of key present in binaryData',
        "binaryData[..]: Invalid value: \"..\": must not be '..'",
    ]
    large = raw("ConfigMap", data={"a": "x" * (1 << 20)}, binaryData={"b": "eA=="})
    assert kinds.write(large).causes == ["[]: Too long: may not be more than 1048576 bytes"]
    fits = raw("ConfigMap", data={"a": "x" * ((1 << 20) - 1)}, binaryData={"b": "eA=="})
    assert kinds.write(fits).causes == []


@pytest.mark.parametrize(
    ("key", "want_messages"),
    [
        pytest.param("a.b-C_1", [], id="letters, digits and signs"),
        pytest.param(".", ["must not be '.'"], id="here"),
        pytest.param("..a", ["must not start with '..'"], id="upwards"),
        pytest.param("a" * 254, ["must be no more than 253 characters"], id="too long"),
    ],
)
def test_keys_name_files(key: str, want_messages: list[str]) -> None:
    """A key is a file name that leads nowhere else."""
    assert config_key(key) == want_messages


def test_immutable_settings_stay(kinds: Kinds) -> None:
    """Nothing of an immutable ConfigMap may change but its metadata."""
    old = kinds.write(raw("ConfigMap", data={"a": "b"}, immutable=True)).object
    same = raw("ConfigMap", data={"a": "b"}, immutable=True, metadata={"labels": {"x": "y"}})
    assert kinds.write(same, old).causes == []
    other = raw("ConfigMap", data={"a": "c"}, binaryData={"q": "!"})
    assert kinds.write(other, old).causes == [
        f"{key}: Forbidden: field is immutable when `immutable` is set"
        for key in ("immutable", "data", "binaryData")
    ]
