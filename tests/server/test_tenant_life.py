"""A tenant's life: suspended, deleted, made again, with users that come and go."""

from __future__ import annotations

import ssl
import time

import pytest

from korvet.store.keys import TENANTS
from tests.server.choosing import BOTH, failure
from tests.server.sasl_session import Session
from tests.support.broker import KorvetServer
from tests.support.issuer import Issuer
from tests.support.tenants import (
    PASSWORD,
    Client,
    CommandFailed,
    connected,
    create_tenant,
    korvet,
    make_topic,
    topics_of,
)
from tests.support.waiting import until


@pytest.fixture(scope="module")
def broker(tenants_broker: KorvetServer) -> KorvetServer:
    return tenants_broker


def test_suspended_tenant_loses_its_connections_and_gets_them_back(broker: KorvetServer) -> None:
    create_tenant(broker, "soon")
    with connected(broker.port, login="alice@soon") as client, connected(broker.port, login="alice@acme") as other:
        assert make_topic(client, "kept") == "NONE"
        korvet(broker, "tenants", "suspend", "soon")
        assert client.is_closed()
        assert failure(broker, "alice@soon") == failure(broker, "alice@acme", "wrong")
        assert topics_of(other) is not None
    korvet(broker, "tenants", "resume", "soon")

    def is_in() -> bool:
        with connected(broker.port) as client:
            return bool(client.log_in("alice@soon")["error_code"] == "NONE" and topics_of(client) == {"kept"})

    until(is_in)


def test_new_user_may_log_in_at_once_and_a_deleted_one_is_cut_off(broker: KorvetServer) -> None:
    korvet(broker, "users", "add", "dave", "--namespace", "acme", stdin=PASSWORD)
    with connected(broker.port, login="dave@acme") as client, connected(broker.port, login="alice@acme") as other:
        assert topics_of(client) is not None
        korvet(broker, "users", "remove", "--execute", "dave", "--namespace", "acme")
        assert client.is_closed()
        assert topics_of(other) is not None


def test_deleted_tenant_leaves_no_key_and_its_name_can_be_used_again(broker: KorvetServer) -> None:
    create_tenant(broker, "gone")
    with connected(broker.port, login="alice@gone") as client:
        make_topic(client, "t", 3)
        assert "keys" in korvet(broker, "tenants", "delete", "gone", "--dry-run")
        with pytest.raises(CommandFailed, match=r": 1$"):
            korvet(broker, "tenants", "create", "gone")
        korvet(broker, "tenants", "delete", "gone", "--execute")
        assert client.is_closed()
    with broker.redis() as redis:
        assert list(redis.scan_iter(match="korvet:{gone:*")) == []
    assert "gone" not in korvet(broker, "tenants", "list")
    create_tenant(broker, "gone")

    def is_empty() -> bool:
        with connected(broker.port) as client:
            return bool(client.log_in("alice@gone")["error_code"] == "NONE" and topics_of(client) == set())

    until(is_empty)


def test_half_done_login_does_not_enter_a_later_tenant_of_the_same_name(broker: KorvetServer) -> None:
    create_tenant(broker, "again")
    with Session(broker.port) as half, broker.redis() as redis:
        half.begin("SCRAM-SHA-256")
        final = half.scram_final("alice@again", PASSWORD, "SCRAM-SHA-256")
        # The steps of a deletion, without its pause.
        _, tenant_id = redis.fcall("korvet_tenant_switch", 1, TENANTS.tenants, "again", "deleting")
        redis.delete(*redis.scan_iter(match="korvet:{again:*"))
        redis.fcall("korvet_tenant_forget", 1, TENANTS.tenants, "again", tenant_id)
        create_tenant(broker, "again")

        def is_known() -> bool:
            with connected(broker.port) as client:
                return bool(client.log_in("alice@again")["error_code"] == "NONE")

        until(is_known)
        assert half.step(final)["error_code"] == "SASL_AUTHENTICATION_FAILED"
        assert half.is_closed()


def test_clients_that_leave_while_they_enter_do_not_count(
    broker: KorvetServer, issuer: Issuer, context: ssl.SSLContext
) -> None:
    create_tenant(broker, "hasty", "connections=2")
    with connected(broker.port, login="alice@hasty") as client:
        assert topics_of(client) == set()
    message = f"n,,\x01auth=Bearer {issuer.token('carol@hasty')}\x01\x01".encode()
    # Over TLS the broker sees at once that a client has left, also while it answers.
    leaving = [Client(broker.ports[BOTH], "b1-hasty.kafka.example", context) for _ in range(2)]
    for one in leaving:
        assert one.ask("sasl_handshake", 1, mechanism="OAUTHBEARER")["error_code"] == "NONE"
    with broker.redis() as redis:
        redis.client_pause(1000)
    for one in leaving:
        one.send("sasl_authenticate", 2, auth_bytes=message)
    time.sleep(0.3)
    for one in leaving:
        one.socket.close()

    def is_in() -> bool:
        with connected(broker.port) as client, connected(broker.port) as other:
            return all(one.log_in("alice@hasty")["error_code"] == "NONE" for one in (client, other))

    until(is_in)
