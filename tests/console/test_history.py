"""The lag of the last hour: which ports may be asked for it, and what of their answers is taken."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from threading import Thread

import pytest

from korvet.cli.console.history import UNKNOWN, History, lag_history
from korvet.cli.console.sources import Sources
from korvet.cli.console.start import Way, start
from korvet.cli.ground.cluster import Cluster
from korvet.errors import ConfigError


@contextmanager
def answering(text: str) -> Iterator[str]:
    """The URL of a server that gives this answer."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.end_headers()
            self.wfile.write(text.encode())

        def log_message(self, format: str, *args: object) -> None:
            """Write nothing."""

    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()


def history_of(text: str) -> History:
    with answering(text) as url:
        return lag_history([url], {"locator": "default/consumer-groups/g"}, "g", ["t"])


def test_lags_of_a_port_are_taken() -> None:
    told = history_of('{"times": [1.5, 61.5], "topics": {"t": [null, 3], "other": [1, 1]}}')
    assert (told.times, told.lags) == ([1.5, 61.5], [None, 3])


@pytest.mark.parametrize(
    "answer",
    [
        "ok",
        "[]",
        '{"times": ["now"], "topics": {"t": [1]}}',
        '{"times": [NaN], "topics": {"t": [1]}}',
        '{"times": [1], "topics": {"t": ["1"]}}',
        '{"times": [1], "topics": {"t": [1, 2]}}',
        '{"times": [1], "topics": {"t": 1}}',
        '{"times": [1], "topics": {"t": [1e999]}}',
    ],
)
def test_answer_without_lags_is_none(answer: str) -> None:
    assert history_of(answer) == History(note=UNKNOWN)


@pytest.mark.parametrize(
    "url",
    [
        "127.0.0.1:9464",
        "http://",
        "http://127.0.0.1:many",
        "http://127.0.0.1:9464/metrics",
        "http://user:password@127.0.0.1:9464",
        "http://127.0.0.1:9464/?a=b",
        "http://[::1",
        "http://a b:1",
    ],
)
def test_url_that_is_no_port_is_refused_at_the_start(url: str) -> None:
    with pytest.raises(ConfigError, match=r"--metrics .* no front-end's HTTP port"):
        start("127.0.0.1:0", Way(sources=Sources(metrics=(url,))), None, Cluster())
