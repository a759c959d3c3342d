"""A bucket of S3 keeps the rules of `test_objects`."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from uuid import uuid4

import pytest

from korvet.tier.objects import Objects, TierAway, open_objects
from tests.support.object_store import ObjectStore, running_object_store
from tests.tier import test_objects as rules

pytestmark = pytest.mark.anyio

RULES: list[Callable[[Objects], Awaitable[None]]] = [
    rules.test_store_that_keeps_the_rules_passes_its_trial,
    rules.test_ranges_of_an_object_are_read,
    rules.test_objects_are_listed_by_the_begin_of_their_names,
    rules.test_put_may_be_repeated_but_replaces_nothing,
    rules.test_one_of_many_puts_at_once_wins,
    rules.test_deleted_object_is_missing_and_may_be_deleted_again,
    rules.test_prefix_has_one_owner_until_another_takes_over,
    rules.test_one_of_many_claims_wins_and_all_learn_it,
    rules.test_damaged_owner_is_no_free_prefix,
]


@pytest.fixture(scope="module")
def object_store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ObjectStore]:
    with running_object_store(tmp_path_factory.mktemp("s3")) as store:
        yield store


@pytest.fixture
def environment(object_store: ObjectStore, monkeypatch: pytest.MonkeyPatch) -> ObjectStore:
    """The environment of a user of the bucket."""
    for name, value in object_store.environment.items():
        monkeypatch.setenv(name, value)
    return object_store


@pytest.mark.parametrize("rule", RULES)
async def test_bucket_keeps(rule: Callable[[Objects], Awaitable[None]], environment: ObjectStore) -> None:
    await rule(open_objects(f"s3://{environment.bucket}/{uuid4().hex}"))


async def test_bucket_that_is_not_there_or_not_reached_is_away(
    environment: ObjectStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    absent = open_objects("s3://no-such-bucket/prefix")
    for call in (absent.put("a", [b"x"]), absent.read("a", 0, 1), absent.owner("ns")):
        with pytest.raises(TierAway, match=r"^s3://no-such-bucket/prefix: there is no such bucket$"):
            await call
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:1")
    unreached = open_objects(f"s3://{environment.bucket}/prefix")
    for call in (unreached.put("a", [b"x"]), unreached.read("a", 0, 1), unreached.delete("a"), unreached.owner("ns")):
        with pytest.raises(TierAway, match=r"^s3://") as caught:
            await call
        assert "\n" not in str(caught.value)


@contextmanager
def refusing_bucket(status: int, code: str, missing_bytes: int = 0) -> Iterator[str]:
    """The endpoint of a store with one answer for all requests.

    :param missing_bytes: those that the connection's end cuts off.
    """

    class Refusing(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.rfile.read(int(self.headers.get("Content-Length", 0)))
            body = f"<Error><Code>{code}</Code><Message>of the store</Message></Error>".encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(body) + missing_bytes))
            self.send_header("Content-Range", f"bytes 0-{len(body) + missing_bytes - 1}/1000")
            self.send_header("ETag", '"1"')
            self.send_header("Last-Modified", "Sun, 06 Nov 1994 08:49:37 GMT")
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(body)

        do_PUT = do_HEAD = do_DELETE = do_POST = do_GET

        def log_message(self, format: str, *args: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Refusing) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


@pytest.mark.parametrize(
    ("status", "code"),
    [
        (403, "AccessDenied"), (403, "InvalidAccessKeyId"), (500, "InternalError"), (503, "SlowDown"),
        (507, "XMinioStorageFull"), (400, "ExpiredToken"),
    ],
)  # fmt: skip
async def test_bucket_that_refuses_is_away_and_has_no_missing_objects(
    monkeypatch: pytest.MonkeyPatch, status: int, code: str
) -> None:
    for name, value in ObjectStore(endpoint="", bucket="").environment.items():
        monkeypatch.setenv(name, value)
    with refusing_bucket(status, code) as endpoint:
        monkeypatch.setenv("AWS_ENDPOINT_URL", endpoint)
        bucket = open_objects("s3://bucket/prefix")
        for call in (
            bucket.put("a", [b"x"]), bucket.read("a", 0, 1), bucket.delete("a"), bucket.owner("ns"), bucket.names("a"),
            bucket.beginning("a", "b"), bucket.try_out(),
        ):  # fmt: skip
            with pytest.raises(TierAway, match=rf"^s3://bucket/prefix.*\b({code}|{status})\b") as caught:
                await call
            assert "\n" not in str(caught.value)
        with pytest.raises(TierAway) as again:
            await bucket.try_out()
        assert str(again.value) == str(caught.value)  # so the log has it once


async def test_answer_of_a_bucket_that_ends_early_is_no_shorter_object(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in ObjectStore(endpoint="", bucket="").environment.items():
        monkeypatch.setenv(name, value)
    with refusing_bucket(206, "", missing_bytes=10) as endpoint:
        monkeypatch.setenv("AWS_ENDPOINT_URL", endpoint)
        with pytest.raises(TierAway):
            await open_objects("s3://bucket/prefix").read("a", 0, 1000)
