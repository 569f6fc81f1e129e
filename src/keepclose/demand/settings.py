"""The settings of measured demand: what measures, how often it is read, and how it is used."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from math import isfinite
from typing import Final

import msgspec

from keepclose.demand.prometheus_queries import READY_QUERIES, find_query
from keepclose.routing.demand import DemandSettings

LEAST_PERIOD_S: Final = 1.0
LEAST_CONNECTIONS: Final = 1.0
LEAST_BYTES: Final = 10_000.0


class DemandOrigin(StrEnum):
    """What measures demand."""

    FLOWS = "flows"
    PROMETHEUS = "prometheus"
    FILE = "file"


class DemandMeasure(StrEnum):
    """What flow agents count of a flow."""

    CONNECTIONS = "connections"
    BYTES = "bytes"


def default_least_rate(origin: DemandOrigin, measure: DemandMeasure) -> float:
    """Return the least total rate where none is set; any of a file, whose unit is not known."""
    if origin is DemandOrigin.FILE:
        return 0.0
    return LEAST_BYTES if measure is DemandMeasure.BYTES else LEAST_CONNECTIONS


class DemandOptions(msgspec.Struct, frozen=True):
    """All settings of measured demand; times are in seconds."""

    origin: DemandOrigin
    use: DemandSettings = DemandSettings()
    period_s: float = 30.0
    """How often the source is read."""
    measure: DemandMeasure = DemandMeasure.CONNECTIONS
    agents: tuple[str, ...] = ()
    """Addresses of flow agents; none to find them through the API server."""
    agent_namespace: str = "kube-system"
    prometheus_url: str = ""
    query: str = "flows"
    """The name of a ready query, or a query of PromQL."""
    labels: Mapping[str, str] = {}
    """Names of labels in the answer by field: namespace, service, zone, node."""
    token_file: str = ""
    """A file with the token that Prometheus asks for."""
    ca_file: str = ""
    """A file with the authorities of its certificate; without it those of the system."""
    file: str = ""

    @property
    def source(self) -> str:
        """The name of the source in reasons."""
        match self.origin:
            case DemandOrigin.FLOWS:
                return "flow agents"
            case DemandOrigin.PROMETHEUS:
                query = self.query if self.query in READY_QUERIES else "own query"
                return f"Prometheus ({query})"
            case DemandOrigin.FILE:
                return "file"


def demand_errors(options: DemandOptions) -> list[str]:
    """Return the validation errors, each with the option that sets the value."""
    use = options.use
    errors: list[str] = []
    for option, value, least in (
        ("--demand-period", options.period_s, LEAST_PERIOD_S),
        ("--demand-half-life", use.half_life_s, 0.0),
        ("--demand-interval", use.interval_s, 0.0),
        ("--demand-stale-after", use.stale_after_s, LEAST_PERIOD_S),
        ("--demand-least-rate", use.least_rate, 0.0),
    ):
        if not isfinite(value) or value < least:
            errors.append(f"{option} must be at least {least:g}, but is {value:g}")
    if not 0.0 <= use.dead_band <= 1.0:
        errors.append(f"--demand-dead-band must be from 0 to 1, but is {use.dead_band:g}")
    if use.stale_after_s < options.period_s:
        errors.append("--demand-stale-after must not be less than --demand-period")
    if options.origin is DemandOrigin.PROMETHEUS and not options.prometheus_url:
        errors.append("--demand=prometheus needs --demand-prometheus-url http://HOST:PORT")
    if options.origin is DemandOrigin.PROMETHEUS and options.prometheus_url:
        errors += _https_errors(options)
    if options.origin is DemandOrigin.FILE and not options.file:
        errors.append("--demand=file needs --demand-file with the path of a file of rates")
    try:
        find_query(options.query, options.labels)
    except ValueError as error:
        errors.append(str(error))
    return errors


def _https_errors(options: DemandOptions) -> list[str]:
    """Return the errors of a token or authority that the address cannot use."""
    is_https = options.prometheus_url.startswith("https://")
    errors = [
        f"{option} needs a --demand-prometheus-url that starts with https://"
        for option, path in (
            ("--demand-token-file", options.token_file),
            ("--demand-ca-file", options.ca_file),
        )
        if path and not is_https
    ]
    if options.token_file and "@" in options.prometheus_url.partition("://")[2].partition("/")[0]:
        errors.append("--demand-token-file and a user in --demand-prometheus-url exclude another")
    return errors
