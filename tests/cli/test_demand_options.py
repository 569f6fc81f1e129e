"""The options of measured demand: their defaults, and what is refused before anything is read."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from keepclose.cli.controller.demand_options import (
    DemandChoice,
    DemandDefaults,
    MeasureChoice,
    read_demand,
)
from keepclose.cli.exit import ExitCode
from keepclose.cli.main import app
from keepclose.cli.options import AGENT_NAMESPACE
from keepclose.demand.settings import (
    LEAST_BYTES,
    DemandMeasure,
    DemandOptions,
    DemandOrigin,
)
from keepclose.demand.sources import DemandReading
from keepclose.demand.store import DemandStore
from keepclose.model.gates import FeatureGates, Gate
from keepclose.model.meta import NamespacedName
from keepclose.routing.demand import DemandSettings
from keepclose.routing.traffic_shares import Shares
from support import builders


def read(
    choice: DemandChoice,
    measure: MeasureChoice = MeasureChoice.CONNECTIONS,
    dead_band: str = DemandDefaults.DEAD_BAND,
) -> DemandOptions | None:
    """Return the options of a command line that names the source alone."""
    return read_demand(
        choice,
        flows=[],
        agent_namespace=AGENT_NAMESPACE,
        measure=measure,
        prometheus_url="prometheus+http://p:9090" if choice is DemandChoice.PROMETHEUS else "",
        query="flows",
        labels="",
        token_file="",
        ca_file="",
        file="demand.csv" if choice is DemandChoice.FILE else "",
        period=DemandDefaults.PERIOD,
        half_life=DemandDefaults.HALF_LIFE,
        dead_band=dead_band,
        interval=DemandDefaults.INTERVAL,
        stale_after=DemandDefaults.STALE_AFTER,
        least_rate=DemandDefaults.LEAST_RATE,
        gates=FeatureGates().with_gates(Gate.TRAFFIC_DISTRIBUTION_CUSTOM_HEURISTICS),
    )


def test_the_defaults_are_those_of_the_decision() -> None:
    """The defaults of the command line are those of the settings behind it."""
    assert read(DemandChoice.NONE) is None
    assert read(DemandChoice.FLOWS) == DemandOptions(DemandOrigin.FLOWS)
    any_rate = DemandSettings(least_rate=0.0)
    file = DemandOptions(DemandOrigin.FILE, use=any_rate, file="demand.csv")
    assert read(DemandChoice.FILE) == file
    want = DemandOptions(DemandOrigin.PROMETHEUS, prometheus_url="http://p:9090")
    assert read(DemandChoice.PROMETHEUS) == want
    assert [choice.value for choice in DemandChoice] == ["none", *map(str, DemandOrigin)]
    assert list(map(str, MeasureChoice)) == list(map(str, DemandMeasure))


@pytest.mark.parametrize("text", ["0.1", "10%"])
def test_the_dead_band_may_be_in_percent(text: str) -> None:
    """A part is written as everywhere else."""
    options = read(DemandChoice.FLOWS, dead_band=text)
    assert options is not None
    assert options.use.dead_band == pytest.approx(0.1)


def test_bytes_need_a_higher_rate() -> None:
    """The least rate is one of bytes where bytes are measured."""
    options = read(DemandChoice.FLOWS, MeasureChoice.BYTES)
    assert options is not None
    assert options.use.least_rate == LEAST_BYTES


def test_parts_in_a_file_are_demand() -> None:
    """Parts of 1 in a file are measured shares, although their sum may be a little less than 1."""
    options = read(DemandChoice.FILE)
    assert options is not None
    store = DemandStore(
        options.use, source="file", by_cpu=lambda: Shares({"a": 0.5, "b": 0.5}), now=lambda: 0.0
    )
    store.receive(DemandReading({NamespacedName("default", "web"): {"a": 0.7, "b": 0.2}}))
    shares = store.shares_of(builders.service()).by_zone
    assert shares == pytest.approx({"a": 7 / 9, "b": 2 / 9})


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--demand-file=x"], "--demand-file needs --demand=file"),
        (["--demand=file", "--demand-ca-file=x"], "--demand-ca-file needs --demand=prometheus"),
        (
            ["--demand=prometheus", "--demand-prometheus-url=http://p", "--demand-token-file=x"],
            "--demand-token-file needs a --demand-prometheus-url that starts with https://",
        ),
        (["--demand=flows"], "add --feature-gates=TrafficDistributionCustomHeuristics=true"),
        (["--demand=file"], "--demand=file needs --demand-file"),
        (["--demand=prometheus"], "--demand=prometheus needs --demand-prometheus-url"),
        (["--demand=file", "--demand-query=istio"], "--demand-query needs --demand=prometheus"),
        (["--demand=flows", "--demand-period=0s"], "--demand-period must be at least 1"),
        (["--demand=flows", "--demand-dead-band=x"], "--demand-dead-band: 'x' must be a part"),
        (["--demand=flows", "--demand-dead-band=150%"], "--demand-dead-band must be from 0 to 1"),
        (["--demand=flows", "--demand-least-rate=-1"], "--demand-least-rate must be at least 0"),
        (["--demand=flows", "--demand-interval=x"], "--demand-interval: 'x' must be a duration"),
        (["--demand=flows", "--demand-dead-band=5"], "--demand-dead-band must be from 0 to 1"),
        (
            ["--demand=flows", "--demand-stale-after=9s"],
            "--demand-stale-after must not be less than --demand-period",
        ),
        (
            ["--demand=prometheus", "--demand-prometheus-url=http://p", "--demand-labels=zone"],
            "--demand-labels: 'zone' must be FIELD=LABEL",
        ),
        (
            ["--demand=prometheus", "--demand-prometheus-url=http://p", "--demand-query=itsio"],
            "--demand-query: 'itsio' is none of flows, proxy, istio, linkerd, hubble",
        ),
    ],
)
@pytest.mark.parametrize("mode", [[], ["--mode=webhook", "--webhook-url=https://h"]])
def test_options_without_effect_or_sense_are_refused(
    words: list[str], message: str, mode: list[str]
) -> None:
    """The command ends with 2 and names the option, in both modes."""
    result = CliRunner().invoke(app, ["controller", *mode, *words])
    assert result.exit_code == ExitCode.BAD_INPUT
    assert message in result.stderr


KUBECONFIG = """
apiVersion: v1
kind: Config
current-context: one
contexts: [{name: one, context: {cluster: c, user: u}}]
clusters: [{name: c, cluster: {server: "http://127.0.0.1:9"}}]
users: [{name: u, user: {token: t}}]
"""
GATE = "--feature-gates=TrafficDistributionCustomHeuristics=true"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        pytest.param(
            ["--demand=file", "--demand-file=/no/such/file"],
            "error: --demand-file /no/such/file cannot be read: No such file or directory; name a",
            id="no file",
        ),
        pytest.param(
            ["--demand=file", "--demand-file=/"],
            "error: --demand-file / cannot be read: Is a directory; name a file",
            id="no file but a directory",
        ),
        pytest.param(
            [
                "--demand=prometheus",
                "--demand-prometheus-url=https://p",
                "--demand-token-file=/no/token",
            ],
            "error: --demand-token-file /no/token cannot be read: No such file or directory; name",
            id="no token",
        ),
        pytest.param(
            ["--demand=prometheus", "--demand-prometheus-url=p:9090"],
            "error: --demand-prometheus-url: p:9090 names no host; name it as http://HOST:PORT",
            id="no address",
        ),
        pytest.param(
            ["--demand=flows", "--demand-flows=http://n1:port"],
            "error: --demand-flows: http://n1:port is no address: Port could not be cast",
            id="no port",
        ),
    ],
)
@pytest.mark.parametrize("mode", [[], ["--mode=webhook", "--webhook-url=https://h"]])
def test_a_source_that_can_never_work_ends_the_command(
    words: list[str], message: str, mode: list[str], tmp_path: Path
) -> None:
    """Before anything is asked of the cluster, with option, value and fix, in both modes."""
    config = tmp_path / "kubeconfig"
    config.write_text(KUBECONFIG)
    common = ["controller", f"--kubeconfig={config}", "--metrics-address=none", GATE]
    result = CliRunner().invoke(app, [*common, *mode, *words])
    assert result.exit_code == ExitCode.BAD_INPUT
    assert result.stderr.startswith(message)
