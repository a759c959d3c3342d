"""Requests that the console refuses, as any program can send them."""

from __future__ import annotations

import http.client
import secrets
import socket
import threading
from collections.abc import Mapping
from contextlib import ExitStack, closing
from dataclasses import replace
from types import MappingProxyType
from urllib.parse import urlencode, urlsplit

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from korvet.cli.console.start import BOUNDS, listen
from korvet.cli.kafka.address import Address
from korvet.server.processes.http_server import HttpServer
from tests.console.conftest import WITHIN_MS, running_console
from tests.support.broker import KorvetServer
from tests.support.kafka import Kafka

FORM = {"Content-Type": "application/x-www-form-urlencoded"}


def asked(
    url: str, method: str, path: str, body: str = "", headers: Mapping[str, str] = MappingProxyType({})
) -> tuple[int, str, Mapping[str, str]]:
    connection = http.client.HTTPConnection(urlsplit(url).netloc, timeout=60)
    try:
        connection.request(method, path, body or None, dict(headers))
        answer = connection.getresponse()
        return answer.status, answer.read().decode(), dict(answer.getheaders())
    finally:
        connection.close()


def test_page_has_a_strict_policy_and_is_not_kept(console: str) -> None:
    status, _, headers = asked(console, "GET", "/topics")
    assert status == 200
    headers = {name.lower(): value for name, value in headers.items()}
    policy = headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    assert "frame-ancestors 'none'" in policy
    assert headers["cache-control"] == "no-store"
    assert "server" not in headers


@pytest.mark.parametrize("host", ["evil.example", "127.0.0.1", "", "127.0.0.1:1"])
def test_request_for_another_host_is_refused(console: str, host: str) -> None:
    status, text, _ = asked(console, "GET", "/topics", headers={"Host": host})
    assert (status, text) == (403, f"this console is not at {host}\n")


def test_change_from_another_site_is_refused(console: str) -> None:
    status, text, _ = asked(console, "POST", "/group/delete", "id=g", {**FORM, "Origin": "http://evil.example"})
    assert (status, text) == (403, "this request comes from another site\n")


def test_change_without_the_token_is_refused(console: str) -> None:
    status, text, _ = asked(console, "POST", "/group/delete", urlencode({"id": "g", "token": "x"}), FORM)
    assert status == 403
    assert "earlier console" in text


@pytest.mark.parametrize("size", ["65537", "9" * 30, "x", "-1"])
def test_form_without_a_short_length_is_refused(console: str, size: str) -> None:
    status, text, _ = asked(console, "POST", "/group/delete", "", {**FORM, "Content-Length": size})
    assert (status, text) == (403, "a form has a length, and is short\n") or status == 400


@pytest.mark.parametrize(
    ("headers", "told"),
    [
        ({"Content-Type": "multipart/form-data; boundary=x"}, "a form is application/x-www-form-urlencoded\n"),
        ({"Transfer-Encoding": "chunked"}, "a form has a length, and is short\n"),
    ],
)
def test_form_of_another_kind_is_refused_unread(console: str, headers: Mapping[str, str], told: str) -> None:
    body = "1\r\nx\r\n0\r\n\r\n"
    status, text, _ = asked(console, "POST", "/group/delete", body, {**FORM, "Content-Length": "11", **headers})
    assert (status, text) == (403, told)


def test_change_by_get_is_refused(console: str) -> None:
    assert asked(console, "GET", "/group/delete?id=g")[0] == 405


@pytest.mark.parametrize(
    ("path", "status"),
    [
        ("/topic?name=not-there", 404),
        ("/group?id=not-there", 404),
        ("/transaction?id=not-there", 404),
        ("/records?name=not-there&start=time", 400),
        ("/records?name=a&start=sometime", 400),
        ("/topics?page=x", 400),
        ("/topics?q=" + "a" * 3000, 400),
        ("/redis", 404),
        ("/not-there", 404),
        ("/static/../app.py", 404),
    ],
)
def test_bad_question_gets_a_page_that_says_why(console: str, path: str, status: int) -> None:
    found, text, _ = asked(console, "GET", path)
    assert found == status
    assert "Traceback" not in text


def test_console_without_changes_offers_and_takes_none(broker: KorvetServer) -> None:
    with running_console("--bootstrap-server", broker.bootstrap) as url:
        _, text, _ = asked(url, "GET", "/")
        assert "read-only" in text
        status, text, _ = asked(url, "POST", "/group/delete", "id=g", FORM)
    assert status == 403
    assert "--allow-changes" in text


def test_address_with_very_many_connections_keeps_no_other_one_out(console: str) -> None:
    place, within_s = urlsplit(console), WITHIN_MS / 1000
    to, head = (str(place.hostname), place.port or 0), f"GET /static/icon.svg HTTP/1.1\r\nHost: {place.netloc}\r\n"
    with ExitStack() as held:
        try:
            other = held.enter_context(socket.create_connection(to, within_s, ("127.0.0.2", 0)))
        except OSError:
            pytest.skip("this machine has one address of the loopback")
        other.sendall(head.encode())
        silent = [held.enter_context(socket.create_connection(to, within_s)) for _ in range(BOUNDS.connections + 20)]
        # The oldest connections of the address with the most end.
        assert [one.recv(1) for one in silent[:21]] == [b""] * 21
        other.sendall(b"\r\n")
        assert other.recv(12) == b"HTTP/1.1 200"
        assert asked(console, "GET", "/static/icon.svg")[0] == 200


def test_connection_that_brings_no_whole_head_ends() -> None:
    listening = listen(Address("127.0.0.1", 0))
    server = HttpServer(_answer, replace(BOUNDS, arrives_s=0.05), listening, name="console")
    thread = threading.Thread(target=server.run, args=([],))
    thread.start()
    try:
        with closing(socket.create_connection(listening.getsockname(), WITHIN_MS / 1000)) as slow:
            slow.sendall(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n")
            assert slow.recv(12) == b"HTTP/1.1 204"
            slow.sendall(b"GET / HTTP/1.1\r\n")
            while slow.recv(1000):
                pass
    finally:
        server.should_exit = True
        thread.join()


async def _answer(scope: Scope, receive: Receive, send: Send) -> None:
    await Response(status_code=204)(scope, receive, send)


def test_cluster_that_is_away_is_named() -> None:
    with running_console("--bootstrap-server", "127.0.0.1:1") as url:
        status, text, _ = asked(url, "GET", "/topics")
    assert status == 503
    assert "no broker answers at 127.0.0.1:1" in text
    assert "docs/troubleshooting.md" in text


def test_console_shows_an_apache_kafka(kafka: Kafka) -> None:
    name = f"console-{secrets.token_hex(4)}"
    admin = AdminClient({"bootstrap.servers": kafka.bootstrap})
    admin.create_topics([NewTopic(name, 1, 1)])[name].result(60)
    producer = Producer({"bootstrap.servers": kafka.bootstrap})
    producer.produce(name, b"a value")
    assert producer.flush(60) == 0
    paths = ["/", "/topics", f"/topic?name={name}", f"/records?name={name}", "/groups", "/transactions", "/security"]
    with running_console("--bootstrap-server", kafka.bootstrap) as url:
        pages = {path: asked(url, "GET", path) for path in paths}
    assert {path: status for path, (status, _, _) in pages.items() if status != 200} == {}
    assert name in pages["/topics"][1]
    assert "a value" in pages[f"/records?name={name}"][1]
