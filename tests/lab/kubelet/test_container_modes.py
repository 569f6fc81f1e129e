"""What the words of a container make it do."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from keepclose.lab.kubelet.container_modes import (
    DEFAULT_PORTS,
    ContainerMode,
    PodPorts,
    Port,
    mode_of,
    ports_of,
    pre_stop_seconds,
    seconds_until_ready,
)
from keepclose.model.workloads.pods import ContainerSpec


def container(**parts: Any) -> ContainerSpec:
    """Return a container as the API writes it."""
    return msgspec.convert({"name": "main", "image": "example.dev/web:1", **parts}, ContainerSpec)


AGNHOST = "registry.k8s.io/e2e-test-images/agnhost:2.40"


@pytest.mark.parametrize(
    ("parts", "want_mode"),
    [
        pytest.param({}, ContainerMode.PLAIN, id="any image answers"),
        pytest.param({"image": "crash"}, ContainerMode.CRASH, id="the image is the mode"),
        pytest.param(
            {"env": [{"name": "KEEPCLOSE_MODE", "value": "keepclose-probe"}]},
            ContainerMode.PROBE,
            id="a probe of verify",
        ),
        pytest.param(
            {"image": "localhost:5000/lab/never-ready:2@sha256:ab"},
            ContainerMode.NEVER_READY,
            id="with registry, tag and digest",
        ),
        pytest.param(
            {"image": AGNHOST, "args": ["serve-hostname", "--port", "8080"]},
            ContainerMode.SERVE_HOSTNAME,
            id="agnhost's first argument is the mode",
        ),
        pytest.param(
            {"command": ["/agnhost", "serve-hostname"]},
            ContainerMode.SERVE_HOSTNAME,
            id="after the program",
        ),
        pytest.param({"command": ["/bin/slow-start"]}, ContainerMode.SLOW_START, id="as a program"),
        pytest.param(
            {"command": ["sh", "-c", "crash"]},
            ContainerMode.PLAIN,
            id="words further on do not count",
        ),
        pytest.param(
            {"env": [{"name": "KEEPCLOSE_MODE", "value": "crash"}]},
            ContainerMode.CRASH,
            id="by variable",
        ),
        pytest.param(
            {"image": "crash", "env": [{"name": "KEEPCLOSE_MODE", "value": "plain"}]},
            ContainerMode.PLAIN,
            id="the variable comes first",
        ),
        pytest.param(
            {"env": [{"name": "KEEPCLOSE_MODE", "value": "dance"}]},
            ContainerMode.PLAIN,
            id="no such mode",
        ),
    ],
)
def test_a_mode_is_named_by_image_words_or_variable(
    parts: dict[str, Any], want_mode: ContainerMode
) -> None:
    """The variable decides, then the words, then the image."""
    assert mode_of(container(**parts)) is want_mode


@pytest.mark.parametrize(
    ("parts", "want_s"),
    [
        pytest.param({}, 0.0, id="at once"),
        pytest.param({"args": ["slow-start"]}, 5.0, id="slow is five seconds"),
        pytest.param({"args": ["slow-start", "12"]}, 12.0, id="or as many as follow"),
        pytest.param({"args": ["slow-start", "--seconds=2.5"]}, 2.5, id="or as the option says"),
        pytest.param(
            {"image": "slow-start", "env": [{"name": "KEEPCLOSE_SECONDS", "value": "9"}]},
            9.0,
            id="or the variable",
        ),
        pytest.param({"args": ["slow-start", "soon"]}, 5.0, id="what is no number is not heard"),
        pytest.param(
            {"readinessProbe": {"tcpSocket": {"port": 1}, "initialDelaySeconds": 7}},
            7.0,
            id="a probe delays",
        ),
        pytest.param(
            {"args": ["slow-start"], "readinessProbe": {"initialDelaySeconds": 7}},
            7.0,
            id="the longer of both",
        ),
        pytest.param({"args": ["never-ready"]}, None, id="never"),
        pytest.param({"args": ["crash"]}, None, id="crashing is never ready"),
    ],
)
def test_readiness_comes_after_a_known_time(parts: dict[str, Any], want_s: float | None) -> None:
    """The mode and the probe's first delay say when a container is ready."""
    assert seconds_until_ready(container(**parts)) == want_s


@pytest.mark.parametrize(
    ("parts", "want_ports"),
    [
        pytest.param(
            [{"ports": [{"containerPort": 53, "protocol": "UDP"}, {"containerPort": 53}]}],
            PodPorts((Port(53, "TCP"), Port(53, "UDP"))),
            id="as the spec says",
        ),
        pytest.param(
            [{"image": AGNHOST, "args": ["serve-hostname", "--port", "8080"]}],
            PodPorts((Port(8080, "TCP"),)),
            id="as the argument says",
        ),
        pytest.param(
            [{"args": ["serve-hostname", "--port=9000", "--udp"]}],
            PodPorts((Port(9000, "TCP"), Port(9000, "UDP"))),
            id="over UDP too when asked",
        ),
        pytest.param(
            [{"args": ["netexec", "--http-port=8083", "--udp-port=8081"]}],
            PodPorts((Port(8081, "UDP"), Port(8083, "TCP"))),
            id="one option for each protocol",
        ),
        pytest.param(
            [{"ports": [{"containerPort": 80}]}, {"ports": [{"containerPort": 81}]}],
            PodPorts((Port(80, "TCP"), Port(81, "TCP"))),
            id="of all containers",
        ),
        pytest.param(
            [{"ports": [{"containerPort": 80}]}, {}],
            PodPorts((Port(80, "TCP"),)),
            id="nothing is guessed when one said something",
        ),
        pytest.param([{}], PodPorts(DEFAULT_PORTS, True), id="else the usual ones"),
        pytest.param([{"args": ["--port", "http"]}], PodPorts(DEFAULT_PORTS, True), id="no number"),
        pytest.param([{"args": ["--port"]}], PodPorts(DEFAULT_PORTS, True), id="no value"),
        pytest.param([{"args": ["--port=70000"]}], PodPorts(DEFAULT_PORTS, True), id="no port"),
        pytest.param(
            [{"args": ["crash"], "ports": [{"containerPort": 80}]}],
            PodPorts(()),
            id="not if it ends",
        ),
        pytest.param([], PodPorts(()), id="without containers nowhere"),
    ],
)
def test_ports_are_those_that_were_said(parts: list[dict[str, Any]], want_ports: PodPorts) -> None:
    """Ports come from the spec and from options, and are guessed only when nothing was said."""
    assert ports_of([container(**one) for one in parts]) == want_ports


def test_the_usual_ports_are_six() -> None:
    """80, 8080 and 9376 over both protocols."""
    assert {(one.number, one.protocol) for one in DEFAULT_PORTS} == {
        (number, protocol) for number in (80, 8080, 9376) for protocol in ("TCP", "UDP")
    }


@pytest.mark.parametrize(
    ("hook", "want_s"),
    [
        pytest.param(None, 0.0, id="none"),
        pytest.param({"sleep": {"seconds": 4}}, 4.0, id="sleep"),
        pytest.param({"exec": {"command": ["sleep", "3"]}}, 3.0, id="command"),
        pytest.param({"exec": {"command": ["/bin/sleep", "0.5"]}}, 0.5, id="with its path"),
        pytest.param({"exec": {"command": ["/bin/sh", "-c", "sleep 6"]}}, 6.0, id="shell"),
        pytest.param(
            {"exec": {"command": ["sh", "-c", "touch /x;sleep 8 && nginx -s quit"]}},
            8.0,
            id="among others",
        ),
        pytest.param({"exec": {"command": ["nosleep", "9"]}}, 0.0, id="another command"),
        pytest.param({"httpGet": {"port": 80}}, 0.0, id="a request takes no time"),
    ],
)
def test_sleeping_before_the_end_is_understood(hook: Any, want_s: float) -> None:
    """A preStop hook counts for as long as it sleeps."""
    assert pre_stop_seconds(container(lifecycle={"preStop": hook})) == want_s
    assert pre_stop_seconds(container(lifecycle=None)) == 0.0


def test_trouble_wins() -> None:
    """A bad image of a rollout shows, although the arguments still name another mode."""
    one = container(image="crash", args=["serve-hostname", "--port", "8080"])
    assert mode_of(one) is ContainerMode.CRASH
