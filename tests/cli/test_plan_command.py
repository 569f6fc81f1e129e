"""`keepclose plan`: totals, the ranked Services, one Service in full, questions "what if"."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from keepclose.cli.exit import ExitCode
from support.plan_calls import FLOWS, SHOP, THREE_ZONES, plan_answer, run_plan, write_even_cluster

WIDTH, HEIGHT = 80, 25


def test_the_summary_fits_a_screen(tmp_path: Path) -> None:
    """Also with many Services of long names; commands alone may be longer, to be copied."""
    cluster = write_even_cluster(
        tmp_path, services=60, name="a-rather-long-name-of-a-service-in-a-cluster"
    )
    result = run_plan("-f", cluster)
    assert result.exit_code == 0, result.output
    lines = result.stdout.splitlines()
    assert len(lines) <= HEIGHT
    assert all(len(line) <= WIDTH for line in lines if not line.startswith("kubectl "))
    assert "and 53 more, with --top or -o json" in result.stdout
    assert "and 59 more: -o markdown has all" in result.stdout
    assert "33 % now, 100 % possible with 60 changes" in result.stdout


def test_what_is_advised_comes_with_its_command(tmp_path: Path) -> None:
    """The command stands alone on its line, whole."""
    result = run_plan("-f", write_even_cluster(tmp_path, services=1))
    patch = '{"spec":{"trafficDistribution":"PreferSameZone"}}'
    assert f"kubectl patch service -n shop web-0 -p '{patch}'" in result.stdout.splitlines()
    assert "leave" not in result.stdout


def test_services_are_left_with_the_reason() -> None:
    """Where nothing helps the summary says so, and why."""
    result = run_plan("-f", THREE_ZONES)
    assert "1 all traffic stays in its zone already (kube-system/dns)" in result.stdout
    assert "PreferSameZone would keep 100 % in its zone, but the busiest" in result.stdout


def test_one_service_is_shown_in_full(tmp_path: Path) -> None:
    """Each mechanism has a row, the advice its reason, its price and its effect."""
    result = run_plan("-f", write_even_cluster(tmp_path, services=2), "--service", "shop/web-1")
    lines = [line.rstrip() for line in result.stdout.splitlines()]
    assert lines[0] == "shop/web-1  none  3 ready endpoints, 3 zones"
    rows = {line[2:18].strip(): line for line in lines if "%" in line and line[:2] in ("  ", "* ")}
    assert {"as is (none)", "PreferSameZone", "PreferSameNode", "Auto", "Balanced"} <= {*rows}
    assert rows["PreferSameZone"].startswith("* ")
    assert "price: 1 slice write, 3 endpoints with other hints" in lines
    assert "then  in zone 33 -> 100 %, busiest 1.00x" in lines
    assert "web-0" not in result.stdout


def test_formats_hold_the_same_answer(tmp_path: Path) -> None:
    """YAML is the JSON; Markdown has the totals, the commands and the rows."""
    cluster = write_even_cluster(tmp_path, services=2)
    answer = plan_answer("-f", cluster)
    assert yaml.safe_load(run_plan("-f", cluster, "-o", "yaml").stdout) == answer
    assert answer["totals"]["advised"] == 2
    assert answer["totals"]["inZone"] == pytest.approx(1 / 3, abs=1e-6)
    service = answer["services"][0]
    assert service["recommended"] == "PreferSameZone"
    assert service["gain"] == pytest.approx(2 / 3, abs=1e-6)
    assert service["mechanisms"][0]["mechanism"] == "as is"
    markdown = run_plan("-f", cluster, "-o", "markdown").stdout
    assert "- In zone: 33 % now, 100 % possible with 2 changes" in markdown
    assert all(each["command"] in markdown for each in answer["services"])
    assert "| **PreferSameZone** | 100 % | 1.00x |" in markdown


def test_money_and_demand_come_from_flows() -> None:
    """The modelled cost is about that of `keepclose cost`, and Balanced by demand is tried."""
    answer = plan_answer("-f", SHOP, "--flows", FLOWS, "--prices", "aws")
    assert answer["totals"]["currency"] == "USD"
    assert answer["totals"]["cost"] == pytest.approx(73.12, rel=0.01)
    cart = next(each for each in answer["services"] if each["name"] == "cart")
    figures = {each["mechanism"]: each for each in cart["mechanisms"]}
    assert figures["Balanced by demand"]["busiest"] < figures["Balanced"]["busiest"]
    assert answer["clients"].startswith("as flows say")
    assert "Balanced by demand" in cart["also"]


def test_money_at_an_assumed_rate(tmp_path: Path) -> None:
    """Two thirds of 9 TB cross zones at 0.02 USD a GB; PreferSameZone saves all of it."""
    cluster = write_even_cluster(tmp_path, services=3)
    answer = plan_answer("-f", cluster, "--rate", "9TB", "--prices", "aws")
    assert answer["totals"]["cost"] == pytest.approx(6_000 * 0.02)
    assert answer["totals"]["possibleCost"] == pytest.approx(0)
    table = run_plan("-f", cluster, "--rate", "9TB", "--prices", "aws").stdout
    assert "120.00 USD a month now, 0.00 possible: 120.00 saved" in table


@pytest.mark.parametrize(
    ("arguments", "changes", "ready", "in_zone"),
    [
        (["--set", "shop/web-0=PreferSameZone"], "shop/web-0 has PreferSameZone", [3, 3], 1.0),
        (["--replicas", "shop/web-0=6"], "shop/web-0 has 6 pods, spread over zones", [3, 6], 1 / 3),
        (["--lose", "zone-c"], "zone zone-c fails", [3, 2], 1 / 2),
        (["--add-zone", "zone-d=3"], "zone zone-d with 3 nodes is added", [3, 3], 1 / 6),
    ],
)
def test_what_if(
    tmp_path: Path, arguments: list[str], changes: str, ready: list[int], in_zone: float
) -> None:
    """Each question shows the figures before and after, and plans what is after."""
    cluster = write_even_cluster(tmp_path, services=1)
    answer = plan_answer("-f", cluster, *arguments)
    scenario = answer["scenario"]
    assert scenario["changes"] == [changes]
    assert scenario["totals"]["ready"] == ready
    assert scenario["totals"]["inZone"] == pytest.approx([1 / 3, in_zone], abs=1e-6)
    assert answer["services"][0]["mechanisms"][0]["inZone"] == pytest.approx(in_zone, abs=1e-6)
    table = run_plan("-f", cluster, *arguments).stdout
    assert f"what if: {changes}" in table
    assert all(len(line) <= WIDTH for line in table.splitlines() if not line.startswith("kubectl"))


def test_gates_that_a_question_switches_on_are_named(tmp_path: Path) -> None:
    """They hold for all Services, so the change says which they are."""
    answer = plan_answer(
        "-f", write_even_cluster(tmp_path, services=1), "--set", "shop/web-0=Balanced"
    )
    assert answer["scenario"]["changes"] == [
        "shop/web-0 has Balanced with --feature-gates TrafficDistributionCustomHeuristics=true"
    ]
    assert answer["services"][0]["governs"] == "keepclose.dev/Balanced"


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["--service", "shop/none"], ExitCode.NOTHING, "no Service shop/none"),
        (["--drain", "n9"], ExitCode.NOTHING, "--drain n9: no Node n9"),
        (["--lose", "zone-z"], ExitCode.NOTHING, "zones: zone-a, zone-b, zone-c"),
        (["--set", "shop/web=Near"], ExitCode.BAD_INPUT, "known: none, PreferSameZone"),
        (["--set", "shop/web"], ExitCode.BAD_INPUT, "it must be [NAMESPACE/]NAME=VALUE"),
        (["--set", "shop/wab=none"], ExitCode.NOTHING, "did you mean shop/web?"),
        (["--replicas", "shop/web=-1"], ExitCode.BAD_INPUT, "'-1' is no number"),
        (["--add-zone", "z=0"], ExitCode.BAD_INPUT, "0 is no number of nodes"),
        (["--clients", "somewhere"], ExitCode.BAD_INPUT, "none of flows, pods, nodes, cpu"),
        (["--clients", "shop/none"], ExitCode.NOTHING, "no pod of shop/none runs"),
        (["--clients", "flows"], ExitCode.BAD_INPUT, "name the flows with --flows FILE"),
        (["--prices", "aws"], ExitCode.BAD_INPUT, "nothing says how much traffic there is"),
        (["--rate", "many"], ExitCode.BAD_INPUT, "write it as 500GB or 10TB"),
    ],
)
def test_errors_name_the_option_and_the_fix(
    arguments: list[str], code: ExitCode, message: str
) -> None:
    """What does not fit ends the command with what to do."""
    result = run_plan("-f", THREE_ZONES, *arguments)
    assert result.exit_code == code, result.output
    assert message in result.output


def test_names_cannot_control_the_terminal_or_the_document(tmp_path: Path) -> None:
    """A zone with escape sequences and markup is shown plain in every format."""
    cluster = Path(write_even_cluster(tmp_path, services=1))
    text = cluster.read_text().replace("zone-c", '"\\x1b[2J`|[x](y)"')
    cluster.write_text(text)
    for form in ("table", "markdown", "json", "yaml"):
        for more in ((), ("--service", "shop/web-0")):
            result = run_plan("-f", str(cluster), "-o", form, *more)
            assert "\x1b" not in result.stdout
