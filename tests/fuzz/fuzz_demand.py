"""Demand from outside, in a file or an answer of Prometheus, up to the shares that follow."""

from __future__ import annotations

import math
from collections.abc import Iterator

import msgspec
from fuzzbounds import require

from keepclose.accounting.flow_files import FlowFileError
from keepclose.accounting.prometheus_answers import read_vector
from keepclose.demand.rates import ServiceRates, parse_rates, rates_of_series
from keepclose.routing.demand import DemandSample, DemandSettings, DemandState, decide_demand
from keepclose.routing.traffic_shares import Shares

MUTATES_JSON = True
_BY_CPU = Shares({"a": 0.5, "b": 0.25, "c": 0.25})
_NODES = {"a": "a", "n1": "b", "": "c"}


def seeds() -> Iterator[bytes]:
    """Yield files of both formats, and an answer."""
    yield b"namespace,service,zone,rate\nshop,web,a,70\nshop,web,b,nan\n"
    yield b"namespace,service,zone,rate\nshop,web,a,x\nshop,api,a,1\nshop\n,,\n"
    yield b'zone,rate,service,namespace\n"a",1e308,web,shop\n'
    yield msgspec.json.encode({"shop/web": {"a": 70, "b": 1e308, "z": 0.5}})
    metric = {"namespace": "shop", "service": "web.shop.svc", "zone": "a"}
    for value in ("7", "NaN", "-Inf"):
        result = [{"metric": metric, "value": [1.5, value]}, {"metric": {}, "value": [2, "1"]}]
        data = {"resultType": "vector", "result": result}
        yield msgspec.json.encode({"status": "success", "data": data})


def check(data: bytes) -> None:
    """Only documented errors are raised, and shares are those of the cluster's zones."""
    for rates in (_read_file(data), _read_answer(data)):
        for zones in rates.values():
            _check_shares(DemandSample(1.0, zones))


def _read_file(data: bytes) -> ServiceRates:
    try:
        rates, rejected, notes = parse_rates(data, name="file")
    except ValueError:
        return {}
    require(not rates.keys() & rejected.keys(), "rates of a Service that is rejected")
    require(all(note.isprintable() for note in notes), "a note is no plain line")
    for why in [*rejected.values()][:3]:
        _check_shares(DemandSample(1.0, {}, error=why))
    return rates


def _read_answer(data: bytes) -> ServiceRates:
    try:
        return rates_of_series(read_vector(data, name="answer"), {}, zones=_NODES)
    except FlowFileError:
        return {}


def _check_shares(sample: DemandSample) -> None:
    state, settings = DemandState(), DemandSettings()
    for now in (1.0, 400.0, -1.0):
        decision = decide_demand(state, sample, now=now, by_cpu=_BY_CPU, settings=settings)
        state = decision.state
        shares = decision.shares.by_zone
        require(shares.keys() == _BY_CPU.by_zone.keys(), "other zones")
        require(math.isclose(sum(shares.values()), 1.0), "shares do not sum to 1")
        require(all(0.0 <= share <= 1.0 for share in shares.values()), "a share out of bounds")
        for reason in decision.shares.reasons:
            require(reason.message.isprintable(), "a reason is no plain line")
