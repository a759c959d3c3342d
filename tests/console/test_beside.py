"""The console on a front-end's HTTP port: what it serves there, and which settings it refuses."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from playwright.sync_api import Page, expect

from korvet.cli.serve import make_settings
from korvet.errors import ConfigError
from korvet.server.ground.settings import ServeSettings
from korvet.settings.file import ConfigFile
from tests.console.conftest import Port, http_port
from tests.console.test_login import ask, failed_logins, log_in
from tests.kafka.waiting import poll_until
from tests.support.broker import KorvetServer, running_broker


@pytest.fixture(scope="module")
def port(secured: KorvetServer) -> str:
    """The HTTP port of a broker with a console, which is up."""
    url = f"http://127.0.0.1:{secured.metrics_port}"
    until = time.monotonic() + 60
    while ask(url, "GET", "/login")[0] != 200 and time.monotonic() < until:
        time.sleep(0.1)
    return url


def test_console_is_beside_the_metrics(secured: KorvetServer, port: str, page: Page) -> None:
    log_in(page, f"{port}/topics", "alice")
    expect(page.get_by_role("link", name="of-alice")).to_be_visible()
    assert ask(port, "GET", "/readyz")[:2] == (200, "ok\n")
    assert "korvet_requests_total" in ask(port, "GET", "/metrics")[1]
    # Nobody says which users of the cluster may see Redis.
    assert ask(port, "GET", "/redis")[0] == 303
    page.get_by_role("button", name="Log out").click()
    expect(page.get_by_role("heading", level=1)).to_have_text("Log in")


def test_console_counts_failed_logins_by_the_address_of_the_connection(port: str) -> None:
    assert 429 in failed_logins(port, [f"192.0.2.{number}" for number in range(40)])


def test_requests_that_are_cut_off_write_no_line(secured: KorvetServer, port: str) -> None:
    address = ("127.0.0.1", secured.metrics_port)
    with socket.create_connection(address) as nameless:
        nameless.sendall(b"GET /login HTTP/1.0\r\n\r\n")
        assert nameless.recv(100).startswith(b"HTTP/1.1 403 ")
    with socket.create_connection(address) as cut_off:
        form = b"Content-Type: application/x-www-form-urlencoded\r\nContent-Length: 9\r\nExpect: 100-continue"
        cut_off.sendall(b"POST /login HTTP/1.1\r\nHost: 127.0.0.1\r\n" + form + b"\r\n\r\n")
        # The console reads the body once it says so.
        assert b"100 Continue" in cut_off.recv(100)
        cut_off.sendall(b"user=")
    assert ask(port, "GET", "/login")[0] == 200
    assert "metrics cannot be read" not in secured.log and "Traceback" not in secured.log


def test_page_of_a_broker_without_connections_left_says_so_and_so_does_the_log() -> None:
    with running_broker(broker={"max.connections": "1"}, has_metrics=True, console="read-only") as broker:
        with socket.create_connection(("127.0.0.1", broker.port)) as only:
            poll_until(lambda: "no more connections are accepted until others leave" in broker.log, "a line")
            url = f"http://127.0.0.1:{broker.metrics_port}"
            with ThreadPoolExecutor() as threads:
                answers = [*threads.map(lambda path: ask(url, "GET", path), ("/topics", "/groups"))]
            # This is the console's own page, not the port's that waited for it.
            assert [(status, "did not answer" in text) for status, text, _ in answers] == [(503, True)] * 2
            assert broker.log.count("the console's pages show nothing: 127.0.0.1:") == 1
            only.shutdown(socket.SHUT_RDWR)
        poll_until(lambda: ask(url, "GET", "/topics")[0] == 200, "a page")


@pytest.fixture
def alone(broker: KorvetServer, tmp_path: Path) -> Iterator[Path]:
    """The unix socket of the process that shows a broker without logins at port 1."""
    path = tmp_path / "console" / "s"
    path.parent.mkdir()
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(path))
        listening.listen()
        settings = ServeSettings(metrics=("127.0.0.1", 1), console="read-only")
        order = {
            "settings": settings.to_json(), "redis_url": None, "bootstrap": broker.bootstrap,
            "descriptor": listening.fileno(),
        }  # fmt: skip
        process = subprocess.Popen(
            [sys.executable, "-m", "korvet.cli.console.beside"],
            stdin=subprocess.PIPE, pass_fds=[listening.fileno()], text=True,
        )  # fmt: skip
        try:
            assert process.stdin is not None
            process.stdin.write(json.dumps(order) + "\n")
            process.stdin.flush()
            yield path
            process.stdin.close()
            # It ends when its front-end is gone, which cannot remove the directory any more.
            assert process.wait(60) is not None
            assert not path.parent.exists()
        finally:
            process.kill()
            process.wait()


def test_console_without_logins_is_at_the_loopbacks_port_alone(alone: Path) -> None:
    host = {"Host": "127.0.0.1:1"}
    with http_port(Port(), alone) as url:
        status, text, headers = ask(url, "GET", "/topics", headers=host)
        assert status == 200
        assert "read-only" in text
        # The next request of this connection might be for the port's own pages.
        assert headers["connection"] == "close"
        assert ask(url, "GET", "/topics", headers={"Host": "evil.example"})[0] == 403
        assert ask(url, "GET", "/redis", headers=host)[0] == 404
        assert ask(url, "POST", "/group/delete", {"id": "x" * 70_000}, host)[0] == 403
        assert ask(url, "GET", "/livez?a=/topics")[:2] == (200, "ok\n")


def test_process_that_is_away_is_reported_and_harms_nothing(tmp_path: Path) -> None:
    with http_port(Port(), tmp_path / "missing") as url:
        assert ask(url, "GET", "/topics")[:2] == (503, "the console does not answer now; the log says why\n")
        assert ask(url, "GET", "/livez")[0] == 200


@pytest.mark.parametrize(
    ("serve", "told"),
    [
        ({"console": "read-only"}, "give 'metrics'"),
        ({"console": "read-only", "metrics": "0.0.0.0:9464"}, "without logins it is for an HTTP port on the loopback"),
        (
            {"console": "changes", "metrics": ":9464", "security": "sasl_plaintext", "sasl": ["SCRAM-SHA-512"]},
            "passwords would pass others unprotected",
        ),
        (
            {"console": "changes", "metrics": "127.0.0.1:1", "console-hostnames": ["a.example"]},
            "console-hostnames are for a console with logins",
        ),
        (
            {"console": "changes", "metrics": "127.0.0.1:1", "proxy-protocol": True},
            "name a file with bootstrap.servers",
        ),
        (
            {"console": "changes", "metrics": "127.0.0.1:1", "console-config": "/missing"},
            "cannot read client settings /missing",
        ),
    ],
)
def test_console_that_would_show_too_much_is_refused(serve: dict[str, object], told: str) -> None:
    with pytest.raises(ConfigError, match=told):
        make_settings({}, ConfigFile(serve=serve))


def test_console_behind_a_proxy_with_tls_may_be_anywhere() -> None:
    serve = {
        "console": "changes", "metrics": "0.0.0.0:9464", "security": "sasl_plaintext", "sasl": ["SCRAM-SHA-512"],
        "console-hostnames": ["console.example"],
    }  # fmt: skip
    settings = make_settings({}, ConfigFile(serve=serve))
    assert ServeSettings.from_json(settings.to_json()) == settings
