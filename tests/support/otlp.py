"""A receiver of traces: a real HTTP server on loopback that decodes OTLP."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

WITHIN_S = 60.0


class Receiver:
    """What came, and whether it answers: while ``answers`` is not set, its clients wait."""

    def __init__(self) -> None:
        self.port = 0
        self.spans: list[Any] = []
        self.services: set[str] = set()
        self.answers = threading.Event()
        self.answers.set()
        self.asked = threading.Event()

    def take(self, path: str, data: bytes) -> None:
        assert path == "/v1/traces"
        for one in ExportTraceServiceRequest.FromString(data).resource_spans:
            named = [kept.value.string_value for kept in one.resource.attributes if kept.key == "service.name"]
            self.services.update(named)
            self.spans += [span for scope in one.scope_spans for span in scope.spans]

    def span_until(self, condition: Callable[[Any], bool], what: str) -> Any:
        """The first span for which a condition holds."""
        deadline = time.monotonic() + WITHIN_S
        while not (found := [span for span in list(self.spans) if condition(span)]):
            assert time.monotonic() < deadline, what
            time.sleep(0.05)
        return found[0]


def values(span: Any) -> dict[str, str | int]:
    """A span's attributes."""
    return {one.key: one.value.string_value or one.value.int_value for one in span.attributes}


@contextmanager
def receiver() -> Iterator[Receiver]:
    """A receiver until the block ends; ``127.0.0.1`` is its host."""
    told = Receiver()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            data = self.rfile.read(int(self.headers["content-length"]))
            told.asked.set()
            told.answers.wait(WITHIN_S)
            told.take(self.path, data)
            self.send_response(200)
            self.send_header("content-length", "0")
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    told.port = server.server_address[1]
    thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    try:
        yield told
    finally:
        told.answers.set()
        server.shutdown()
        server.server_close()
        thread.join()
