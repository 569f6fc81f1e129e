"""Options that several commands share: their choices, their help and the parsing of their values.

A value that cannot be parsed ends the command with exit code 2 and names the option.

`choose_cluster` has the rule by which all commands find the cluster they read: the one that
--kubeconfig or --context names, else a lab that runs, else the one that kubectl uses.

NB: some choices and defaults are defined in other packages as well, because loading those packages
takes longer than --help may. Tests hold that both agree.
"""

from __future__ import annotations

import math
import re
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final, NamedTuple

import typer

from keepclose.cli.exit import ExitCode, complete_hints, fail

if TYPE_CHECKING:
    from keepclose.kube.connection import ConnectionSettings
    from keepclose.model.gates import FeatureGates
    from keepclose.routing.subsets import SubsetOptions

# NB: int() raises an error of its own for a number of thousands of digits.
_PORT: Final = re.compile(r"[0-9]{1,5}").fullmatch
_PART: Final = re.compile(r"([0-9]+(?:\.[0-9]*)?|\.[0-9]+)(h|ms|m|s|us|µs|ns)")
_UNITS: Final = {"h": 3600.0, "m": 60.0, "s": 1.0, "ms": 1e-3, "us": 1e-6, "µs": 1e-6, "ns": 1e-9}

Kubeconfig = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE",
        help="How to reach the cluster; default: a running lab, else the kubeconfig that kubectl "
        "uses.",
    ),
]
KubeContext = Annotated[
    str, typer.Option("--context", metavar="NAME", help="The context of the kubeconfig.")
]
AGENT_NAMESPACE: Final = "kube-system"
"""Where docs/howto/flows.yaml runs the agents."""
AgentNamespace = Annotated[
    str,
    typer.Option(
        metavar="NAME",
        help="The namespace of the flow agents; pods with their label elsewhere are not read.",
    ),
]
StartingThreshold = Annotated[
    float,
    typer.Option(
        metavar="N",
        help="Endpoints per zone at which a Service that prefers its zones is divided.",
    ),
]
Padding = Annotated[
    int,
    typer.Option(
        metavar="N",
        help="How many endpoints above that number the division begins, and below it ends.",
    ),
]
OverloadThreshold = Annotated[
    float,
    typer.Option(
        metavar="PART",
        help="The overload that no zone may reach when it is divided, also by "
        "keepclose.dev/LocalShared; 0.5 is one half more.",
    ),
]


class DefaultSubsetting(StrEnum):
    """How endpoints of Services without the subsetting annotation are divided among zones."""

    RANDOM = "Random"
    PREFER = "Prefer"
    REQUIRE = "Require"


class SubsettingDefaults:
    """The default limits of subsetting."""

    STARTING_THRESHOLD = 3.0
    PADDING = 3
    OVERLOAD_THRESHOLD = 0.5


class TopologyMode(StrEnum):
    """How the controller detects node-level Services."""

    MANUAL = "Manual"
    SEMI_AUTO = "SemiAuto"
    AUTO = "Auto"


class RoleOption(StrEnum):
    """The programs of a lab cluster."""

    APISERVER = "apiserver"
    CONTROLLER = "controller"
    PROXY = "proxy"


class DirectionOption(StrEnum):
    """The address at which clients outside the cluster reach a Service."""

    NODE_PORT = "node-port"
    LOAD_BALANCER = "load-balancer"


class FlowGrouping(StrEnum):
    """What a line of `flows top` is about."""

    SERVICE = "service"
    ZONES = "zones"
    NAMESPACE = "namespace"
    CLIENT = "client"


class FlowOrder(StrEnum):
    """By what lines of `flows top` are sorted, the largest first."""

    CROSS_ZONE = "cross-zone"
    BYTES = "bytes"
    CONNECTIONS = "connections"
    FAILED = "failed"
    NAME = "name"


class LocalMode(StrEnum):
    """How the proxy identifies traffic of the node's own pods."""

    CLUSTER_CIDR = "ClusterCIDR"
    NODE_CIDR = "NodeCIDR"
    BRIDGE_INTERFACE = "BridgeInterface"
    INTERFACE_PREFIX = "InterfaceNamePrefix"


class WriterOption(StrEnum):
    """How the proxy writes rules into the kernel."""

    AUTO = "auto"
    LIBNFTABLES = "libnftables"
    NFT = "nft"


class Durability(StrEnum):
    """Which crashes an acknowledged write survives."""

    NORMAL = "normal"
    """A crash of the process."""
    FULL = "full"
    """A crash of the machine too."""


def read_gates(
    text: str, *, emulated_version: str = "", defaults: FeatureGates | None = None
) -> FeatureGates:
    """Return the feature gates that --feature-gates and --emulated-version set.

    An emulated version has its own defaults.
    """
    from keepclose.model.gates import (
        DEFAULT_GATES,
        GateError,
        VersionError,
        gates_at,
        parse_emulated_version,
        parse_gates,
    )

    defaults = defaults or DEFAULT_GATES
    try:
        if emulated_version:
            defaults = gates_at(parse_emulated_version(emulated_version))
        return parse_gates(text, defaults=defaults)
    except VersionError as error:
        fail(f"--emulated-version: {error}")
    except GateError as error:
        fail(f"--feature-gates: {error}")


class ChosenCluster(NamedTuple):
    """The cluster that a command reads."""

    url: str
    connection: ConnectionSettings
    lab: Path | None = None
    """The data directory of the lab; None for another cluster."""

    @property
    def name(self) -> str:
        """What messages call the cluster."""
        return "the lab" if self.lab else self.url


def choose_cluster(
    kubeconfig: Path | None, context: str, data_dir: Path, *, other: str = ""
) -> ChosenCluster:
    """Return the cluster that options name, else the lab that runs, else that of kubectl.

    Without any the command ends; `other` says what it reads instead of a cluster.
    """
    from keepclose.kube.auth.kubeconfig import load_connection_settings
    from keepclose.kube.errors import ConfigError

    is_named = kubeconfig is not None or context != ""
    lab = _find_lab(data_dir)
    try:
        if lab is not None and not is_named:
            settings = load_connection_settings(lab[0])
        else:
            settings = load_connection_settings(kubeconfig, context=context or None)
    except ConfigError as error:
        if is_named:
            fail(str(error))
        fail(
            f"no cluster is named, and no lab runs: {error}",
            complete_hints(
                "name the cluster with --kubeconfig, --context or KUBECONFIG, or start a lab with "
                "keepclose up --flows",
                data_dir,
            ),
            other,
            code=ExitCode.UNREACHABLE,
        )
    is_lab = lab is not None and settings.server.url.rstrip("/") == lab[1].rstrip("/")
    return ChosenCluster(settings.server.url, settings, data_dir if is_lab else None)


def _find_lab(data_dir: Path) -> tuple[Path, str] | None:
    """Return kubeconfig and URL of the lab that runs in a directory; None if none does."""
    from keepclose.lab.cluster.data_dir import ClusterDirectory, ClusterDirectoryError, is_held

    try:
        directory = ClusterDirectory(data_dir.expanduser())
        state = directory.read_state() if is_held(directory) else None
    except ClusterDirectoryError as error:
        fail(str(error))
    except RuntimeError:
        # A user without a home directory, as in a container, has no lab there.
        return None
    return None if state is None else (Path(state.kubeconfig), state.url)


def join_namespace(service: str, namespace: str) -> str:
    """Return NAMESPACE/NAME of a Service; without a namespace, the name as the user typed it."""
    if not namespace:
        return service
    own, slash, name = service.partition("/")
    if slash and own != namespace:
        fail(f"-n {namespace}: the Service is named with another namespace, {service}")
    return f"{namespace}/{name if slash else service}"


def read_duration(option: str, text: str, *, most_s: float = math.inf) -> float:
    """Return the duration of an option's value, in seconds."""
    seconds = parse_duration(text)
    if seconds is None:
        fail(f"{option}: {text!r} must be a duration such as 1s")
    if seconds > most_s:
        fail(f"{option}: {text!r} is longer than {most_s / 3600:g}h")
    return seconds


def parse_duration(text: str) -> float | None:
    """Return the seconds of a duration as Kubernetes' components write it, or None if invalid.

    "0", or numbers with units from hours to nanoseconds, as in "1m30s" or "1.5s".
    """
    if text == "0":
        return 0.0
    seconds, position = 0.0, 0
    while position < len(text):
        match = _PART.match(text, position)
        if match is None:
            return None
        seconds += float(match[1]) * _UNITS[match[2]]
        position = match.end()
    return seconds if text else None


def read_address(option: str, text: str, *, form: str = "HOST:PORT") -> tuple[str, int]:
    """Return host and port of an option's value; the default host is loopback."""
    host, colon, port = text.rpartition(":")
    if not colon or not _PORT(port) or int(port) > 65535:
        fail(f"{option}: {text!r} must be {form}")
    return host.strip("[]") or "127.0.0.1", int(port)


def read_address_or_none(option: str, text: str) -> tuple[str, int] | None:
    """Return host and port of an option's value, or None for the value `none`."""
    return None if text == "none" else read_address(option, text, form="HOST:PORT, or none")


def read_subsets(
    default: DefaultSubsetting,
    *,
    starting_threshold: float,
    padding: int,
    overload_threshold: float,
) -> SubsetOptions:
    """Return the options of subsetting; a limit out of range ends the command."""
    from keepclose.routing.subsets import MAX_LIMIT, MIN_LIMIT, Approach, SubsetOptions

    for option, number in (
        ("--subsetting-starting-threshold", starting_threshold),
        ("--subsetting-overload-threshold", overload_threshold),
    ):
        if not MIN_LIMIT <= number <= MAX_LIMIT:
            fail(f"{option}: {number:g} must be a number above 0")
    if not 0 <= padding <= MAX_LIMIT:
        fail(f"--subsetting-padding: {padding} must be a whole number of at least 0")
    return SubsetOptions(
        default=Approach(default.value),
        start_per_zone=starting_threshold,
        padding=padding,
        overload_threshold=overload_threshold,
    )
