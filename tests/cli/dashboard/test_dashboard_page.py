"""The page of the dashboard in a real browser, over a real API server."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from support.browser import Browser, find_browser, open_browser
from support.dashboards import (
    SERVICE_PATH,
    SLICE_PATH,
    Dashboard,
    create_zones,
    served_dashboard,
    service_object,
    slice_object,
)

WEB = "#list li[data-key='default/web']"
EVIL = "<img src=x onerror=document.title='owned'>"


@pytest.fixture
async def shown(tmp_path: Path) -> AsyncIterator[Dashboard]:
    """Serve three zones with a Service that stays in them, and one that does not."""
    find_browser()
    async with served_dashboard(tmp_path / "api", allows_writes=True) as made:
        await made.api.create(SERVICE_PATH, service_object("cart"))
        zones = {"10.0.1.1": "zone-a!", "10.0.1.2": "zone-b!", "10.0.1.3": "zone-c!"}
        await made.api.create(SLICE_PATH, slice_object("cart-1", zones, of="cart"))
        yield made


@pytest.fixture
async def browser(shown: Dashboard, tmp_path: Path) -> AsyncIterator[Browser]:
    """Open the page, with both Services in it."""
    async with open_browser(tmp_path / "profile") as made:
        await made.resize(1280, 800)
        await made.open(shown.url)
        await made.until("document.querySelectorAll('#list li').length === 2")
        yield made
        assert made.errors == []
        hosts = {urlsplit(url).hostname for url in made.requests if not url.startswith("about:")}
        assert hosts <= {"127.0.0.1"}


async def choose(browser: Browser, name: str) -> None:
    """Click a Service, and wait for its page."""
    await browser.click(f"#list li[data-key='default/{name}']")
    await browser.until(
        f"document.querySelector('#page h2').textContent === 'default/{name}' "
        "&& document.querySelector('#page .figures')"
    )


async def what_if(browser: Browser, mechanism: str) -> None:
    """Choose a mechanism to preview, and wait for the answer."""
    await browser.run(
        "(() => { const choice = document.querySelector('#what-if'); "
        f"choice.value = '{mechanism}'; choice.dispatchEvent(new Event('change')); }})()"
    )
    await browser.until("document.querySelector('#preview p')")


async def test_a_click_on_a_service_shows_its_traffic(browser: Browser) -> None:
    """Arcs, figures, shares and reasons are those of the Service."""
    await choose(browser, "web")
    text = await browser.run("document.querySelector('#page').innerText")
    assert "PreferSameZone" in text
    assert "in zone" in text
    assert "spec.trafficDistribution: PreferSameZone governs" in text
    assert await browser.run("document.querySelectorAll('#arcs path.near:not(.tip)').length") == 3
    assert await browser.run("document.querySelectorAll('#zones .dot.near').length") == 3
    await choose(browser, "cart")
    assert await browser.run("document.querySelectorAll('#arcs path:not(.near)').length") == 12
    assert await browser.run("document.querySelectorAll('#zones .dot.far').length") == 3


async def test_the_token_leaves_the_address(browser: Browser, shown: Dashboard) -> None:
    """It is in no request's address, and not shown; a reload still works."""
    await choose(browser, "web")
    assert shown.token not in await browser.run("location.href")
    assert not any(shown.token in url.partition("#")[0] for url in browser.requests)
    await browser.call("Page.reload")
    await browser.until("document.querySelector('#page h2')?.textContent === 'default/web'")


async def test_a_preview_shows_what_would_be(browser: Browser, shown: Dashboard) -> None:
    """The arcs are those of the preview, and nothing is written."""
    before = await shown.api.get(f"{SERVICE_PATH}/cart")
    await choose(browser, "cart")
    await what_if(browser, "PreferSameZone")
    text = await browser.run("document.querySelector('#preview').innerText")
    assert "in zone 33 -> 100 %" in text
    assert "kubectl patch service -n default cart" in text
    assert await browser.run("document.querySelectorAll('#arcs.trial path:not(.near)').length") == 0
    assert "nothing is written" in await browser.run("document.querySelector('#map').innerText")
    assert await shown.api.get(f"{SERVICE_PATH}/cart") == before


async def test_a_change_is_applied_only_after_a_second_click(
    browser: Browser, shown: Dashboard
) -> None:
    """The first click asks, the second writes, and the list shows it."""
    await choose(browser, "cart")
    await what_if(browser, "PreferSameZone")
    await browser.click("#apply")
    await browser.until("document.querySelector('#apply').textContent.startsWith('Really')")
    assert "trafficDistribution" not in (await shown.api.get(f"{SERVICE_PATH}/cart"))["spec"]
    await browser.click("#apply")
    await browser.until(
        "document.querySelector(\"#list li[data-key='default/cart'] .badge\").textContent "
        "=== 'PreferSameZone'"
    )
    stored = await shown.api.get(f"{SERVICE_PATH}/cart")
    assert stored["spec"]["trafficDistribution"] == "PreferSameZone"


async def test_the_page_follows_the_cluster(browser: Browser, shown: Dashboard) -> None:
    """List, map and page change without a click when a slice does."""
    await choose(browser, "web")
    await shown.api.call(
        "PUT",
        f"{SLICE_PATH}/web-1",
        slice_object("web-1", {"10.0.0.1": "zone-a", "10.0.0.2": "zone-b"}),
    )
    await browser.until(f"document.querySelector(\"{WEB} .state\").textContent === 'falling back'")
    await browser.until("document.querySelectorAll('#arcs path:not(.near):not(.tip)').length === 2")
    await browser.until("document.querySelector('#page .state').textContent === 'falling back'")
    await shown.api.call("DELETE", f"{SERVICE_PATH}/web")
    await browser.until("document.querySelectorAll('#list li').length === 1")
    await browser.until("document.querySelector('#page').innerText.includes('no such Service')")


async def test_the_keyboard_reaches_everything(browser: Browser) -> None:
    """A slash finds, arrows choose, Enter opens a node."""
    await browser.press("/")
    assert await browser.run("document.activeElement.id") == "filter"
    await browser.call("Input.insertText", text="web")
    await browser.until("document.querySelectorAll('#list li:not([hidden])').length === 1")
    await browser.press("ArrowDown")
    await browser.until("document.querySelector('#page h2')?.textContent === 'default/web'")
    await browser.run(
        "(() => { const f = document.querySelector('#filter'); f.value = ''; "
        "f.dispatchEvent(new Event('input')); })()"
    )
    await browser.press("Home")
    await browser.until("document.querySelector('#page h2').textContent === 'default/cart'")
    await browser.press("ArrowDown")
    await browser.until("document.querySelector('#page h2').textContent === 'default/web'")
    await browser.until("document.querySelector('#page .figures')")
    await browser.run("document.querySelector('.node').focus()")
    await browser.press("Enter")
    await browser.until(
        "document.querySelector('#node').innerText.includes('sends to zone-a 100 %')"
    )
    assert await browser.run("document.querySelector('.node').getAttribute('aria-pressed')") == (
        "true"
    )


async def test_every_control_has_a_name(browser: Browser) -> None:
    """As the browser's own accessibility tree says it, which screen readers read."""
    await choose(browser, "cart")
    await what_if(browser, "PreferSameZone")
    await browser.call("Accessibility.enable")
    tree = await browser.call("Accessibility.getFullAXTree")
    wanted = {"button", "combobox", "searchbox", "listbox", "option", "radio", "link"}
    nodes = [
        (each["role"]["value"], each.get("name", {}).get("value", ""))
        for each in tree["nodes"]
        if not each.get("ignored") and each["role"]["value"] in wanted
    ]
    assert {role for role, _ in nodes} >= {"button", "combobox", "searchbox", "listbox", "option"}
    assert [role for role, name in nodes if not name] == []
    names = [name for _, name in nodes]
    assert "node zone-a-1, 1 endpoint" in names
    assert "default/web, PreferSameZone, in zone, 100 % in zone, 3 of 3 endpoints ready" in names


async def test_names_that_are_markup_are_text(browser: Browser, shown: Dashboard) -> None:
    """A message and a zone of an attacker run nothing and make no element."""
    hostile = slice_object("web-2", {"10.0.9.9": "zone-a"})
    (endpoint,) = hostile["endpoints"]
    endpoint["zone"] = EVIL
    endpoint["hints"]["forZones"] = [{"name": "zone-a"}]
    await shown.api.call("POST", SLICE_PATH, hostile)
    event = {
        "metadata": {"name": "evil", "namespace": "default"},
        "involvedObject": {"kind": "Service", "namespace": "default", "name": "web"},
        "reason": EVIL,
        "message": EVIL,
        "type": "Warning",
        "source": {"component": "test"},
    }
    await shown.api.create("/api/v1/namespaces/default/events", event)
    await choose(browser, "web")
    await browser.until("document.querySelector('#event-list').innerText.includes('<img')")
    assert await browser.run("document.querySelectorAll('img').length") == 0
    assert "owned" not in await browser.run("document.title")


async def test_scripts_of_others_are_refused(browser: Browser) -> None:
    """Even markup that a flaw let through could run nothing."""
    refused = await browser.run(
        "(() => { try { document.body.innerHTML = '<b>x</b>'; return ''; } "
        "catch (error) { return error.name; } })()"
    )
    assert refused == "TypeError"
    refused = await browser.run(
        "(() => { try { document.createElement('img').setAttribute('onerror', 'x()'); return ''; } "
        "catch (error) { return error.name; } })()"
    )
    assert refused == "TypeError"
    refused = await browser.run(
        "fetch('http://localhost:1/').then(() => '', (error) => error.name)"
    )
    assert refused == "TypeError"
    # The last one never left: the policy of the page forbids it.
    assert any("Content Security Policy" in error for error in browser.errors)
    browser.errors.clear()


async def test_a_phone_shows_all_without_scrolling_sideways(browser: Browser) -> None:
    """List, map and page are below each other, and no wider than the phone."""
    await browser.resize(360, 740, is_phone=True)
    await choose(browser, "cart")
    await what_if(browser, "PreferSameZone")
    assert await browser.run("document.documentElement.scrollWidth") <= 360
    left = await browser.run(
        "['#services', '#map', '#page'].map((id) => "
        "Math.round(document.querySelector(id).getBoundingClientRect().left))"
    )
    assert left == [0, 0, 0]


async def test_many_zones_scroll_inside_the_map(browser: Browser, shown: Dashboard) -> None:
    """The page itself stays as wide as the phone."""
    await create_zones(shown.api, tuple(f"zone-{letter}" for letter in "defghi"))
    await browser.resize(360, 740, is_phone=True)
    await browser.until("document.querySelectorAll('.zone').length === 9")
    assert await browser.run("document.documentElement.scrollWidth") <= 360
    assert await browser.run("document.querySelector('#canvas').scrollWidth") > 700


@pytest.mark.parametrize("scheme", ["light", "dark"])
async def test_both_styles_can_be_read(browser: Browser, scheme: str) -> None:
    """Text has a contrast of 4.5 at least, and shapes besides colour one of 3."""
    await browser.emulate(prefers_color_scheme=scheme, prefers_reduced_motion="reduce")
    await choose(browser, "cart")
    ratios = await browser.run(
        "(() => { const light = (c) => { const v = c.match(/[\\d.]+/g).slice(0, 3).map((n) => "
        "{ n /= 255; return n <= 0.03928 ? n / 12.92 : ((n + 0.055) / 1.055) ** 2.4; }); "
        "return 0.2126 * v[0] + 0.7152 * v[1] + 0.0722 * v[2]; }; "
        "const paper = light(getComputedStyle(document.body).backgroundColor); "
        "const ratio = (s, what) => { const l = light(getComputedStyle(document.querySelector(s))"
        "[what]); return (Math.max(l, paper) + 0.05) / (Math.min(l, paper) + 0.05); }; "
        "return [ratio('body', 'color'), ratio('.dim', 'color'), ratio('.dot.far', "
        "'backgroundColor'), ratio('#legend .dot.near', 'backgroundColor')]; })()"
    )
    assert min(ratios[:2]) >= 4.5
    assert min(ratios[2:]) >= 3
    assert await browser.run(
        "getComputedStyle(document.querySelector('#arcs path')).transitionDuration"
    ) in ("0s", "")


async def test_a_dashboard_that_ends_is_not_called_live(shown: Dashboard, tmp_path: Path) -> None:
    """A wrong token, as of an earlier run, is said in words."""
    async with open_browser(tmp_path / "other") as browser:
        await browser.open(f"{shown.root}/#token=wrong")
        await browser.until(
            "document.querySelector('#status').textContent.includes('token is not that of')"
        )
        await browser.open(f"{shown.root}/?again")
        await browser.run("sessionStorage.clear()")
        await browser.call("Page.reload")
        await browser.until(
            "document.querySelector('#status').textContent.includes('URL has no token')"
        )
