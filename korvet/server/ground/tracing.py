"""Traces of requests, for a receiver of OpenTelemetry (OTLP by HTTP).

OpenTelemetry's own variables configure them, and nothing is imported without an endpoint. A span is made when its
request is answered, and a thread sends spans in batches. If the receiver is slow or unavailable, spans are dropped, and
no request waits. The sampler follows the ``traceparent`` of a Produce's first record, if there is one, else it decides
by chance.

Source: https://opentelemetry.io/docs/specs/semconv/messaging/kafka/, https://www.w3.org/TR/trace-context/
"""

from __future__ import annotations

import logging
import os
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from importlib import import_module
from time import time_ns
from typing import TYPE_CHECKING, Final, cast

import anyio
import anyio.to_thread
from kio.schema.errors import ErrorCode

import korvet
from korvet.api import Api
from korvet.errors import ConfigError
from korvet.rate_limited_log import RateLimitedLog
from korvet.wire import requests
from korvet.wire.first_record import first_header
from korvet.wire.schema import FETCH_KEY, PRODUCE_KEY

if TYPE_CHECKING:
    from opentelemetry.context import Context as Parent
    from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
    from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult
    from opentelemetry.util.types import AttributeValue

    from korvet.api.shared.context import Context

_ENDPOINTS: Final = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")
_PROTOCOLS: Final = ("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL")
_PROTOCOL: Final = "http/protobuf"
_RATIO: Final = 0.01
"""The share of requests traced without OTEL_TRACES_SAMPLER; OpenTelemetry's default is all."""
_MOST_TEXT: Final = 256
"""The length limit of an attribute: clients choose ids of up to 32 KiB."""
_MOST_PARENT_BYTES: Final = 512
"""A longer header is ignored: the time of OpenTelemetry's expression may grow with the square of its length."""
_ENDS_S: Final = 2.0
_OPERATIONS: Final = {PRODUCE_KEY: ("produce", "send"), FETCH_KEY: ("fetch", "receive")}


def endpoint(environ: Mapping[str, str]) -> str | None:
    """The endpoint for traces; None without tracing.

    :raises ConfigError: the variables want something that korvet lacks.
    """
    found = next((environ[name] for name in _ENDPOINTS if environ.get(name)), None)
    is_off = environ.get("OTEL_SDK_DISABLED", "").lower() == "true" or environ.get("OTEL_TRACES_EXPORTER") == "none"
    if found is None or is_off:
        return None
    protocol = next((environ[name] for name in _PROTOCOLS if environ.get(name)), _PROTOCOL)
    if protocol != _PROTOCOL:
        raise ConfigError(f"traces go by {_PROTOCOL} only, and OTEL_EXPORTER_OTLP_PROTOCOL is {protocol!r}")
    try:
        for needed in ("opentelemetry.exporter.otlp.proto.http.trace_exporter", "opentelemetry.sdk.trace"):
            import_module(needed)
    except ImportError:
        raise ConfigError("OTEL_EXPORTER_OTLP_ENDPOINT is set: install korvet[otel], or unset it") from None
    return found


class Trace:
    """A request that may become a span; ``began_ns`` is its arrival, since 1970."""

    __slots__ = ("began_ns", "code")

    def __init__(self) -> None:
        self.began_ns = time_ns()
        self.code = 0
        """The first error code that its answer shows."""


class Tracing:
    """The traces of a process. Make one by `opened_tracing`."""

    def __init__(self, provider: TracerProvider) -> None:
        from opentelemetry.trace import SpanKind, Status, StatusCode
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

        self._provider = provider
        self._tracer = provider.get_tracer("korvet", korvet.__version__)
        self._kind = SpanKind.SERVER
        self._failed = Status(StatusCode.ERROR)
        self._context_of = TraceContextTextMapPropagator().extract

    def answered(self, trace: Trace, api: Api | None, context: Context | None, request: requests.Entity | None) -> None:
        """Make the span of an answered request, if the sampler wants it."""
        if api is None or context is None:
            return
        name, kind = _OPERATIONS.get(api.key, (api.name, ""))
        parent = (
            self._parent(cast(requests.ProduceRequest, request))
            if api.key == PRODUCE_KEY and request is not None
            else None
        )
        span = self._tracer.start_span(name, parent, self._kind, start_time=trace.began_ns)
        if span.is_recording():
            topic, partition = ("", "") if request is None else _destination(api.key, context, request)
            if topic:
                span.update_name(f"{name} {topic}")
            attributes = {
                "messaging.system": "kafka",
                "messaging.operation.name": name,
                "messaging.operation.type": kind,
                "messaging.destination.name": topic,
                "messaging.destination.partition.id": partition,
                "messaging.client.id": context.client_id or "",
                "messaging.consumer.group.name": getattr(request, "group_id", None) or "",
                "client.address": context.client_host,
                "korvet.namespace": context.frontend.namespace.name,
                "error.type": _error_name(trace.code),
            }
            span.set_attributes({key: value for key, value in attributes.items() if value})
            span.set_attribute("korvet.api.version", context.version)
            if trace.code:
                span.set_status(self._failed)
        span.end()

    def _parent(self, request: requests.ProduceRequest) -> Parent | None:
        """The trace of a Produce's first record; None if it has none."""
        for topic in request.topic_data[:1]:
            for part in topic.partition_data[:1]:
                header = first_header(part.records, b"traceparent") if part.records else None
                if header is not None and len(header) <= _MOST_PARENT_BYTES:
                    return self._context_of({"traceparent": header.decode("latin-1")})
        return None


@asynccontextmanager
async def opened_tracing(worker: int) -> AsyncIterator[Tracing | None]:
    """The tracing of this process for the time of the block; None if the environment configures none.

    At the end it sends the remaining spans, for two seconds at most.

    :raises ConfigError: as `endpoint` does.
    """
    where = endpoint(os.environ)
    if where is None:
        yield None
        return
    provider = _provider(worker, where)
    try:
        yield Tracing(provider)
    finally:
        with anyio.CancelScope(shield=True), anyio.move_on_after(_ENDS_S):
            await anyio.to_thread.run_sync(provider.shutdown, abandon_on_cancel=True)


def _provider(worker: int, where: str) -> TracerProvider:
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
    from opentelemetry.sdk.resources import OTELResourceDetector, Resource
    from opentelemetry.sdk.trace import SpanLimits, TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor
    from opentelemetry.sdk.trace.sampling import ParentBased, TraceIdRatioBased

    # It logs each attempt; `_reported` logs what matters.
    logging.getLogger("opentelemetry").setLevel(logging.CRITICAL + 1)
    own: dict[str, AttributeValue] = {
        "service.name": "korvet",
        "service.version": korvet.__version__,
        "korvet.worker": worker,
    }
    provider = TracerProvider(
        sampler=None if os.environ.get("OTEL_TRACES_SAMPLER") else ParentBased(TraceIdRatioBased(_RATIO)),
        resource=Resource(own).merge(OTELResourceDetector().detect()),
        span_limits=SpanLimits(max_attribute_length=_MOST_TEXT),
        shutdown_on_exit=False,
    )
    provider.add_span_processor(BatchSpanProcessor(_reported(OTLPSpanExporter(), where)))
    return provider


def _reported(exporter: SpanExporter, where: str) -> SpanExporter:
    """The same exporter, with a line in the log when spans are lost."""
    from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult

    lines = RateLimitedLog()

    class Reported(SpanExporter):
        def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
            try:
                result = exporter.export(spans)
            except Exception:
                # The processor's own line about it is silenced, as are the exporter's.
                result = SpanExportResult.FAILURE
            if result is not SpanExportResult.SUCCESS:
                lines.write("warning", "traces cannot be sent; they are dropped", endpoint=where)
            return result

        def shutdown(self) -> None:
            exporter.shutdown()

        def force_flush(self, timeout_millis: int = 30_000) -> bool:
            return exporter.force_flush(timeout_millis)

    return Reported()


def _destination(api_key: int, context: Context, request: requests.Entity) -> tuple[str, str]:
    """The topic of a Produce or a Fetch, and its partition; empty if there are several, or none."""
    if api_key == PRODUCE_KEY:
        produced = cast(requests.ProduceRequest, request).topic_data[:2]
        topics = [(one.topic_id, one.name, [part.index for part in one.partition_data[:2]]) for one in produced]
    elif api_key == FETCH_KEY:
        fetched = cast(requests.FetchRequest, request).topics[:2]
        topics = [(one.topic_id, one.topic, [part.partition for part in one.partitions[:2]]) for one in fetched]
    else:
        return "", ""
    if len(topics) != 1:
        return "", ""
    ((topic_id, name, indexes),) = topics
    known = None if topic_id is None else context.frontend.catalog.topic_by_id(topic_id)
    return name if known is None else known.name, str(indexes[0]) if len(indexes) == 1 else ""


def _error_name(code: int) -> str:
    try:
        return ErrorCode(code).name.upper() if code else ""
    except ValueError:
        return str(code)
