"""Visits of the Python clients to a secured listener: one program, and one command for three clients.

`visit` takes `client`, `connect` (see `Connect` in tests/kafka/secured.py), `topic`, `group` and `values`. The client
writes the values, reads them as a member of the group, commits, and leaves. Its result are the values that it read. A
visit that the broker refuses fails with the client's own error. aiokafka and kafka-python take `seconds`, too: for that
time they write one value after another behind the others.
"""

import asyncio
import itertools
import logging
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import aiokafka
import kafka
from aiokafka.abc import AbstractTokenProvider as AiokafkaTokens
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer
from kafka.net.sasl.oauth import AbstractTokenProvider

from tests.kafka.drivers.serve import serve
from tests.kafka.drivers.settings import confluent_settings

WITHIN_S = 60.0
PAUSE_S = 0.05
"""Between two values of a time that is filled with them."""
FATAL = (KafkaError._AUTHENTICATION, KafkaError._SSL)
REFUSALS = ("SaslAuthenticationFailed", "CERTIFICATE_VERIFY_FAILED", "ALERT_UNKNOWN_CA")


class Complaint(Exception):
    """A client's error, and what its log told of it."""


class _Lines(logging.Handler):
    """The texts of the warnings that a library logs, apart from those of clients before, which may still try on."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.lines: list[str] = []
        self._others = {thread.ident for thread in threading.enumerate() if thread is not threading.current_thread()}

    def emit(self, record: logging.LogRecord) -> None:
        if record.thread not in self._others:
            self.lines.append(record.getMessage())


@contextmanager
def listening(name: str) -> Iterator[list[str]]:
    """Add a library's warnings to the error of the block: some libraries tell only there that a login was refused."""
    handler = _Lines()
    logger = logging.getLogger(name)
    logger.addHandler(handler)
    try:
        yield handler.lines
    except Exception as error:
        raise Complaint(f"{error!r}; {'; '.join(handler.lines[:20])}") from error
    finally:
        logger.removeHandler(handler)


def until_refused(visit: Callable[[], list[str]], lines: list[str]) -> list[str]:
    """The visit's result, or an error once the log tells of a refusal: kafka-python tries on for long."""
    outcomes: list[list[str] | Exception] = []

    def run() -> None:
        try:
            outcomes.append(visit())
        except Exception as error:
            outcomes.append(error)

    threading.Thread(target=run, daemon=True).start()
    while not outcomes and not any(word in line for line in list(lines) for word in REFUSALS):
        time.sleep(0.01)
    outcome = outcomes[0] if outcomes else Complaint("it was refused")
    if isinstance(outcome, Exception):
        raise outcome
    return outcome


class Visitor:
    """The driver. It has no member between two commands."""

    is_member = False

    def poll_member(self) -> None:
        """Do nothing."""

    def shut(self) -> None:
        """Do nothing."""

    def op_visit(self, client: str, topic: str, group: str, values: list[str], **more: Any) -> list[str]:
        if client == "aiokafka":
            with listening("aiokafka"):
                return asyncio.run(visit_aiokafka(topic, group, values, **more))
        if client == "kafka-python":
            with listening("kafka") as lines:
                return until_refused(lambda: visit_kafka_python(topic, group, values, **more), lines)
        return visit_confluent(topic, group, values, **more)


def filled(values: list[str], seconds: float) -> Iterator[str]:
    """The values, and then those that fill a time."""
    yield from values
    ends, numbers = time.monotonic() + seconds, itertools.count()
    while time.monotonic() < ends:
        yield f"load-{next(numbers)}"


# ------------------------------------------------------------------ librdkafka


def visit_confluent(
    topic: str,
    group: str,
    values: list[str],
    connect: dict[str, Any],
    transactional_id: str | None = None,
    group_protocol: str = "classic",
) -> list[str]:
    errors: list[Any] = []
    common = {**confluent_settings(connect), "error_cb": errors.append}
    producer = Producer({**common, **({} if transactional_id is None else {"transactional.id": transactional_id})})
    if transactional_id is not None:
        producer.init_transactions(WITHIN_S)
        producer.begin_transaction()
    for value in values:
        producer.produce(topic, value.encode(), on_delivery=lambda error, _: errors.append(error) if error else None)
    deadline = time.monotonic() + WITHIN_S
    while producer.flush(0.05) and not _is_refused(errors) and time.monotonic() < deadline:
        pass
    _raise(errors)
    if transactional_id is not None:
        producer.commit_transaction(WITHIN_S)
    settings = {"group.id": group, "auto.offset.reset": "earliest", "group.protocol": group_protocol}
    consumer = Consumer({**common, **settings})
    consumer.subscribe([topic])
    found: list[str] = []
    try:
        while len(found) < len(values) and not _is_refused(errors) and time.monotonic() < deadline:
            for message in consumer.consume(500, 0.05):
                if message.error() is not None:
                    errors.append(message.error())
                else:
                    found.append((message.value() or b"").decode())
        consumer.commit(asynchronous=False)
    finally:
        consumer.close()
    _raise(errors)
    return found


def _is_refused(errors: list[Any]) -> bool:
    return any(map(_is_fatal, errors))


def _is_fatal(error: Any) -> bool:
    # librdkafka tries on if the alert comes behind its own part of the handshake.
    return error.code() in FATAL or "SSL alert" in error.str()


def _raise(errors: list[Any]) -> None:
    for error in errors:
        if _is_fatal(error):
            raise KafkaException(error)
    if errors:
        raise KafkaException(errors[0])


# ------------------------------------------------------------------ aiokafka


class _AiokafkaToken(AiokafkaTokens):  # type: ignore[misc]
    def __init__(self, text: str) -> None:
        self._text = text

    async def token(self) -> str:
        return self._text


async def visit_aiokafka(
    topic: str, group: str, values: list[str], connect: dict[str, Any], seconds: float = 0.0
) -> list[str]:
    common: dict[str, Any] = _python_settings(connect)
    if connect["ca"] is not None:
        common["ssl_context"] = ssl.create_default_context(cafile=connect["ca"])
        if connect["cert"] is not None:
            common["ssl_context"].load_cert_chain(connect["cert"], connect["key"])
    if connect["token"] is not None:
        common["sasl_oauth_token_provider"] = _AiokafkaToken(connect["token"])
    producer, count = aiokafka.AIOKafkaProducer(**common), 0
    try:
        await producer.start()
        for value in filled(values, seconds):
            await producer.send_and_wait(topic, value.encode())
            count += 1
            await asyncio.sleep(PAUSE_S if seconds else 0)
    finally:
        await producer.stop()
    consumer = aiokafka.AIOKafkaConsumer(topic, **common, group_id=group, auto_offset_reset="earliest")
    found: list[str] = []
    try:
        await consumer.start()
        deadline = time.monotonic() + WITHIN_S
        while len(found) < count and time.monotonic() < deadline:
            for messages in (await consumer.getmany(timeout_ms=50)).values():
                found += [message.value.decode() for message in messages]
        await consumer.commit()
    finally:
        await consumer.stop()
    return found


# ------------------------------------------------------------------ kafka-python


class _Token(AbstractTokenProvider):  # type: ignore[misc]
    def __init__(self, text: str) -> None:
        self._text = text

    def token(self) -> str:
        return self._text


def visit_kafka_python(
    topic: str, group: str, values: list[str], connect: dict[str, Any], seconds: float = 0.0
) -> list[str]:
    common = _python_settings(connect)
    if connect["ca"] is not None:
        common |= {"ssl_cafile": connect["ca"], "ssl_certfile": connect["cert"], "ssl_keyfile": connect["key"]}
    if connect["token"] is not None:
        common["sasl_oauth_token_provider"] = _Token(connect["token"])
    producer = kafka.KafkaProducer(**common)
    sent: list[Any] = []
    try:
        for value in filled(values, seconds):
            sent.append(producer.send(topic, value.encode()))
            time.sleep(PAUSE_S if seconds else 0)
        for future in sent:
            future.get(timeout=WITHIN_S)
    finally:
        producer.close()
    consumer = kafka.KafkaConsumer(topic, **common, group_id=group, auto_offset_reset="earliest")
    found: list[str] = []
    try:
        deadline = time.monotonic() + WITHIN_S
        while len(found) < len(sent) and time.monotonic() < deadline:
            for messages in consumer.poll(timeout_ms=5000 if not found else 100).values():
                found += [message.value.decode() for message in messages]
        consumer.commit()
    finally:
        consumer.close()
    return found


def _python_settings(connect: dict[str, Any]) -> dict[str, Any]:
    """The settings that aiokafka and kafka-python share."""
    told = {
        "bootstrap_servers": connect["bootstrap"],
        "security_protocol": connect["protocol"],
        "sasl_mechanism": connect["mechanism"],
        "sasl_plain_username": connect["user"],
        "sasl_plain_password": connect["password"],
    }
    return {name: value for name, value in told.items() if value is not None}


if __name__ == "__main__":
    serve(Visitor(), lambda error: getattr(error, "errno", -1))
