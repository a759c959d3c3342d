"""korvet_users_alter, _read and korvet_security_secret: credentials, their version, the secret."""

from __future__ import annotations

from typing import Any

import pytest
import redis

KEY = "korvet:{default:@security}:users"
CREDENTIAL = "4096 c2FsdA== a2V5 a2V5"
NOT_FOUND, POLICY_VIOLATION, INVALID_REQUEST = 91, 44, 42


def alter(server: redis.Redis, *changes: str) -> Any:
    return server.fcall("korvet_users_alter", 1, KEY, *changes)


def read(server: redis.Redis, known_version: int = -1) -> Any:
    return server.fcall_ro("korvet_users_read", 1, KEY, str(known_version))


def test_change_that_finds_nothing_to_delete_leaves_the_others_alone(server: redis.Redis) -> None:
    alter(server, "SCRAM-SHA-256:old", CREDENTIAL)
    changes = ("SCRAM-SHA-256:a", CREDENTIAL, "SCRAM-SHA-256:b", "", "SCRAM-SHA-256:old", "")
    assert alter(server, *changes) == [0, [0, NOT_FOUND, 0]]
    assert read(server)[2] == [b"SCRAM-SHA-256:a", CREDENTIAL.encode()]


@pytest.mark.parametrize(
    ("field", "text"),
    [
        ("", CREDENTIAL),
        ("PLAIN:a", CREDENTIAL),
        ("SCRAM-SHA-256:", CREDENTIAL),
        ("SCRAM-SHA-256:a", "secret"),
        ("SCRAM-SHA-256:a", "4096 c2FsdA=="),
        ("SCRAM-SHA-256:" + "a" * 1024, CREDENTIAL),
    ],
)
def test_text_that_is_no_credential_stops_the_whole_call_before_its_first_write(
    server: redis.Redis, field: str, text: str
) -> None:
    assert alter(server, "SCRAM-SHA-512:good", CREDENTIAL, field, text) == [INVALID_REQUEST, []]
    assert not server.exists(KEY)


def test_the_version_can_not_be_deleted_as_if_it_were_a_user(server: redis.Redis) -> None:
    alter(server, "SCRAM-SHA-256:a", CREDENTIAL)
    version = read(server)[1]
    for name in ("", "SCRAM-SHA-256:b"):
        assert alter(server, name, "") == [0, [NOT_FOUND]]
    assert read(server)[1] == version


def test_there_are_at_most_ten_thousand_credentials(server: redis.Redis) -> None:
    for start in range(0, 10_000, 1_000):
        names = [f"SCRAM-SHA-256:{number}" for number in range(start, start + 1_000)]
        alter(server, *[text for name in names for text in (name, CREDENTIAL)])
    assert alter(server, "SCRAM-SHA-256:more", CREDENTIAL) == [POLICY_VIOLATION, []]
    assert alter(server, "SCRAM-SHA-256:7", CREDENTIAL) == [0, [0]]
    assert alter(server, "SCRAM-SHA-256:7", "", "SCRAM-SHA-256:more", CREDENTIAL) == [0, [0, 0]]


def test_all_callers_get_the_secret_that_the_first_one_proposed(server: redis.Redis) -> None:
    key = "korvet:{default:@security}:secret"
    assert [server.fcall("korvet_security_secret", 1, key, text) for text in ("one", "two")] == [[0, b"one"]] * 2
