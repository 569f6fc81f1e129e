"""`keepclose plan -o html`: one offline page with the figures of the other formats."""

from __future__ import annotations

import html
import re
from html.parser import HTMLParser
from pathlib import Path

import pytest

from keepclose.advise.planning.comparison import ScenarioComparison, ScenarioRow
from keepclose.advise.planning.service_plans import ClusterPlan, PlanTotals
from keepclose.cli.plan.markdown import write_plan_markdown
from keepclose.cli.plan.report import write_plan_report
from keepclose.cli.plan.table import print_plan
from keepclose.cli.render.screen import Screen
from keepclose.cli.render.zone_flows import ZoneFlow, draw_zone_flows
from support.plan_calls import FLOWS, SHOP, THREE_ZONES, plan_answer, run_plan, write_even_cluster

VOID = {"meta", "rect", "path", "br"}


class Page(HTMLParser):
    """The elements of a page; a wrong nesting fails."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self._open: list[str] = []
        self.feed(text)
        self.close()
        assert self._open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Note an element."""
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self._open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        """Check that the innermost element ends."""
        if tag in VOID:
            return
        assert self._open.pop() == tag


def page(*arguments: str) -> str:
    """Return the page."""
    result = run_plan(*arguments, "-o", "html")
    assert result.exit_code == 0, result.output
    return result.stdout


def test_the_page_has_the_figures_of_the_document() -> None:
    """Totals, and for each Service to change its advice and its command."""
    text = page("-f", THREE_ZONES)
    answer = plan_answer("-f", THREE_ZONES)
    Page(text)
    words = html.unescape(re.sub(r"<[^>]+>", " ", text))
    totals = answer["totals"]
    assert f"in zone now {100 * totals['inZone']:.0f} %" in " ".join(words.split())
    assert f"possible {100 * totals['possibleInZone']:.0f} %" in " ".join(words.split())
    for service in answer["services"]:
        assert f"{service['namespace']}/{service['name']}" in words
        assert service["command"] in words
        assert service["reason"] in words


def test_money_and_questions_are_on_the_page() -> None:
    """Costs appear where prices are known, and a scenario with its figures before and after."""
    text = page("-f", SHOP, "--flows", FLOWS, "--prices", "aws", "--lose", "us-east-1a")
    words = " ".join(html.unescape(re.sub(r"<[^>]+>", " ", text)).split())
    assert "costs now" in words
    assert "What if" in words
    assert "us-east-1a fails" in words
    assert "→" in words


@pytest.mark.parametrize("form", ["table", "markdown", "html"])
def test_sums_say_what_they_leave_out(form: str) -> None:
    """A cost without some of the Services is less than the whole, in every form."""
    totals = PlanTotals(3, 3, 1, 0.5, 1.0, "", cost=9.0, possible_cost=1.0, unpriced=1)
    plan = ClusterPlan("nodes", 1, ("zone-a",), totals, ())
    row = ScenarioRow("", (1, 1), (1, 1), (1, 1), (0, 0), (1, 1), (8.0, 9.0))
    scenario = ScenarioComparison(("a change",), row, ())
    if form == "html":
        text = write_plan_report(plan, scenario, source="", made="")
    elif form == "markdown":
        text = write_plan_markdown(plan, scenario)
        assert "in 1 zone on 1 node" in text
        assert "with 1 change\n" in text
    else:
        screen = Screen(width=80, force_terminal=False)
        with screen.capture() as captured:
            print_plan(screen, plan, scenario)
        text = captured.get()
    assert "1 Service without a price" in text
    assert re.search("8.00 (→|->) 9.00 a month", text)


def test_the_page_loads_nothing_and_runs_nothing(tmp_path: Path) -> None:
    """No script, no handler and no address outside the page."""
    for tag, attributes in Page(page("-f", write_even_cluster(tmp_path, services=3))).tags:
        assert tag not in {"script", "link", "img", "iframe", "object", "base", "form"}
        for name, value in attributes.items():
            assert not name.startswith("on")
            if name in {"href", "src"}:
                assert (value or "").startswith("#")


def test_texts_from_outside_are_escaped(tmp_path: Path) -> None:
    """A file whose name is markup or controls a terminal, and zones that are, are shown as text."""
    cluster = Path(write_even_cluster(tmp_path, services=2))
    named = cluster.rename(tmp_path / "<script>alert(1)<b onclick=x>\x1b[2J.yaml")
    text = page("-f", str(named))
    assert "&lt;script&gt;alert(1)" in text
    assert "\x1b" not in text
    tags = Page(text).tags
    assert not {"script", "b onclick"} & {tag for tag, _ in tags}
    assert not any("onclick" in attributes for _, attributes in tags)
    picture = draw_zone_flows([ZoneFlow('"><script>', "<b>&", 1.0)], title='"<i>')
    assert {tag for tag, _ in Page(picture).tags} == {"svg", "title", "text", "path", "rect"}


def test_a_band_is_as_thick_as_its_part() -> None:
    """Green bands stay in a zone, red ones leave it, and their thickness sums up to the column."""
    flows = [ZoneFlow("a", "a", 0.5), ZoneFlow("a", "b", 0.25), ZoneFlow("b", "b", 0.25)]
    picture = draw_zone_flows(flows, title="now")
    bands = re.findall(r'<path class="(p\d) band" d="[^"]*?v([\d.]+)C', picture)
    thick = {(kind, float(size)) for kind, size in bands}
    most = max(size for _, size in thick)
    assert sorted((kind, round(float(size) / most, 2)) for kind, size in bands) == [
        ("p0", 0.5),
        ("p0", 1.0),
        ("p2", 0.5),
    ]


def test_many_zones_are_summed_up() -> None:
    """Beyond a dozen zones the smallest are one, and what stays in its zone still says so."""
    flows = [ZoneFlow(f"z{n:02}", f"z{n:02}", 1.0 + n) for n in range(40)]
    flows.append(ZoneFlow("z00", "z01", 1.0))
    picture = draw_zone_flows(flows, title="now")
    assert picture.count('class="block"') <= 2 * 13
    assert "within other zones" in picture
    assert picture.count("p2 band") == 1


@pytest.mark.parametrize("flows", [[], [ZoneFlow("a", "b", 0.0)]])
def test_without_traffic_there_is_no_picture(flows: list[ZoneFlow]) -> None:
    """Nothing is drawn, and nothing is divided by zero."""
    assert draw_zone_flows(flows, title="now") == ""
