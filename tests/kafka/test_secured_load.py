"""Secured clients under load: sessions end; certificates, keys, passwords and rules rotate; a load balancer."""

from __future__ import annotations

import signal
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path
from uuid import uuid4

import pytest
from confluent_kafka import KafkaError, Producer
from confluent_kafka.admin import AdminClient

from korvet.security.authorizer import STANDARD
from korvet.security.protocol import Security
from korvet.server.ground.settings import ListenerSettings
from tests.kafka.drivers.settings import confluent_settings
from tests.kafka.secured import PASSWORD, USER, Connect, Fleet, Visitors, add_user, running_fleet
from tests.kafka.waiting import poll_until
from tests.support.broker import KorvetServer, running_broker
from tests.support.certificates import Authority
from tests.support.haproxy import HAProxy
from tests.support.ports import free_port
from tests.support.tenants import korvet

SESSION_MS = 4000
LOAD_S = 9
WITHIN_S = 60.0
LONG_VISITS = ("java", "kafkajs", "aiokafka", "kafka-python")
"""Clients that write for so long that their sessions end. aiokafka then connects anew, the others log in again."""
RIGHTS = {"authorizer.class.name": STANDARD, "super.users": "User:admin"}


@pytest.fixture(scope="module")
def visitors() -> Iterator[Visitors]:
    visitors = Visitors()
    yield visitors
    visitors.stop()


class Load:
    """A producer of librdkafka that writes without a pause, for the time of the block."""

    def __init__(self, way: Connect, topic: str, fleet: Fleet) -> None:
        settings = confluent_settings({name: getattr(way, name) for name in Connect.__slots__})
        if way.token is not None:
            # librdkafka asks for the next token after four fifths of this time.
            settings["oauth_cb"] = lambda _: (fleet.issuer.token(USER), time.time() + SESSION_MS / 1000)
        self.errors: list[object] = []
        self.written = 0
        self._producer = Producer({**settings, "error_cb": self._told})
        self._topic = topic
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> Load:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._ended.is_set():
            self._producer.produce(self._topic, b"value", on_delivery=self._delivered)
            self._producer.poll(0.01)
        if self._producer.flush(WITHIN_S):
            self.errors.append("records without an outcome")

    def _told(self, error: KafkaError) -> None:
        # A session may end before a client on a busy machine renews it; then the client connects again.
        if error.code() in (KafkaError._AUTHENTICATION, KafkaError._SSL):
            self.errors.append(error)

    def _delivered(self, error: KafkaError | None, _message: object) -> None:
        if error is None:
            self.written += 1
        else:
            self.errors.append(error)


def rotate_certificate(fleet: Fleet) -> None:
    """Put a new certificate in place, as an operator does."""
    pair = fleet.authority.server()
    for listener in fleet.broker.listeners:
        if listener.tls_cert is not None and listener.tls_key is not None:
            pair.cert.replace(listener.tls_cert)
            pair.key.replace(listener.tls_key)
            break
    read = fleet.broker.log.count("TLS files read")
    assert fleet.broker.process is not None
    fleet.broker.process.send_signal(signal.SIGHUP)
    deadline = time.monotonic() + WITHIN_S
    while fleet.broker.log.count("TLS files read") == read:
        assert time.monotonic() < deadline, fleet.broker.log[-2000:]
        time.sleep(0.05)


def rotate_rules(fleet: Fleet, client: AdminClient) -> None:
    """Allow by prefixes what was allowed by the wildcard, and then take that away."""
    prefixed = ("--topic", "load-", "--group", "group-load-", "--resource-pattern-type", "prefixed")
    korvet(fleet.broker, "acls", "add", "--allow-principal", f"User:{USER}", "--operation", "All", *prefixed)
    korvet(fleet.broker, "acls", "remove", "--topic", "*", "--group", "*", "--execute")
    poll_until(lambda: not sees(client, "other"), "the rule that was taken away")


def sees(client: AdminClient, topic: str) -> bool:
    """Whether the rules let a client see a topic."""
    error = client.list_topics(topic, timeout=WITHIN_S).topics[topic].error
    return error is None or error.code() != KafkaError.TOPIC_AUTHORIZATION_FAILED


def test_sessions_certificates_keys_passwords_and_rules_change_under_load(tmp_path: Path, visitors: Visitors) -> None:
    """alice gets a new password for another mechanism, and her clients with the former one go on."""
    with ExitStack() as stack:
        fleet = stack.enter_context(running_fleet(tmp_path, {"connections.max.reauth.ms": str(SESSION_MS), **RIGHTS}))
        ways = [fleet.way(Security.SASL_TLS, name) for name in ("SCRAM-SHA-256", "OAUTHBEARER")]
        everything = ("--operation", "All", "--topic", "*", "--group", "*")
        korvet(fleet.broker, "acls", "add", "--allow-principal", f"User:{USER}", *everything)
        admin = AdminClient(confluent_settings(asdict(ways[0])))
        poll_until(lambda: sees(admin, "load-0"), "the rule that allows everything")
        loads = [stack.enter_context(Load(way, f"load-{number}", fleet)) for number, way in enumerate(ways)]
        pool = stack.enter_context(ThreadPoolExecutor(len(LONG_VISITS)))
        visits: dict[str, Future[list[str]]] = {}
        for client in LONG_VISITS:
            own = Visitors()
            stack.callback(own.stop)
            visits[client] = pool.submit(own.visit, client, ways[0], f"load-{client}", [], seconds=LOAD_S)
        time.sleep(1)
        rotate_certificate(fleet)
        rotate_rules(fleet, admin)
        fleet.issuer.rotate(keeps_old=True)
        add_user(fleet.broker, USER, "SCRAM-SHA-512", "another")
        new = fleet.way(Security.SASL_TLS, "SCRAM-SHA-512", password="another")
        assert visitors.visit("confluent-kafka", new, "load-new", ["one"]) == ["one"]
        for client, visit in visits.items():
            found = visit.result(WITHIN_S * 3)
            assert found == [f"load-{number}" for number in range(len(found))], client
            assert len(found) > 2, client
        for load in loads:
            load.__exit__()
        assert [load.errors for load in loads] == [[], []]
        assert min(load.written for load in loads) > LOAD_S
        for line in ("login failed", "Traceback"):
            assert line not in fleet.broker.log


# ------------------------------------------------------------------ behind a load balancer


class Balanced:
    """A broker whose two listeners are behind HAProxy: it passes TLS through, or ends it."""

    def __init__(self, broker: KorvetServer, authority: Authority, balancers: Sequence[HAProxy]) -> None:
        self.broker = broker
        self._authority = authority
        self._balancers = dict(zip(("passed", "terminated"), balancers, strict=True))

    def way(self, kind: str) -> Connect:
        return Connect(
            bootstrap=self._balancers[kind].bootstrap,
            protocol="SASL_SSL",
            ca=str(self._authority.cert),
            mechanism="SCRAM-SHA-512",
            user=USER,
            password=PASSWORD,
        )


@pytest.fixture(scope="module")
def balanced(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Balanced]:
    directory = tmp_path_factory.mktemp("balanced")
    authority = Authority.make(directory)
    pair = authority.server()
    both = directory / "both.pem"
    both.write_bytes(pair.cert.read_bytes() + pair.key.read_bytes())
    words = [
        {"proxy": "check-ssl verify none"},
        {"bind": f"ssl crt {both}", "proxy": "proxy-v2-options ssl,cert-cn,authority"},
    ]
    with ExitStack() as stack:
        ports = [free_port(), free_port()]
        balancers = []
        for port, more in zip(ports, words, strict=True):
            place = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="kv")))
            balancers.append(HAProxy(place, [port], **more))
            stack.callback(balancers[-1].stop)
            balancers[-1].start()
        listeners = [
            ListenerSettings(
                name=f"outside-{number}",
                port=port,
                security=Security.SASL_TLS,
                sasl=("SCRAM-SHA-512",),
                proxy_protocol=True,
                advertised_host="127.0.0.1",
                advertised_port=balancer.address[1],
                advertised_last_port=balancer.address[2],
                tls_terminated=number == 1,
                tls_cert=None if number == 1 else str(pair.cert),
                tls_key=None if number == 1 else str(pair.key),
            )
            for number, (port, balancer) in enumerate(zip(ports, balancers, strict=True))
        ]
        settings = {"group.initial.rebalance.delay.ms": "0"}
        broker = stack.enter_context(running_broker(listeners=listeners, broker=settings))
        add_user(broker, USER, "SCRAM-SHA-512", PASSWORD)
        for balancer in balancers:
            balancer.wait_until_up()
        yield Balanced(broker, authority, balancers)


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
@pytest.mark.parametrize("client", ["java", "confluent-kafka"])
@pytest.mark.parametrize("kind", ["passed", "terminated"])
def test_transactions_and_groups_work_over_sasl_tls_behind_haproxy(
    balanced: Balanced, visitors: Visitors, kind: str, client: str, protocol: str
) -> None:
    topic = f"visit-{uuid4().hex[:12]}"
    more = {"transactional_id": f"id-{topic}", "group_protocol": protocol}
    assert visitors.visit(client, balanced.way(kind), topic, ["one", "two"], **more) == ["one", "two"]
    assert "Traceback" not in balanced.broker.log
