"""A fault on purpose, as docs/troubleshooting.md tells it: what is said of a killed Redis, and the remedy."""

from __future__ import annotations

from pathlib import Path

from playwright.sync_api import Browser, expect

from tests.console.conftest import WITHIN_MS, running_console
from tests.console.test_pages import topic_with
from tests.kafka.waiting import poll_until
from tests.support.broker import ROOT, running_broker
from tests.support.prometheus import running_prometheus
from tests.support.redis import running_server
from tests.support.scraping import ask

WITHIN_S = WITHIN_MS / 1000
ALERT = "KorvetRedisAway"


def test_killed_redis_is_shown_everywhere_until_it_is_started_again(browser: Browser, tmp_path: Path) -> None:
    kept = {"appendonly": "yes", "appendfsync": "always"}
    with (
        running_server("valkey", tcp=True, options=kept) as redis,
        running_broker(redis_url=redis.tcp_url, has_metrics=True) as broker,
        running_prometheus(tmp_path, broker.metrics_port) as prometheus,
        running_console("--bootstrap-server", broker.bootstrap, "--redis", redis.tcp_url) as url,
        browser.new_context() as context,
    ):
        page, port = context.new_page(), broker.metrics_port
        records = f"{url}/records?name={topic_with(broker, [b'before the fault'])}"

        def shown() -> int:
            answer = page.goto(records, timeout=WITHIN_MS)
            return 0 if answer is None else answer.status

        def state() -> str:
            return next(str(rule["state"]) for rule in prometheus.rules() if rule["name"] == ALERT)

        assert shown() == 200
        expect(page.locator("tbody")).to_contain_text("before the fault")
        redis.kill()
        poll_until(lambda: "redis connection lost" in broker.log, "the log says so", WITHIN_S)
        poll_until(lambda: ask(port, "/readyz")[0] == 503, "it is not ready", WITHIN_S)
        assert f"127.0.0.1:{redis.port}" in ask(port, "/readyz")[1]
        assert ask(port, "/livez")[0] == 200
        poll_until(
            lambda: shown() == 503 and "no broker serves it for now" in page.content(), "the page says so", WITHIN_S
        )
        expect(page.locator("main")).to_contain_text("docs/troubleshooting.md")
        page.get_by_role("link", name="The page about Redis").click()
        expect(page.get_by_role("alert")).to_contain_text(f"127.0.0.1:{redis.port}")
        poll_until(lambda: state() in ("pending", "firing"), "the alert is there", WITHIN_S)
        (rule,) = (rule for rule in prometheus.rules() if rule["name"] == ALERT)
        path, _, anchor = rule["annotations"]["runbook_url"].partition("#")
        remedy = (ROOT / path).read_text().partition(f"### {ALERT}\n")[2].partition("\n### ")[0]
        assert (anchor, "Start it" in remedy) == (ALERT.lower(), True)
        redis.start()
        poll_until(lambda: shown() == 200, "the records again", WITHIN_S)
        expect(page.locator("tbody")).to_contain_text("before the fault")
        poll_until(lambda: ask(port, "/readyz")[0] == 200, "it is ready", WITHIN_S)
        poll_until(lambda: state() == "inactive", "the alert is over", WITHIN_S)
        assert "redis is back" in broker.log
