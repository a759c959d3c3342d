"""Moto's server as an object store that knows no conditional writes: it overwrites objects, whatever a client asks."""

from __future__ import annotations

from typing import Any
from unittest.mock import patch

from moto import server
from moto.moto_server.werkzeug_app import DomainDispatcherApplication


class Careless(DomainDispatcherApplication):
    def __call__(self, environ: dict[str, Any], start_response: Any) -> Any:
        environ.pop("HTTP_IF_NONE_MATCH", None)
        return super().__call__(environ, start_response)


if __name__ == "__main__":
    with patch.object(server, "DomainDispatcherApplication", Careless):
        server.main()
