"""The schema registry: Avro schemas by the ids that values carry. Only the driver queries it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import lru_cache
from time import monotonic
from typing import Any, Final
from urllib.parse import urlsplit

from korvet.pipeline.errors import Passing, PipelineError

_TIMEOUT_S: Final = 10.0
_WITHIN_S: Final = 60.0
"""For all schemas of a batch."""
_MOST_KEPT: Final = 1000
_MOST_UNKNOWN: Final = 10_000
_UNKNOWN_FOR_S: Final = 60.0
"""For so long an unknown id is not requested again: any producer's values may name it."""
_UNKNOWN_SCHEMA: Final = 40403
_TOO_MANY_REQUESTS: Final = 429


@dataclass(frozen=True, slots=True, kw_only=True)
class Registered:
    """A schema of the registry. ``kind`` is AVRO, JSON or PROTOBUF."""

    id: int
    text: str
    kind: str = "AVRO"
    has_references: bool = False


class Registry:
    """A connection to a registry, for any thread. A schema never changes, so it keeps some, and unknown ids for a time.

    :param url: ``http`` or ``https``, with ``USER:PASSWORD@`` before the host if the registry requires a login.
    :param clock: seconds.
    :raises PipelineError: if it is no such URL, or the client's packages are missing.
    """

    def __init__(self, url: str, clock: Callable[[], float] = monotonic) -> None:
        self._clock = clock
        self._address = _address(url)
        try:
            import fastavro  # noqa: F401 - reads the values, in the executors too
            from confluent_kafka.schema_registry import SchemaRegistryClient
        except ImportError:
            raise PipelineError("schema registry: packages are missing; install korvet[avro]") from None
        self._client: Any = SchemaRegistryClient(
            {"url": url, "timeout": _TIMEOUT_S, "max.retries": 1, "retries.wait.ms": 200, "retries.max.wait.ms": 500}
        )
        self._lock = threading.Lock()
        self._kept: dict[int, Registered] = {}
        self._unknown: dict[int, float] = {}
        """The moment until which an id counts as unknown. The first ones end first."""

    def schemas(self, ids: Iterable[int]) -> dict[int, Registered]:
        """The schemas of these ids, without ids that are unknown to the registry.

        :raises Passing: if the registry does not answer, or has no time.
        :raises PipelineError: if it refuses.
        """
        deadline = self._clock() + _WITHIN_S
        found = {}
        for number in ids:
            if self._clock() > deadline:
                raise Passing(f"schema registry {self._address}: it answers too slowly")
            found[number] = self._schema(number)
        return {number: schema for number, schema in found.items() if schema is not None}

    def ask_again(self) -> None:
        """Forget which ids were unknown."""
        with self._lock:
            self._unknown.clear()

    def _schema(self, number: int) -> Registered | None:
        with self._lock:
            if number in self._kept:
                return self._kept[number]
            if self._unknown.get(number, 0.0) > self._clock():
                return None
        # Other topics do not wait for the answer.
        answer = self._fetch(number)
        with self._lock:
            self._unknown.pop(number, None)
            if answer is None:
                if len(self._unknown) >= _MOST_UNKNOWN:
                    del self._unknown[next(iter(self._unknown))]
                self._unknown[number] = self._clock() + _UNKNOWN_FOR_S
                return None
            if len(self._kept) >= _MOST_KEPT:
                self._kept.clear()
            # The client would keep all of them.
            self._client.clear_caches()
            self._kept[number] = answer
        return answer

    def _fetch(self, number: int) -> Registered | None:
        from confluent_kafka.schema_registry.error import SchemaRegistryError

        try:
            answer = self._client.get_schema(number)
        except SchemaRegistryError as error:
            if error.error_code == _UNKNOWN_SCHEMA:
                return None
            kind = Passing if error.http_status_code in (408, _TOO_MANY_REQUESTS) else PipelineError
            kind = Passing if error.http_status_code >= 500 else kind
            raise kind(
                f"schema registry {self._address}: it does not return schema {number}: {error.error_message} "
                f"(HTTP {error.http_status_code})"
            ) from None
        except Exception as error:
            # The client lets errors of its library for HTTP through, and of answers that are no JSON.
            raise Passing(f"schema registry {self._address}: it does not answer: {error!r}") from None
        return Registered(
            id=number,
            text=answer.schema_str or "",
            kind=answer.schema_type or "AVRO",
            has_references=bool(answer.references),
        )


def _address(url: str) -> str:
    """The URL's scheme, host and port, without a password."""
    try:
        parts = urlsplit(url)
        port = "" if parts.port is None else f":{parts.port}"
    except ValueError:
        parts, port = urlsplit(""), ""
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise PipelineError("schema registry: its address is no URL of http or https")
    return f"{parts.scheme}://{parts.hostname}{port}"


@lru_cache(maxsize=4)
def registry(url: str) -> Registry:
    """The registry of a URL, the same one each time."""
    return Registry(url)
