"""The options of `keepclose controller`."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from keepclose.cli.main import app
from keepclose.cli.options import parse_duration
from keepclose.proxy.health import listen_here


@pytest.mark.parametrize(
    ("arguments", "want"),
    [
        pytest.param(
            ["--concurrent-service-endpoint-syncs", "0"],
            "concurrent-service-endpoint-syncs must not be less than 1, but got 0",
            id="too few workers",
        ),
        pytest.param(
            ["--concurrent-service-endpoint-syncs", "51"],
            "concurrent-service-endpoint-syncs must not be more than 50, but got 51",
            id="too many workers",
        ),
        pytest.param(
            ["--max-endpoints-per-slice", "0"],
            "max-endpoints-per-slice must not be less than 1, but got 0",
            id="slices that hold nothing",
        ),
        pytest.param(
            ["--max-endpoints-per-slice", "1001"],
            "max-endpoints-per-slice must not be more than 1000, but got 1001",
            id="slices that the API refuses",
        ),
        pytest.param(
            ["--endpointslice-updates-batch-period", "soon"],
            "--endpointslice-updates-batch-period: 'soon' must be a duration such as 1s",
            id="no duration",
        ),
        pytest.param(
            ["--mirroring-endpointslice-updates-batch-period", "1 s"],
            "--mirroring-endpointslice-updates-batch-period: '1 s' must be a duration such as 1s",
            id="no duration of mirroring",
        ),
        pytest.param(
            ["--mirroring-concurrent-service-endpoint-syncs", "51"],
            "mirroring-concurrent-service-endpoint-syncs must not be more than 50, but got 51",
            id="too many workers of mirroring",
        ),
        pytest.param(
            ["--mirroring-max-endpoints-per-subset", "1001"],
            "mirroring-max-endpoints-per-subset must not be more than 1000, but got 1001",
            id="mirrored slices that the API refuses",
        ),
        pytest.param(
            ["--feature-gates", "ServiceTrafficDistribution=maybe"],
            "--feature-gates: feature gate ServiceTrafficDistribution: "
            "'maybe' must be true or false",
            id="no gate value",
        ),
        pytest.param(
            ["--metrics-address", "here"],
            "--metrics-address: 'here' must be HOST:PORT, or none",
            id="no address",
        ),
        pytest.param(
            ["--kubeconfig", "/does/not/exist"],
            "cannot read /does/not/exist: no such file or directory; "
            "check the path and who may read it",
            id="no such kubeconfig",
        ),
    ],
)
def test_bad_input_is_refused_in_one_line(arguments: list[str], want: str) -> None:
    """Each mistake is named with its option, and nothing is started."""
    result = CliRunner().invoke(app, ["controller", *arguments])
    assert (result.exit_code, result.stderr) == (2, f"error: {want}\n")


@pytest.mark.parametrize(
    ("text", "want"),
    [
        pytest.param("0", 0.0, id="zero needs no unit"),
        pytest.param("0s", 0.0, id="zero seconds"),
        pytest.param("500ms", 0.5, id="milliseconds"),
        pytest.param("1m30s", 90.0, id="two units"),
        pytest.param("1.5s", 1.5, id="a fraction"),
        pytest.param("2h", 7200.0, id="hours"),
        pytest.param("5", None, id="a number without unit"),
        pytest.param("-1s", None, id="a negative one"),
        pytest.param("", None, id="nothing"),
        pytest.param("1s!", None, id="something behind"),
    ],
)
def test_durations_are_read_as_go_writes_them(text: str, want: float | None) -> None:
    """The form of kube-controller-manager is taken, and nothing else."""
    assert parse_duration(text) == want


KUBECONFIG = """
apiVersion: v1
kind: Config
current-context: c
contexts: [{name: c, context: {cluster: c, user: u}}]
clusters: [{name: c, cluster: {server: "http://127.0.0.1:9"}}]
users: [{name: u, user: {token: t}}]
"""


@pytest.mark.parametrize(
    ("options", "want"),
    [
        pytest.param(
            ["--metrics-address=127.0.0.1:{port}"],
            "--metrics-address: cannot listen at 127.0.0.1:{port}: Address already in use; "
            "choose another address, or none to serve no pages",
            id="of the pages",
        ),
        pytest.param(
            [
                "--mode=webhook",
                "--webhook-url=https://192.0.2.7:9443",
                "--metrics-address=127.0.0.1:{port}",
            ],
            "--metrics-address: cannot listen at 127.0.0.1:{port}: Address already in use; "
            "choose another address, or none to serve no pages",
            id="of the pages of a webhook",
        ),
        pytest.param(
            ["--metrics-address=no-such-host.invalid:80"],
            "--metrics-address: cannot listen at no-such-host.invalid:80: ",
            id="of no machine",
        ),
    ],
)
def test_an_address_at_which_it_cannot_listen(
    options: list[str], want: str, tmp_path: Path
) -> None:
    """The error gives option, address and reason in words, without the number of the error."""
    config = tmp_path / "kubeconfig"
    config.write_text(KUBECONFIG)
    with listen_here("127.0.0.1", 0) as taken:
        port = taken.getsockname()[1]
        arguments = [option.format(port=port) for option in options]
        result = CliRunner().invoke(app, ["controller", f"--kubeconfig={config}", *arguments])
    assert result.exit_code == 2
    assert result.stderr.startswith(f"error: {want.format(port=port)}")
    assert "Errno" not in result.stderr
