"""Every rule finds what breaks it, and nothing in what does not."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from keepclose.advise.linting.context import LintLimits
from keepclose.advise.linting.findings import LintFinding, Severity
from keepclose.advise.linting.linter import LintReport, lint_objects
from keepclose.advise.linting.rules import RULES
from keepclose.cli.lint.sources import LintSource, read_files
from keepclose.model.gates import FeatureGates, Gate
from keepclose.slices.settings import PlannerSettings
from support.lint_cases import (
    AUTO,
    CASES,
    GONE,
    Change,
    autoscaler,
    daemon_set,
    manifests,
    node,
    pod,
    to_yaml,
)

SPREAD = "spec/template/spec/topologySpreadConstraints"
LIMITED = ("KC501", "KC502", "KC503")
NO_LIMITS = LintLimits()
SETTINGS = PlannerSettings(gates=FeatureGates())


def read(tmp_path: Path, *changes: Change) -> LintSource:
    """Return the objects of a file with the changed manifests."""
    file = tmp_path / "manifests.yaml"
    file.write_text(to_yaml(manifests(*changes)))
    return read_files([str(file)], "")


def lint(
    tmp_path: Path, *changes: Change, limits: LintLimits = NO_LIMITS, rule: str = ""
) -> LintReport:
    """Return the report about the changed manifests, by one rule or all of them."""
    return lint_objects(
        read(tmp_path, *changes).objects,
        settings=SETTINGS,
        limits=limits,
        only={rule} if rule else (),
    )


def found(report: LintReport, rule: str) -> list[LintFinding]:
    """Return the findings of one rule."""
    return [finding for finding in report.findings if finding.rule == rule]


def test_the_manifests_that_cases_change_have_no_findings(tmp_path: Path) -> None:
    """What a case finds comes from its change."""
    report = lint(tmp_path)
    assert report.findings == ()
    (kept,) = report.promises
    assert kept.rollouts is not None
    assert kept.drains is not None
    assert (kept.rollouts.percent, kept.drains.percent) == (100, 100)


def test_every_rule_has_a_case() -> None:
    """Limits of the command line have tests of their own below."""
    assert set(CASES) | set(LIMITED) == set(RULES)


@pytest.mark.parametrize("rule", CASES)
def test_a_broken_rule_is_found(rule: str, tmp_path: Path) -> None:
    """The finding has the severity of its rule, and its field exists or has a line near it."""
    bad, _ = CASES[rule]
    source = read(tmp_path, *bad)
    report = lint_objects(source.objects, settings=SETTINGS, only={rule})
    assert report.findings
    for finding in report.findings:
        assert finding.rule == rule
        assert finding.severity is RULES[rule].severity
        assert finding.message
        place = source.place_of(finding)
        assert place is not None
        assert place.line is not None


@pytest.mark.parametrize("rule", CASES)
def test_what_keeps_a_rule_is_not_found(rule: str, tmp_path: Path) -> None:
    """A similar change that is right gives no finding of the rule."""
    _, good = CASES[rule]
    assert lint(tmp_path, *good, rule=rule).findings == ()


@pytest.mark.parametrize(
    ("rule", "changes", "want_line"),
    [
        pytest.param(
            "KC001",
            [("service", "spec/trafficDistribution", "PreferZone")],
            "  trafficDistribution: PreferZone",
            id="a value has the line of its field",
        ),
        pytest.param(
            "KC204",
            CASES["KC204"][0],
            "        labelSelector:",
            id="a constraint has the line of its selector",
        ),
        pytest.param(
            "KC205",
            CASES["KC205"][0],
            "      - maxSkew: 1",
            id="a field that is missing has the line of what it would be in",
        ),
    ],
)
def test_findings_have_the_line_of_their_field(
    rule: str, changes: list[Change], want_line: str, tmp_path: Path
) -> None:
    """The line is that of the field in the file, or of the nearest field around it."""
    source = read(tmp_path, *changes)
    (finding,) = lint_objects(source.objects, settings=SETTINGS, only={rule}).findings
    place = source.place_of(finding)
    assert place is not None
    assert place.line is not None
    assert Path(place.file).read_text().splitlines()[place.line - 1] == want_line


def test_replicas_that_lose_hints_are_those_of_the_proposal(tmp_path: Path) -> None:
    """KEP-2433 on three equal zones: no hints with 1, 2, 4, 5, 8 and 11 endpoints."""
    lost = [
        replicas
        for replicas in range(1, 15)
        if lint(tmp_path, *AUTO, ("deployment", "spec/replicas", replicas), rule="KC101").findings
    ]
    assert lost == [1, 2, 4, 5, 8, 11]
    (advice,) = lint(tmp_path, *AUTO, rule="KC101").advice
    assert advice.without_hints == (1, 2, 4, 5, 8, 11)


def test_replicas_for_two_and_four_zones_are_computed(tmp_path: Path) -> None:
    """The counts follow the number of zones."""
    objects = read(tmp_path, *AUTO, ("deployment", "spec/replicas", 8)).objects
    for zones, want in ((2, (1, 3, 5)), (4, (1, 2, 3, 5, 6, 7, 10, 11, 15))):
        (advice,) = lint_objects(objects, settings=SETTINGS, assumed_zones=zones).advice
        assert advice.without_hints == want


@pytest.mark.parametrize(
    ("most", "want"),
    [
        pytest.param(12, "set minReplicas to 12 or more, or use PreferSameZone", id="within"),
        pytest.param(11, "use PreferSameZone: no minReplicas", id="the largest loses them too"),
    ],
)
def test_an_autoscaler_is_told_numbers_that_it_may_have(
    most: int, want: str, tmp_path: Path
) -> None:
    """KEP-2433 on three equal zones: 11 endpoints get no hints, 12 do."""
    (finding,) = lint(
        tmp_path, *AUTO, ("autoscaler", "", autoscaler(9, most)), rule="KC105"
    ).findings
    assert finding.fix.startswith(want)


def test_a_policy_without_effect_does_not_count(tmp_path: Path) -> None:
    """Local is found by the rule of the proxy, which a gate switches off."""
    objects = read(tmp_path, ("service", "spec/internalTrafficPolicy", "Local")).objects
    without = FeatureGates().without(Gate.SERVICE_INTERNAL_TRAFFIC_POLICY)
    for gates, want in ((FeatureGates(), 1), (without, 0)):
        report = lint_objects(objects, settings=PlannerSettings(gates=gates), only={"KC008"})
        assert len(report.findings) == want


def test_zones_of_given_nodes_decide(tmp_path: Path) -> None:
    """With Nodes in the files nothing is assumed: zones of unequal CPU lose hints elsewhere."""
    nodes: list[Change] = [
        ("node-1", "", node("n1", "zone-a")),
        ("node-2", "", node("n2", "zone-a")),
        ("node-3", "", node("n3", "zone-b")),
    ]
    report = lint(tmp_path, *nodes, *AUTO, ("deployment", "spec/replicas", 4))
    assert report.basis == "on the 3 given nodes"
    (advice,) = report.advice
    # 2/3 and 1/3 of the CPU: with 4 endpoints 2.22 and 1.11 are rounded up to 3 and 2.
    assert 4 in advice.without_hints
    assert found(report, "KC101")


def test_a_limit_on_traffic_in_zone(tmp_path: Path) -> None:
    """Two replicas on three zones keep two thirds of the traffic in its zone."""
    few: Change = ("deployment", "spec/replicas", 2)
    (finding,) = lint(tmp_path, few, limits=LintLimits(min_in_zone=0.7), rule="KC501").findings
    assert finding.message.startswith("67 % of the traffic stays in its zone, less than 70 %")
    assert lint(tmp_path, few, limits=LintLimits(min_in_zone=0.66), rule="KC501").findings == ()
    assert lint(tmp_path, limits=LintLimits(min_in_zone=1.0), rule="KC501").findings == ()


def test_a_limit_on_load(tmp_path: Path) -> None:
    """Of 2, 1 and 1 replicas in three zones each single one carries a third: 1.33 of the mean."""
    four: Change = ("deployment", "spec/replicas", 4)
    (finding,) = lint(tmp_path, four, limits=LintLimits(max_load=1.3), rule="KC502").findings
    assert "carries 1.33x the mean, more than 1.3x" in finding.message
    assert finding.fix.startswith("run 6, 7, 9 or 10 replicas")
    assert lint(tmp_path, four, limits=LintLimits(max_load=1.34), rule="KC502").findings == ()


def test_a_limit_on_ready_endpoints(tmp_path: Path) -> None:
    """Six replicas on three zones are two in each."""
    six: Change = ("deployment", "spec/replicas", 6)
    (finding,) = lint(tmp_path, six, limits=LintLimits(min_ready_per_zone=3), rule="KC503").findings
    assert "fewer than 3 endpoints: zone-a 2, zone-b 2, zone-c 2" in finding.message
    assert finding.fix == "run at least 9 replicas, evenly spread"
    assert lint(tmp_path, six, limits=LintLimits(min_ready_per_zone=2), rule="KC503").findings == ()


def test_given_pods_count_as_they_are(tmp_path: Path) -> None:
    """A limit is judged on pods where there are any, not on what a scheduler might do."""
    nodes: list[Change] = [
        ("node-1", "", node("n1", "zone-a")),
        ("node-2", "", node("n2", "zone-b")),
    ]
    report = lint(
        tmp_path, *nodes, ("pod", "", pod("p1", "n1")), limits=LintLimits(min_in_zone=0.9)
    )
    (finding,) = found(report, "KC501")
    assert finding.message.startswith("50 % of the traffic stays in its zone")
    assert finding.message.endswith("with the given pods")


def test_ready_pods_without_a_workload_are_counted(tmp_path: Path) -> None:
    """A dump without Deployments shows that topology mode Auto gives no hints now."""
    nodes: list[Change] = [
        (f"node-{zone}", "", node(f"n{zone}", f"zone-{zone}")) for zone in ("a", "b", "c")
    ]
    pods: list[Change] = [
        (f"pod-{number}", "", pod(f"p{number}", f"n{'abc'[number % 3]}")) for number in range(5)
    ]
    gone: Change = ("deployment", "", GONE)
    (finding,) = lint(tmp_path, gone, *nodes, *pods, *AUTO, rule="KC101").findings
    assert finding.subject.kind == "Service"
    assert finding.fix == "run 3, 6 or 7 ready pods"
    assert lint(tmp_path, gone, *nodes, *pods[:3], *AUTO, rule="KC101").findings == ()


def test_a_daemon_set_needs_no_spread_and_no_budget(tmp_path: Path) -> None:
    """Its pods are where its nodes are, and a drain does not evict them."""
    changes: list[Change] = [("deployment", "", GONE), ("daemonset", "", daemon_set())]
    report = lint(tmp_path, *changes, ("service", "spec/trafficDistribution", "PreferSameNode"))
    assert report.findings == ()


def test_a_daemon_set_may_empty_a_small_zone(tmp_path: Path) -> None:
    """One pod may be unavailable, and a zone has one."""
    changes: list[Change] = [
        ("deployment", "", GONE),
        ("daemonset", "", daemon_set()),
        ("node-1", "", node("n1", "zone-a")),
        ("node-2", "", node("n2", "zone-a")),
        ("node-3", "", node("n3", "zone-b")),
    ]
    (finding,) = lint(tmp_path, *changes, rule="KC301").findings
    assert "1 pods may be unavailable, and the smallest zone has 1" in finding.message
    wide: Change = ("node-4", "", node("n4", "zone-b"))
    assert lint(tmp_path, *changes, wide, rule="KC301").findings == ()


def test_a_stateful_set_replaces_the_only_pod_of_a_zone(tmp_path: Path) -> None:
    """Pod by pod, without a surplus; two in each zone are enough."""
    deployment = manifests()["deployment"]
    spec = {key: value for key, value in deployment["spec"].items() if key != "strategy"}
    stateful = {**deployment, "kind": "StatefulSet", "spec": {**spec, "replicas": 3}}
    changes: list[Change] = [("deployment", "", GONE), ("stateful", "", stateful)]
    assert lint(tmp_path, *changes, rule="KC301").findings
    assert lint(tmp_path, *changes, ("stateful", "spec/replicas", 6), rule="KC301").findings == ()


def of_zone(zone: str, *, by_affinity: bool = False) -> dict[str, Any]:
    """Return a Deployment that runs in one zone."""
    deployment = manifests(("deployment", "metadata/name", f"web-{zone}"))["deployment"]
    spec = deployment["spec"]["template"]["spec"]
    del spec["topologySpreadConstraints"]
    if by_affinity:
        zones = {"key": "topology.kubernetes.io/zone", "operator": "In", "values": [zone]}
        term = {"nodeSelectorTerms": [{"matchExpressions": [zones]}]}
        required = {"requiredDuringSchedulingIgnoredDuringExecution": term}
        spec["affinity"] = {"nodeAffinity": required}
    else:
        spec["nodeSelector"] = {"topology.kubernetes.io/zone": zone, "disk": "fast"}
    return deployment


def test_a_deployment_for_each_zone_needs_no_spread(tmp_path: Path) -> None:
    """Their zones are the assumed ones, and each has the pods of its own."""
    changes: list[Change] = [
        ("deployment", "", GONE),
        ("a", "", of_zone("eu-1a")),
        ("b", "", of_zone("eu-1b", by_affinity=True)),
        ("c", "", of_zone("eu-1c")),
        ("autoscaler", "", autoscaler(2, 9)),
        ("autoscaler", "spec/scaleTargetRef/name", "web-eu-1c"),
        ("autoscaler", "spec/minReplicas", 9),
    ]
    report = lint(tmp_path, *changes, limits=LintLimits(min_in_zone=1.0, min_ready_per_zone=9))
    assert report.findings == ()
    lonely: list[Change] = [("b", "", GONE), ("autoscaler", "spec/minReplicas", 2)]
    report = lint(tmp_path, *changes, *lonely, limits=LintLimits(min_in_zone=1.0))
    assert [finding.rule for finding in report.findings] == ["KC501"]


def test_two_budgets_block_every_eviction(tmp_path: Path) -> None:
    """The API server refuses to evict a pod that several budgets cover."""
    second = manifests()["budget"]
    second["metadata"]["name"] = "web-2"
    findings = lint(tmp_path, ("second", "", second), rule="KC304").findings
    assert [finding.subject.name for finding in findings] == ["web", "web-2"]
    assert "2 budgets cover the pods of Deployment shop/web" in findings[0].message


def test_a_budget_without_numbers_blocks(tmp_path: Path) -> None:
    """The API server accepts it, and the disruption controller permits no eviction."""
    (finding,) = lint(tmp_path, ("budget", "spec", {"selector": {}}), rule="KC304").findings
    assert "permits no eviction" in finding.message


def test_the_fix_of_a_rollout_is_not_what_it_does_already(tmp_path: Path) -> None:
    """Pod by pod is as slow as it gets; then only more replicas help."""
    three: Change = ("deployment", "spec/replicas", 3)
    (slow,) = lint(tmp_path, three, rule="KC301").findings
    assert slow.fix == "run more replicas for each zone"
    default: Change = ("deployment", "spec/strategy", {"type": "RollingUpdate"})
    (quick,) = lint(tmp_path, three, default, rule="KC301").findings
    assert quick.fix == slow.fix
    faster = {"type": "RollingUpdate", "rollingUpdate": {"maxUnavailable": 1, "maxSurge": 1}}
    (fastest,) = lint(
        tmp_path, three, ("deployment", "spec/strategy", faster), rule="KC301"
    ).findings
    assert fastest.fix.startswith("set maxUnavailable: 0 and maxSurge: 1")


def test_drains_wait_for_budgets(tmp_path: Path) -> None:
    """Two pods of a zone on one node are evicted together without a budget, one by one with one."""
    crowded: Change = ("deployment", f"{SPREAD}/1", GONE)
    six: Change = ("deployment", "spec/replicas", 6)
    without = lint(tmp_path, crowded, six, ("budget", "", GONE), rule="KC302")
    assert without.findings
    assert lint(tmp_path, crowded, six, rule="KC302").findings == ()


def test_a_suppression_needs_a_reason(tmp_path: Path) -> None:
    """With one the finding is counted apart; without one it stays, and so does its rule's name."""
    few: Change = ("deployment", "spec/replicas", 2)
    reason: Change = (
        "deployment",
        "metadata/annotations",
        {"lint.keepclose.dev/KC103": "a test cluster", "lint.keepclose.dev/KC999": "typo"},
    )
    report = lint(tmp_path, few, reason)
    assert found(report, "KC103") == []
    (suppressed,) = report.suppressed
    assert (suppressed.finding.rule, suppressed.reason) == ("KC103", "a test cluster")
    (bad,) = found(report, "KC901")
    assert bad.message == "there is no rule KC999"
    empty: Change = ("deployment", "metadata/annotations", {"lint.keepclose.dev/KC103": ""})
    report = lint(tmp_path, few, empty)
    assert found(report, "KC103")
    assert found(report, "KC901")
    assert report.suppressed == ()


def test_only_and_skip_choose_rules(tmp_path: Path) -> None:
    """--rule names the only rules, --skip takes rules away."""
    affinity: Change = ("service", "spec/sessionAffinity", "ClientIP")
    objects = read(tmp_path, affinity, ("deployment", "spec/replicas", 2)).objects
    every = {each.rule for each in lint_objects(objects, settings=SETTINGS).findings}
    assert "KC103" in every
    assert len(every) > 1
    only = lint_objects(objects, settings=SETTINGS, only={"KC103"})
    assert {each.rule for each in only.findings} == {"KC103"}
    skipped = lint_objects(objects, settings=SETTINGS, skip={"KC103"})
    assert {each.rule for each in skipped.findings} == every - {"KC103"}


def test_errors_come_first(tmp_path: Path) -> None:
    """A reader sees what must be fixed before what may be."""
    report = lint(
        tmp_path,
        ("service", "spec/sessionAffinity", "ClientIP"),
        ("service", "spec/ports/0/targetPort", "htpp"),
        ("service", "spec/trafficDistribution", "PreferClose"),
    )
    assert [each.severity for each in report.findings] == [
        Severity.ERROR,
        Severity.WARNING,
        Severity.INFO,
    ]
