"""A real kube-apiserver and ours that emulate the same release give the same answers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from support.real.embedded import embedded_server
from support.real.programs import real_control_plane
from support.real.same_answers import SERVICES, SLICES, Api, endpoint_slice, plain_answer, service

STRICT = "fieldValidation=Strict"
NODE_HINTS = [{"addresses": ["10.1.0.1"], "hints": {"forNodes": [{"name": "n"}]}}]
ASKS: list[tuple[str, str, Any]] = [
    *(
        ("POST", f"{SERVICES}?dryRun=All&{STRICT}", service(name))
        for name in ("-123", "A_", "1a", "a.b", "x" * 64, "fine")
    ),
    *(
        ("POST", f"{SERVICES}?dryRun=All&{STRICT}", service(trafficDistribution=value))
        for value in ("PreferClose", "PreferSameZone", "PreferSameNode", "Odd", "")
    ),
    ("POST", f"{SERVICES}?dryRun=All", service(externalIPs=["192.000.2.1"])),
    ("POST", f"{SLICES}?dryRun=All&{STRICT}", endpoint_slice(endpoints=NODE_HINTS)),
]


@pytest.mark.parametrize("version", ["1.33", "1.34", "1.35", "1.36"])
def test_the_same_answer_of_an_older_release(version: str, tmp_path: Path) -> None:
    """Values, names, fields and /version follow the emulated release alike."""
    tmp_path.joinpath("real").mkdir()
    flag = f"--emulated-version={version}"
    with (
        real_control_plane(tmp_path / "real", flag) as plane,
        embedded_server(tmp_path / "ours", "--no-controllers", flag) as embedded,
    ):
        user = yaml.safe_load(embedded.kubeconfig.read_text())["users"][0]["user"]
        real, ours = Api(plane.url, plane.token), Api(embedded.url, user["token"])
        for ask in ASKS:
            want_code, want_body, want_warnings = real.ask(*ask)
            code, body, warnings = ours.ask(*ask)
            assert plain_answer(body) == plain_answer(want_body), ask
            assert (code, warnings) == (want_code, want_warnings), ask
        want, found = (
            {key: value for key, value in api.ask("GET", "/version")[1].items() if "M" in key}
            for api in (real, ours)
        )
        assert found == want
        assert found["emulationMinor"] == version.removeprefix("1.")
