"""The look of pages: they fit a narrow screen, have readable colours, one switch for times, and keep wrong forms."""

from __future__ import annotations

import re
from urllib.parse import urlencode

import pytest
from playwright.sync_api import Browser, expect

from korvet.cli.console.app import STATIC
from tests.console.conftest import WITHIN_MS, redis_url, running_console
from tests.console.test_login import ask
from tests.console.test_pages import committed, topic_with, unique
from tests.support.broker import KorvetServer

NARROW = 390
WCAG_AA = 4.5


def test_no_page_is_wider_than_a_phone(broker: KorvetServer, browser: Browser) -> None:
    name, group = topic_with(broker, [b"a" * 500], key=b"k" * 100), unique("g" * 200)
    committed(broker, group, name, 0)
    paths = ["", "topics", "groups", "transactions", "security", "lake", "tenants", "redis", "broker?id=1"]
    paths += [f"topic?name={name}", f"records?name={name}", f"partition?name={name}&partition=0"]
    paths += [f"record?name={name}&partition=0&offset=0", f"group?id={group}", f"topic?name={'t' * 249}"]
    flags = ["--bootstrap-server", broker.bootstrap, "--redis", redis_url(broker), "--allow-changes"]
    with running_console(*flags) as url, browser.new_context(viewport={"width": NARROW, "height": 800}) as context:
        page = context.new_page()
        widths = {}
        for path in paths:
            page.goto(f"{url}/{path}", timeout=WITHIN_MS)
            widths[path] = page.evaluate("document.documentElement.scrollWidth")
        for button in ("Show the plan", "Delete this group"):
            page.goto(f"{url}/group?id={group}")
            page.get_by_role("button", name=button).click()
            expect(page.locator("form.bar")).to_have_count(1)
            widths[button] = page.evaluate("document.documentElement.scrollWidth")
    assert widths == dict.fromkeys(widths, NARROW)


def test_times_have_one_switch_for_all_pages(broker: KorvetServer, console: str, browser: Browser) -> None:
    name = topic_with(broker, [b"a"])
    with browser.new_context(timezone_id="Asia/Kolkata", locale="en-US") as context:
        page = context.new_page()
        page.goto(f"{console}/records?name={name}", timeout=WITHIN_MS)
        shown = page.locator("#rows time")
        utc = shown.get_attribute("datetime")
        expect(shown).to_have_text(utc or "")
        page.get_by_role("button", name="UTC").click()
        expect(shown).to_have_text(re.compile(r"T.*\+05:30$"))
        page.get_by_role("link", name="0@0").click()
        expect(page.locator("time")).to_have_text(re.compile(r"T.*\+05:30$"))
        page.get_by_role("button", name="local times").click()
        expect(page.locator("time")).to_have_text(utc or "")


def luminance(colour: str) -> float:
    """The relative luminance of a colour. Source: WCAG 2.2"""
    parts = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    red, green, blue = (part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_texts_and_links_can_be_told_from_what_is_around_them(scheme: str) -> None:
    found = re.findall(r":root \{(.*?)\}", (STATIC / "console.css").read_text(), re.DOTALL)
    colours = dict(re.findall(r"--(\w+): (#\w{6})", found[scheme == "dark"]))

    def contrast(one: str, other: str) -> float:
        low, high = sorted(luminance(colours[each]) + 0.05 for each in (one, other))
        return high / low

    for text in ("text", "quiet", "link", "bad"):
        assert min(contrast(text, ground) for ground in ("page", "card")) >= WCAG_AA, text


@pytest.mark.parametrize(
    ("fields", "wrong"),
    [
        ({"start": "time", "at": "yesterday"}, "is no time"),
        ({"start": "offset", "at": "1e3"}, "at is no number"),
        ({"partition": "7"}, "has no partition 7"),
        ({"count": "many"}, "count is no number"),
        ({"from": "older,x"}, "from is no edge of a page"),
    ],
)
def test_wrong_field_of_a_search_keeps_the_form(
    broker: KorvetServer, console: str, fields: dict[str, str], wrong: str
) -> None:
    asked = {"name": topic_with(broker, []), "q": "a & b", **fields}
    status, text, _ = ask(console, "GET", f"/records?{urlencode(asked)}")
    assert (status, wrong in text) == (400, True)
    assert 'name="q" maxlength="250" value="a &amp; b"' in text
    for name in fields.keys() & {"at", "partition", "count"}:
        assert re.search(f'name="{name}"[^>]* value="{fields[name]}"', text)


def test_wrong_field_of_a_reset_keeps_the_form(broker: KorvetServer, console: str) -> None:
    group, name = unique("g"), topic_with(broker, [b"a"])
    committed(broker, group, name, 1)
    token = re.search(r'name="token" value="([^"]+)"', ask(console, "GET", f"/group?id={group}")[1])
    assert token is not None
    fields = {"token": token[1], "id": group, "topic": name, "goal": "to_datetime", "at": "noon"}
    status, text, _ = ask(console, "POST", "/group/reset", fields)
    assert (status, "&#39;noon&#39; is no time" in text) == (400, True)
    assert f"<option selected>{name}</option>" in text
    assert '<option value="to_datetime" selected>' in text
    assert 'name="at" size="24" value="noon"' in text
