"""The console without a mouse, in a real browser."""

from __future__ import annotations

from confluent_kafka import Producer
from playwright.sync_api import Locator, Page, expect

from tests.console.test_pages import committed, topic_with, unique
from tests.support.broker import KorvetServer

MOST_STEPS = 100


def tab_to(page: Page, element: Locator) -> None:
    """Press Tab until an element has the focus, which is visible."""
    for _ in range(MOST_STEPS):
        page.keyboard.press("Tab")
        if element.evaluate("one => one === document.activeElement"):
            expect(element).to_have_css("outline-style", "solid")
            return
    raise AssertionError(f"Tab does not reach {element}")


def test_keyboard_reaches_the_content_first(console: str, page: Page) -> None:
    page.goto(f"{console}/topics")
    page.keyboard.press("Tab")
    expect(page.get_by_role("link", name="To the content")).to_be_focused()
    page.keyboard.press("Enter")
    expect(page).to_have_url(f"{console}/topics#main")


def test_offsets_are_reset_by_keyboard_alone(broker: KorvetServer, console: str, page: Page) -> None:
    group, name = unique("g"), topic_with(broker, [b"a"] * 10)
    committed(broker, group, name, 4)
    page.goto(f"{console}/")
    tab_to(page, page.get_by_role("navigation").get_by_role("link", name="Groups"))
    page.keyboard.press("Enter")
    tab_to(page, page.get_by_label("Id contains"))
    page.keyboard.type(group)
    expect(page.locator("#list tbody tr")).to_have_count(1)
    tab_to(page, page.get_by_role("link", name=group))
    page.keyboard.press("Enter")
    goal = page.get_by_label("Goal")
    tab_to(page, goal)
    for _ in range(2):
        page.keyboard.press("ArrowDown")
    expect(goal).to_have_value("to_offset")
    tab_to(page, page.get_by_label("Offset, time in UTC, or number"))
    page.keyboard.type("7")
    tab_to(page, page.get_by_role("button", name="Show the plan"))
    page.keyboard.press("Enter")
    tab_to(page, page.get_by_role("button", name="Reset these offsets"))
    page.keyboard.press("Enter")
    expect(page.get_by_role("status")).to_have_text("The offsets are reset.")
    expect(page.locator("#lag")).to_have_text("3")


def test_focus_stays_when_a_page_refreshes_itself(broker: KorvetServer, console: str, page: Page) -> None:
    group, name = unique("g"), topic_with(broker, [b"a"])
    committed(broker, group, name, 0)
    producer = Producer({"bootstrap.servers": broker.bootstrap})
    for path, link, shown, ends in (
        (f"/topic?name={name}", "transactions", page.locator("#live tbody td").nth(3), ("1", "2")),
        (f"/group?id={group}", f"{name}-0", page.locator("#lag"), ("2", "3")),
    ):
        page.goto(f"{console}{path}")
        focused = page.locator("#live").get_by_role("link", name=link)
        tab_to(page, focused)
        expect(shown).to_have_text(ends[0])
        producer.produce(name, b"a")
        assert producer.flush(60) == 0
        expect(shown).to_have_text(ends[1])
        expect(focused).to_be_focused()
