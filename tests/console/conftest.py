"""A console beside the session's broker, and Debian's Chromium that looks at it."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

import pytest
from anyio.from_thread import start_blocking_portal
from confluent_kafka import Consumer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic
from playwright.sync_api import Browser, ConsoleMessage, Dialog, Page, expect, sync_playwright

from korvet.cli.ground.cluster import Cluster
from korvet.cli.kafka.acls import KafkaRules
from korvet.cli.kafka.users import KafkaUsers
from korvet.metrics.clients import Pushed
from korvet.metrics.lags import Lags
from korvet.metrics.samples import Samples
from korvet.security.acl import Acl, Operation, PatternType, Permission, ResourceType
from korvet.security.protocol import Security
from korvet.server.ground.settings import ListenerSettings
from korvet.server.ground.sockets import bind, port_of
from korvet.server.processes.http_server import serve_port
from korvet.store.security.users import CredentialKey
from tests.support.broker import KorvetServer, running_broker
from tests.support.tools import find_tool

ROOT = Path(__file__).resolve().parents[2]
STOPS_WITHIN_S = 20.0
WITHIN_MS = 60_000.0
HOSTILE = "<img src=x onerror=alert(1)>\"'--></script><script>alert(2)</script>{{7*7}}"
MECHANISM = "SCRAM-SHA-512"
PASSWORD = "right=,ä"
BROKER = {
    "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    "super.users": "User:admin;User:ANONYMOUS",
    "connection.failed.authentication.delay.ms": "0",
}

expect.set_options(timeout=WITHIN_MS)


@contextmanager
def running_console(*arguments: str, errors: IO[bytes] | None = None) -> Iterator[str]:
    """A console on a free port of the loopback, which may write errors to a file; its URL without the last slash."""
    command = [sys.executable, "-m", "korvet.cli", "console", "--listen", "127.0.0.1:0", *arguments]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=errors, text=True) as process:
        try:
            assert process.stdout is not None
            line = process.stdout.readline()
            assert "the console is at http" in line, line
            yield line.split()[4].rstrip("/")
        finally:
            process.terminate()
            try:
                process.wait(STOPS_WITHIN_S)
            except subprocess.TimeoutExpired:
                process.kill()


class Port:
    """What a front-end's HTTP port tells, with lags of the test's."""

    def __init__(self) -> None:
        self.lags = Lags()

    def samples(self) -> Samples:
        return Samples()

    def pushed(self) -> Pushed:
        return {}

    def death(self) -> str:
        return ""

    def unreadiness(self) -> str:
        return ""


@contextmanager
def http_port(told: Port, console: Path | None = None) -> Iterator[str]:
    """The URL of an HTTP port, with a console at a unix socket."""
    with bind("127.0.0.1", 0) as bound, start_blocking_portal() as portal:
        served = portal.start_task_soon(serve_port, told, bound, console)
        bound.listen()
        yield f"http://127.0.0.1:{port_of(bound)}"
        served.cancel()


@pytest.fixture(scope="module")
def lags() -> Iterator[tuple[Lags, str]]:
    """The lags that an HTTP port tells, and its URL."""
    told = Port()
    with http_port(told) as url:
        yield told.lags, f"{url}/"


@pytest.fixture(scope="module")
def console(broker: KorvetServer, lags: tuple[Lags, str]) -> Iterator[str]:
    """A console that may change things, and asks a port for lags."""
    with running_console("--bootstrap-server", broker.bootstrap, "--allow-changes", "--metrics", lags[1]) as url:
        yield url


@pytest.fixture(scope="package")
def secured() -> Iterator[KorvetServer]:
    """A broker with logins, rules and a console: alice may see the topic of hers, and bob the one of his."""
    listeners = [
        ListenerSettings(name="login", port=0, security=Security.SASL_PLAINTEXT, sasl=(MECHANISM,)),
        ListenerSettings(name="plain", port=0),
    ]
    with running_broker(listeners=listeners, broker=BROKER, has_metrics=True, console="changes") as broker:
        admin = AdminClient({"bootstrap.servers": without_login(broker)})
        for future in admin.create_topics([NewTopic(f"of-{user}", 1, 1) for user in ("alice", "bob")]).values():
            future.result(60)
        consumer = Consumer({"bootstrap.servers": without_login(broker), "group.id": "of-alice"})
        consumer.commit(offsets=[TopicPartition("of-alice", 0, 0)], asynchronous=False)
        consumer.close()
        with Cluster(bootstrap=without_login(broker)).client() as client:
            for user in ("admin", "alice", "bob", "gone", HOSTILE):
                KafkaUsers(client).add(CredentialKey(MECHANISM, user), PASSWORD, 4096)
            KafkaRules(client).add([rule(ResourceType.TOPIC, user) for user in ("alice", "bob")])
            KafkaRules(client).add([rule(ResourceType.GROUP, "alice")])
        yield broker


def without_login(broker: KorvetServer) -> str:
    """The address of the listener that takes no logins."""
    return f"127.0.0.1:{broker.ports[1]}"


def rule(resource: ResourceType, user: str) -> Acl:
    operation = Operation.DESCRIBE
    return Acl(resource, PatternType.LITERAL, f"of-{user}", f"User:{user}", "*", operation, Permission.ALLOW)


def redis_url(broker: KorvetServer) -> str:
    return broker.redis_url or f"unix://{broker.data_dir}/valkey.sock"


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """Chromium without a window. As root it has no sandbox of its own, and looks at nothing but the console."""
    program = find_tool("chromium")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=program, args=["--no-sandbox", "--disable-gpu"])
        try:
            yield browser
        finally:
            browser.close()


@pytest.fixture
def page(browser: Browser) -> Iterator[Page]:
    """A page whose scripts may not fail, and which asks for nothing but the console's own files."""
    context = browser.new_context()
    page = context.new_page()
    page.set_default_timeout(WITHIN_MS)
    problems: list[str] = []

    def note(message: ConsoleMessage) -> None:
        if message.type == "error":
            problems.append(message.text)

    def dismiss(dialog: Dialog) -> None:
        problems.append(dialog.message)
        dialog.dismiss()

    page.on("pageerror", lambda error: problems.append(str(error)))
    page.on("console", note)
    page.on("dialog", dismiss)
    try:
        yield page
    finally:
        context.close()
    assert problems == []
