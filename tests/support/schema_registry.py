"""A schema registry on loopback: it answers for schemas by their ids, from files, as Confluent's does."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit


@dataclass
class SchemaRegistry:
    """``asked`` lists the paths of all requests. With a ``status`` it refuses them all."""

    url: str
    directory: Path
    asked: list[str] = field(default_factory=list)
    status: int | None = None

    def register(self, number: int, schema: Any, **others: Any) -> None:
        path = self.directory / "schemas" / "ids" / str(number)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps({"schema": json.dumps(schema), **others}))


@contextmanager
def running_registry(directory: Path, port: int = 0) -> Iterator[SchemaRegistry]:
    """Serve the directory until the block ends."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            path = urlsplit(self.path).path
            registry.asked.append(path)
            file = directory / path.lstrip("/")
            if registry.status is not None:
                self._answer(registry.status, {"error_code": registry.status, "message": "refused"})
            elif file.is_file():
                self._answer(200, json.loads(file.read_text()))
            else:
                self._answer(404, {"error_code": 40403, "message": "Schema not found"})

        def _answer(self, status: int, told: Any) -> None:
            body = json.dumps(told).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/vnd.schemaregistry.v1+json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", port), Handler)
    registry = SchemaRegistry(url=f"http://127.0.0.1:{server.server_port}", directory=directory)
    thread = threading.Thread(target=server.serve_forever, args=(0.05,))
    thread.start()
    try:
        yield registry
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
