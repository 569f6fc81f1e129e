"""Write docs/reference from the code, or with --check say whether it is up to date.

Commands, gates, reasons, conditions, events, limits, metrics and rules of lint are described once,
where they are defined.
"""

from __future__ import annotations

import sys
from pathlib import Path

from reference_conditions import describe_conditions
from reference_events import describe_events
from reference_limits import describe_limits
from reference_lint import describe_rules
from reference_metrics import describe_metrics
from typer.models import CommandInfo
from typer.testing import CliRunner

from keepclose.cli.exit import ExitCode
from keepclose.cli.main import app
from keepclose.model import well_known
from keepclose.model.gates import EXCLUSIVE_PAIRS, ON_BY_DEFAULT, Gate
from keepclose.routing.reasons import ReasonCode

FOLDER = Path(__file__).parent.parent / "docs" / "reference"
WRITTEN = "<!-- Written by `make docs`; edit the code instead. -->\n"

GATES = {
    Gate.SERVICE_TRAFFIC_DISTRIBUTION: "`spec.trafficDistribution` (KEP-4444).",
    Gate.PREFER_SAME_TRAFFIC_DISTRIBUTION: "`PreferSameZone`, `PreferSameNode` and node hints"
    " (KEP-3015).",
    Gate.TOPOLOGY_AWARE_HINTS: "The topology annotation's mode `Auto` (KEP-2433); without it the"
    " field governs.",
    Gate.SERVICE_INTERNAL_TRAFFIC_POLICY: "`internalTrafficPolicy` (KEP-2086).",
    Gate.PROXY_TERMINATING_ENDPOINTS: "Terminating endpoints that still serve are the last resort"
    " (KEP-1669).",
    Gate.ENDPOINT_SLICE_TERMINATING_CONDITION: "Endpoints have the conditions `serving` and"
    " `terminating` (KEP-1672).",
    Gate.STRICT_IP_CIDR_VALIDATION: "Addresses with leading zeros are rejected.",
    Gate.RELAXED_SERVICE_NAME_VALIDATION: "Service names may begin with a digit.",
    Gate.ALLOW_SERVICE_EXTERNAL_IPS: "The proxy routes traffic to `spec.externalIPs`.",
    Gate.TOPOLOGY_AWARE_SUBSETTING: "The subsetting annotation divides slices by zone (KEP-2004).",
    Gate.ENDPOINT_SLICE_SUBSETTING: "Nodes use only slices labelled for their zone (KEP-2030).",
    Gate.PREFER_LOCAL_TRAFFIC_POLICY: "`PreferLocal` as a traffic policy (KEP-3015, first draft).",
    Gate.NODE_LEVEL_TOPOLOGY: "Node-level topology: the value `Node`, the annotation"
    " `service.kubernetes.io/node-topology`, detection (KEP-3015, second draft).",
    Gate.SERVICE_TOPOLOGY: "`topologyKeys` (KEP-536).",
    Gate.SERVICE_TRAFFIC_DISTRIBUTION_STATUS: "Status conditions about trafficDistribution"
    " (KEP-4444, future work there).",
    Gate.TRAFFIC_DISTRIBUTION_CUSTOM_HEURISTICS: "Values of the form `<domain>/<name>` (KEP-4444,"
    " future work there).",
}

ANNOTATIONS = {
    well_known.TOPOLOGY_MODE_ANNOTATION: "`Auto` or `auto`: hints by CPU share; `Node`: node-level"
    " topology. Other values: no topology mode.",
    well_known.TOPOLOGY_HINTS_ANNOTATION: "The deprecated name of the same; it wins if present.",
    well_known.SUBSETTING_ANNOTATION: "`Auto` or `Prefer`: slices by zone, balanced; `Require`:"
    " slices by zone, never balanced; `PreferRegion`, `RequireRegion`: the same by region;"
    " `Disabled` or `Random`: no subsets, whatever the controller's default.",
    well_known.STARTING_THRESHOLD_ANNOTATION: "Endpoints per zone at which `Prefer` divides this"
    " Service, a number above 0; overrides `--subsetting-starting-threshold`.",
    well_known.MAX_OVERLOAD_ANNOTATION: "How much more than the mean an endpoint may carry under"
    " `keepclose.dev/Balanced`, such as `0.2` or `20%`. A bound that is set holds always; the"
    " default of 20 % gives way where the endpoints cannot be divided within it.",
    well_known.OBJECTIVE_ANNOTATION: "What `keepclose.dev/Balanced` optimizes under the bound:"
    " `Score` (default), in-zone traffic and load as in KEP-2004, or `Locality`, in-zone traffic.",
    well_known.DEMAND_ANNOTATION: "`CPU`: the CPU of nodes decides the shares of this Service,"
    " whatever `--demand` measures; `Measured` (default): what was measured does.",
    well_known.MIN_IN_ZONE_ANNOTATION: "The least part of the traffic that"
    " `keepclose.dev/Balanced` keeps in its zone, such as `0.6` or `60%`, if need be beyond the"
    " default bound on overload, never beyond one that is set.",
    well_known.PADDING_ANNOTATION: "How many endpoints above that number the division begins, and"
    " below it ends, a whole number; overrides `--subsetting-padding`.",
    well_known.OVERLOAD_THRESHOLD_ANNOTATION: "The overload that no zone may reach, a number above"
    " 0 such as 0.5, with subsetting and `keepclose.dev/LocalShared`; overrides"
    " `--subsetting-overload-threshold`.",
    well_known.NODE_TOPOLOGY_ANNOTATION: "`Enabled`: node hints on top of zone hints; `Auto`: where"
    " one DaemonSet is on nearly every node; `Disabled`: never.",
    well_known.TRAFFIC_DISTRIBUTION_ANNOTATION: "Sets `spec.trafficDistribution` where an API"
    " server rejects the value; wins over the field.",
    well_known.INTERNAL_POLICY_ANNOTATION: "Sets `internalTrafficPolicy` likewise: `Cluster`,"
    " `Local` or `PreferLocal`.",
    well_known.EXTERNAL_POLICY_ANNOTATION: "Sets `externalTrafficPolicy` likewise.",
    well_known.ENDPOINT_WEIGHTS_ANNOTATION: "On a slice: weights of its endpoints, a JSON list of"
    " whole numbers in their order, the same for all clients. A node that follows"
    " `keepclose.dev/zone-weights` ignores it.",
    well_known.ZONE_WEIGHTS_ANNOTATION: "On one slice of a Service and address family:"
    ' `{"hints":0,"weights":{"zone-a":{"zone-a":10000,"zone-b":2500}}}`, by the zone of the client'
    " and the zone of the endpoint the weight of each endpoint, from 0 to 10000; `hints` is how"
    " many thousandths of the traffic follow the hints instead. The controller writes it; see"
    " [Balanced](../background/balanced.md).",
    well_known.WEIGHTS_ANNOTATION: "`Enabled`: the controller writes weights beside the hints of a"
    " heuristic such as `keepclose.dev/Balanced`, for proxies that follow them; `Disabled`: never."
    " The default is `Enabled` for heuristics that give weights by themselves, `Disabled` for"
    " Balanced. A webhook writes no weights.",
    f"{well_known.LINT_ANNOTATION_PREFIX}KCnnn": "On any object: suppresses the findings of that"
    " [rule of lint](lint.md) about it. The value is the reason.",
}

LIMITS_HEAD = (
    "Every part bounds the input that it accepts, and rejects the rest. Limits without an option"
    " cannot be\nchanged. What they defend against is in"
    " [the threat model](../background/security.md).\n"
)

LINT_HEAD = (
    "What [`keepclose lint`](../howto/lint.md) finds. Rules 1xx to 3xx and 5xx are about Services"
    " that prefer\ntheir zone or node, and about what these select.\n"
)


def pages() -> dict[str, str]:
    """Return the text of every page by its file name."""
    return {
        "cli.md": _commands(),
        "gates.md": _gates(),
        "annotations.md": _annotations(),
        "reasons.md": _reasons(),
        "conditions.md": f"# Conditions of a Service\n\n{WRITTEN}\n{describe_conditions()}",
        "events.md": f"# Events\n\n{WRITTEN}\n{describe_events()}",
        "limits.md": f"# Limits\n\n{WRITTEN}\n{LIMITS_HEAD}\n{describe_limits()}",
        "lint.md": f"# Rules of lint\n\n{WRITTEN}\n{LINT_HEAD}\n{describe_rules()}",
        "metrics.md": f"# Metrics\n\n{WRITTEN}\n{describe_metrics()}",
    }


def _commands() -> str:
    parts = ["# Commands\n", WRITTEN, f"```text\n{_help()}```\n"]
    parts += [f"## keepclose {' '.join(path)}\n\n```text\n{_help(*path)}```\n" for path in _paths()]
    codes = "\n".join(
        f"| {code.value} | {code.name.lower().replace('_', ' ')} |" for code in ExitCode
    )
    parts.append(f"## Exit codes\n\n| code | meaning |\n|---|---|\n{codes}\n")
    return "\n".join(parts)


def _paths() -> list[tuple[str, ...]]:
    """Return the words that call each command, groups before their commands."""
    paths: list[tuple[str, ...]] = [(_name(command),) for command in app.registered_commands]
    for group in app.registered_groups:
        inner = group.typer_instance
        name = str(group.name or (inner.info.name if inner is not None else ""))
        paths.append((name,))
        if inner is not None:
            paths += [(name, _name(command)) for command in inner.registered_commands]
    return paths


def _name(command: CommandInfo) -> str:
    return str(command.name or getattr(command.callback, "__name__", ""))


def _help(*command: str) -> str:
    result = CliRunner().invoke(app, [*command, "--help"], prog_name="keepclose", terminal_width=80)
    return result.stdout


def _gates() -> str:
    rows = "\n".join(
        f"| `{gate}` | {'on' if gate in ON_BY_DEFAULT else 'off'} | {GATES[gate]} |"
        for gate in Gate
    )
    pairs = "\n".join(f"- `{first}` and `{second}`" for first, second in EXCLUSIVE_PAIRS)
    return (
        f"# Feature gates\n\n{WRITTEN}\n`--feature-gates A=true,B=false`\n\n"
        f"| gate | default | what it switches |\n|---|---|---|\n{rows}\n\n"
        f"These exclude each other:\n\n{pairs}\n"
    )


def _annotations() -> str:
    rows = "\n".join(f"| `{key}` | {text} |" for key, text in ANNOTATIONS.items())
    return f"# Annotations\n\n{WRITTEN}\n| annotation | values |\n|---|---|\n{rows}\n"


def _reasons() -> str:
    codes = "\n".join(f"- `{code.value}`" for code in ReasonCode)
    return (
        f"# Reasons\n\n{WRITTEN}\n"
        "Every decision has reasons. A reason has a code from this closed list, a message, "
        "the object it is about, and the smallest fix. Conditions have [reasons of their own]"
        f"(conditions.md).\n\n{codes}\n"
    )


def main() -> int:
    """Write the pages, or with --check compare them; return 1 when one is out of date."""
    stale = []
    for name, text in pages().items():
        file = FOLDER / name
        if "--check" in sys.argv[1:]:
            if not file.exists() or file.read_text() != text:
                stale.append(name)
        else:
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text)
    for name in stale:
        sys.stdout.write(f"docs/reference/{name} is out of date: run make docs\n")
    return 1 if stale else 0


if __name__ == "__main__":
    sys.exit(main())
