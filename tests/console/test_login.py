"""Logins at the console: the broker judges them, and its rules decide what a visitor sees."""

from __future__ import annotations

import http.client
import socket
import ssl
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from pathlib import Path
from types import MappingProxyType
from urllib.parse import urlencode, urlsplit

import pytest
from playwright.sync_api import Browser, BrowserContext, Page, expect

from korvet.cli import run
from korvet.cli.console.login import MOST_AT_ONCE
from korvet.cli.console.start import BOUNDS
from korvet.cli.ground.cluster import Cluster
from korvet.cli.kafka.users import KafkaUsers
from tests.console.conftest import HOSTILE, MECHANISM, PASSWORD, WITHIN_MS, redis_url, running_console, without_login
from tests.support.broker import KorvetServer
from tests.support.certificates import Authority

IDLE_S = 8.0
FORM = {"Content-Type": "application/x-www-form-urlencoded"}


@pytest.fixture(scope="module")
def guarded(secured: KorvetServer) -> Iterator[str]:
    """A console with a login that may change things, and whose operator is admin."""
    with running_console(
        "--bootstrap-server", secured.bootstrap, "--login", "--allow-changes",
        "--redis", redis_url(secured), "--operator", "admin",
    ) as url:  # fmt: skip
        yield url


@pytest.fixture(scope="module")
def over_tls(secured: KorvetServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A console with TLS on all addresses, whose sessions end soon."""
    pair = Authority.make(tmp_path_factory.mktemp("authority")).server()
    with running_console(
        "--bootstrap-server", secured.bootstrap, "--login", "--listen", "0.0.0.0:0",
        "--tls-cert", str(pair.cert), "--tls-key", str(pair.key), "--idle-timeout", f"{IDLE_S}s",
    ) as url:  # fmt: skip
        yield url.replace("0.0.0.0", "127.0.0.1")


@pytest.fixture
def visitors(browser: Browser) -> Iterator[tuple[BrowserContext, BrowserContext]]:
    """Two browsers that share nothing."""
    contexts = browser.new_context(ignore_https_errors=True), browser.new_context(ignore_https_errors=True)
    try:
        yield contexts
    finally:
        for context in contexts:
            context.close()


def log_in(page: Page, url: str, user: str, password: str = PASSWORD) -> None:
    page.set_default_timeout(WITHIN_MS)
    if "/login" not in page.url:
        page.goto(url)
    page.get_by_label("User").fill(user)
    page.get_by_label("Password").fill(password)
    page.get_by_role("button", name="Log in").click()


def ask(
    url: str,
    method: str,
    path: str,
    fields: Mapping[str, str] = MappingProxyType({}),
    headers: Mapping[str, str] = MappingProxyType({}),
) -> tuple[int, str, http.client.HTTPMessage]:
    place = urlsplit(url)
    if place.scheme == "https":
        connection: http.client.HTTPConnection = http.client.HTTPSConnection(
            place.netloc, timeout=60, context=ssl._create_unverified_context()
        )
    else:
        connection = http.client.HTTPConnection(place.netloc, timeout=60)
    try:
        connection.request(method, path, urlencode(fields) or None, {**FORM, **headers})
        answer = connection.getresponse()
        return answer.status, answer.read().decode(), answer.headers
    finally:
        connection.close()


def cookie_of(url: str, user: str, headers: Mapping[str, str] = MappingProxyType({})) -> str:
    """The cookie of a new session, as a browser sends it."""
    status, text, answered = ask(url, "POST", "/login", {"user": user, "password": PASSWORD}, headers)
    assert status == 303, text
    return answered["set-cookie"].partition(";")[0]


def token_of(url: str, cookie: str) -> str:
    return (
        ask(url, "GET", "/topics", headers={"Cookie": cookie})[1].partition('name="token" value="')[2].partition('"')[0]
    )


def test_two_visitors_see_what_their_rules_allow(guarded: str, visitors: tuple[BrowserContext, BrowserContext]) -> None:
    for context, user, other in zip(visitors, ("alice", "bob"), ("bob", "alice"), strict=True):
        page = context.new_page()
        log_in(page, f"{guarded}/topics", user)
        expect(page).to_have_url(f"{guarded}/topics")
        expect(page.get_by_role("link", name=f"of-{user}")).to_be_visible()
        expect(page.get_by_role("link", name=f"of-{other}")).to_have_count(0)
        page.goto(f"{guarded}/topic?name=of-{user}")
        expect(page.locator("#live tbody tr")).to_have_count(1)
        expect(page.locator("main")).to_contain_text("TOPIC_AUTHORIZATION_FAILED")
        page.goto(f"{guarded}/topic?name=of-{other}")
        expect(page.get_by_role("alert")).to_contain_text("TOPIC_AUTHORIZATION_FAILED")
        page.goto(f"{guarded}/security")
        expect(page.locator("main")).to_contain_text("CLUSTER_AUTHORIZATION_FAILED")


def test_change_is_judged_by_the_visitors_rules(guarded: str, visitors: tuple[BrowserContext, BrowserContext]) -> None:
    page = visitors[0].new_page()
    log_in(page, f"{guarded}/group?id=of-alice", "alice")
    page.get_by_role("button", name="Delete this group").click()
    page.get_by_role("button", name="Delete of-alice and its offsets").click()
    expect(page.get_by_role("alert")).to_contain_text("GROUP_AUTHORIZATION_FAILED")
    other = visitors[1].new_page()
    log_in(other, f"{guarded}/group?id=of-alice", "admin")
    expect(other.get_by_role("heading", level=1)).to_contain_text("of-alice")


def test_login_leads_back_to_the_page_and_logout_ends_the_session(guarded: str, page: Page) -> None:
    page.goto(f"{guarded}/topics?q=of-al")
    expect(page.get_by_role("heading", level=1)).to_have_text("Log in")
    log_in(page, guarded, "alice")
    expect(page).to_have_url(f"{guarded}/topics?q=of-al")
    (cookie,) = page.context.cookies()
    page.get_by_role("button", name="Log out").click()
    expect(page.get_by_role("heading", level=1)).to_have_text("Log in")
    assert page.context.cookies() == []
    status, _, headers = ask(guarded, "GET", "/topics", headers={"Cookie": f"{cookie['name']}={cookie['value']}"})
    assert (status, headers["location"]) == (303, "/login?ended=1&next=%2Ftopics")


def test_hostile_user_is_shown_and_runs_nothing(guarded: str, page: Page) -> None:
    log_in(page, guarded, HOSTILE)
    expect(page.locator("header")).to_contain_text(HOSTILE)
    assert page.locator("header img, header script").count() == 0


def test_wrong_password_and_unknown_user_get_the_same_page(guarded: str) -> None:
    answers = []
    for user, password in (("alice", "wrong"), ("nobody", PASSWORD), ("nobody", "x" * 5000), ("", ""), ("a\0", "b")):
        status, text, headers = ask(guarded, "POST", "/login", {"user": user, "password": password})
        answers.append((status, text.replace(f'value="{user}"', "").replace(" autofocus", "")))
        assert headers["set-cookie"] is None
    assert answers[0][0] == 401
    assert "knows no such user with this password" in answers[0][1]
    assert answers[1:4] == answers[:1] * 3
    assert answers[4][0] == 401


def test_console_over_tls_has_browsers_come_by_tls_again(guarded: str, over_tls: str) -> None:
    assert ask(over_tls, "GET", "/login")[2]["strict-transport-security"] == "max-age=31536000"
    assert ask(guarded, "GET", "/login")[2]["strict-transport-security"] is None


def test_cookie_is_for_the_console_alone(guarded: str, over_tls: str) -> None:
    for url, name, secure in ((guarded, "korvet-", ""), (over_tls, "__Host-korvet-", "; Secure")):
        fields = {"user": "alice", "password": PASSWORD}
        cookie = ask(url, "POST", "/login", fields)[2]["set-cookie"]
        assert cookie.startswith(f"{name}{urlsplit(url).port}=")
        assert cookie.partition(";")[2] == f" HttpOnly; Path=/; SameSite=strict{secure}"


def test_session_that_a_stranger_planted_is_not_taken(guarded: str) -> None:
    name = f"korvet-{urlsplit(guarded).port}"
    planted = {"Cookie": f"{name}=planted"}
    cookie = cookie_of(guarded, "alice", planted)
    assert cookie != planted["Cookie"]
    assert ask(guarded, "GET", "/topics", headers=planted)[0] == 303
    # A login ends the session that the browser had, so nobody else goes on with it.
    again = cookie_of(guarded, "bob", {"Cookie": cookie})
    assert again != cookie
    assert ask(guarded, "GET", "/topics", headers={"Cookie": cookie})[0] == 303
    assert ask(guarded, "GET", "/topics", headers={"Cookie": again})[0] == 200


def test_change_with_the_token_of_another_session_is_refused(guarded: str) -> None:
    alice, admin = cookie_of(guarded, "alice"), cookie_of(guarded, "admin")
    for token in (token_of(guarded, alice), "", "x"):
        fields = {"id": "of-alice", "token": token}
        status, text, _ = ask(guarded, "POST", "/group/delete", fields, {"Cookie": admin})
        assert status == 403
        assert "earlier console or session" in text
        assert ask(guarded, "POST", "/logout", fields, {"Cookie": admin})[0] == 403
    assert ask(guarded, "GET", "/topics", headers={"Cookie": admin})[0] == 200


def test_login_from_another_site_is_refused(guarded: str) -> None:
    fields, headers = {"user": "alice", "password": PASSWORD}, {"Origin": "https://evil.example"}
    assert ask(guarded, "POST", "/login", fields, headers)[0] == 403


@pytest.mark.parametrize("path", ["/", "/record?name=of-alice", "/group/lag?id=of-alice", "/redis", "/transactions"])
def test_stranger_sees_no_page(guarded: str, path: str) -> None:
    status, text, _ = ask(guarded, "GET", path)
    assert status == (401 if "lag" in path else 303)
    assert "of-" not in text
    assert ask(guarded, "POST", "/group/delete", {"id": "of-alice"})[0] == 303


def test_only_operators_see_redis(guarded: str) -> None:
    status, text, _ = ask(guarded, "GET", "/redis", headers={"Cookie": cookie_of(guarded, "alice")})
    assert status == 403
    assert "/redis" not in text
    status, text, _ = ask(guarded, "GET", "/redis", headers={"Cookie": cookie_of(guarded, "admin")})
    assert status == 200
    assert "library" in text


def test_repair_is_for_operators_and_only_of_what_cannot_be_read(guarded: str) -> None:
    alice, admin = cookie_of(guarded, "alice"), cookie_of(guarded, "admin")
    for cookie, status, told in ((alice, 403, "--operator"), (admin, 404, "can be read at offset 0")):
        for more in ({}, {"execute": "1", "entry": "1-0"}):
            fields = {"name": "of-alice", "partition": "0", "offset": "0", "token": token_of(guarded, cookie), **more}
            found, text, _ = ask(guarded, "POST", "/records/repair", fields, {"Cookie": cookie})
            assert found == status
            assert told in text


def test_session_ends_with_its_user(secured: KorvetServer, guarded: str) -> None:
    cookie = {"Cookie": cookie_of(guarded, "gone")}
    assert ask(guarded, "GET", "/topics", headers=cookie)[0] == 200
    with Cluster(bootstrap=without_login(secured)).client() as client:
        assert KafkaUsers(client).remove("gone", [MECHANISM])
    # The broker closes the connections of the session; one page may find that out before the next one logs in anew.
    until = time.monotonic() + 60
    while (found := ask(guarded, "GET", "/topics", headers=cookie))[0] != 303 and time.monotonic() < until:
        time.sleep(0.05)
    assert (found[0], found[2]["location"]) == (303, "/login?ended=1&next=%2Ftopics")


def test_idle_session_ends_and_the_page_says_so(over_tls: str, visitors: tuple[BrowserContext, BrowserContext]) -> None:
    page = visitors[0].new_page()
    log_in(page, over_tls, "alice")
    page.wait_for_url(lambda url: "/login" not in url)
    time.sleep(IDLE_S + 1)
    page.goto(f"{over_tls}/topics")
    expect(page.get_by_role("alert")).to_have_text("Your session has ended.")


def test_console_refuses_other_names_than_its_own(over_tls: str) -> None:
    assert ask(over_tls, "GET", "/login", headers={"Host": "evil.example"})[0] == 403
    assert ask(over_tls, "GET", "/login", headers={"Host": "localhost"})[0] == 200


def failed_logins(url: str, forwarded: Sequence[str], headers: Mapping[str, str] = MappingProxyType({})) -> set[int]:
    """The statuses of logins that fail, one for each X-Forwarded-For; some of them at once."""
    fields = {"user": "alice", "password": "wrong"}
    with ThreadPoolExecutor(12) as threads:
        sent = [{**headers, "X-Forwarded-For": one} for one in forwarded]
        return set(threads.map(lambda one: ask(url, "POST", "/login", fields, one)[0], sent))


def test_login_that_no_broker_judges_costs_no_attempt(secured: KorvetServer) -> None:
    """A listener without logins judges none."""
    with running_console("--bootstrap-server", without_login(secured), "--login", "--tls-terminated") as url:
        page = {"Origin": url.replace("http:", "https:")}
        fields, headers = {"user": "alice", "password": PASSWORD}, {**page, "X-Forwarded-For": "203.0.113.9"}
        answers = [ask(url, "POST", "/login", fields, headers) for _ in range(MOST_AT_ONCE + 1)]
    assert {status for status, _, _ in answers} == {503}
    assert "No broker can judge logins now" in answers[-1][1]


def test_addresses_that_a_visitor_claims_in_headers_of_its_own_give_it_no_more_logins() -> None:
    """A proxy may write a header behind those of the visitor, instead of another address into theirs."""
    with running_console("-b", "127.0.0.1:1", "--login", "--tls-terminated") as url:
        seen = []
        for number in range(11):
            with closing(http.client.HTTPConnection(urlsplit(url).netloc, timeout=60)) as connection:
                connection.putrequest("POST", "/login")
                for name, value in (("Content-Length", "0"), *FORM.items()):
                    connection.putheader(name, value)
                connection.putheader("X-Forwarded-For", f"192.0.2.{number}")
                connection.putheader("X-Forwarded-For", "203.0.113.9")
                connection.endheaders()
                seen.append(connection.getresponse().status)
    assert seen == [401] * 10 + [429]


def test_silent_clients_before_their_handshake_keep_nobody_out(over_tls: str) -> None:
    place = urlsplit(over_tls)
    with ExitStack() as held:
        to = (str(place.hostname), place.port or 0)
        silent = [
            held.enter_context(socket.create_connection(to, WITHIN_MS / 1000)) for _ in range(BOUNDS.connections + 1)
        ]
        assert silent[0].recv(1) == b""
        assert ask(over_tls, "GET", "/login")[0] == 200


def test_stranger_that_leaves_amid_a_form_writes_no_line(tmp_path: Path) -> None:
    file = tmp_path / "errors"
    with file.open("wb") as errors, running_console("-b", "127.0.0.1:1", "--login", errors=errors) as url:
        place = urlsplit(url)
        head = f"POST /login HTTP/1.1\r\nHost: {place.netloc}\r\nContent-Type: {FORM['Content-Type']}\r\n"
        with socket.create_connection((place.hostname, place.port)) as cut_off:
            cut_off.sendall(f"{head}Content-Length: 100\r\nExpect: 100-continue\r\n\r\n".encode())
            # The console reads the form once it says so.
            assert b"100 Continue" in cut_off.recv(1000)
            cut_off.sendall(b"user=")
        assert ask(url, "GET", "/login")[0] == 200
    assert file.read_text() == ""


@pytest.mark.parametrize(
    ("flags", "settings", "told"),
    [
        (["--listen", "0.0.0.0:0"], "", "listens on 127.0.0.1 or ::1; add --login"),
        (["--listen", "0.0.0.0:0", "--login"], "", "passwords would pass others unprotected"),
        (["--login", "--tls-cert", "a"], "", "--tls-cert and --tls-key go together"),
        (["--login", "--tls-cert", "a", "--tls-terminated"], "", "leaves certificates to the proxy"),
        (["--login", "--tls-cert", "/missing", "--tls-key", "/missing"], "", "TLS file /missing: no such file"),
        (["--operator", "a"], "", "--operator is for a console with --login"),
        (["--login", "--redis", "redis://127.0.0.1:1"], "", "--redis with --login is shown to nobody"),
        (["--login"], "security.protocol=SSL", "it is SASL_SSL or SASL_PLAINTEXT"),
        (["--login"], "sasl.mechanism=OAUTHBEARER", "it is PLAIN or SCRAM"),
        (
            ["--login", "-b", "broker.example"],
            "security.protocol=SASL_PLAINTEXT\nsasl.mechanism=PLAIN",
            "PLAIN would show visitors' passwords",
        ),
    ],
)
def test_console_that_would_show_too_much_does_not_start(
    flags: list[str], settings: str, told: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "client.properties"
    file.write_text(settings)
    assert run(["console", "--listen", "127.0.0.1:0", *flags, "--command-config", str(file)]) == 2
    assert told in capsys.readouterr().err
