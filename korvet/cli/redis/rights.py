"""The check that the user of a blocking connection has every right that korvet needs."""

from __future__ import annotations

import redis
from redis.exceptions import RedisError

from korvet.cli.redis.connections import ask
from korvet.store.keys import Namespace
from korvet.store.rights import Command, Missing, commands, missing, throw_away_key

_SUBSCRIBING = ("SSUBSCRIBE", "SUNSUBSCRIBE")


def missing_rights(client: redis.Redis, namespace: Namespace, *, is_cluster: bool) -> list[Missing]:
    """Commands and channels of the namespace that this user lacks, or that the server does not have."""
    key = throw_away_key(namespace)
    tried = [_try(client, command) for command in commands(key, is_cluster=is_cluster)]
    return [*filter(None, tried), *_missing_subscription(client, key)]


def _try(client: redis.Redis, command: Command) -> Missing | None:
    if command[0] in _SUBSCRIBING:
        return None
    try:
        ask(client, *command)
    except RedisError as error:
        return missing(command, str(error))
    return None


def _missing_subscription(client: redis.Redis, channel: str) -> list[Missing]:
    subscriber = client.pubsub()  # type: ignore[no-untyped-call]
    command = "SSUBSCRIBE"
    try:
        subscriber.ssubscribe(channel)
        subscriber.get_sharded_message(timeout=1.0)
        command = "SUNSUBSCRIBE"
        subscriber.sunsubscribe(channel)
        subscriber.get_sharded_message(timeout=1.0)
    except RedisError as error:
        found = missing((command,), str(error))
        return [found] if found else []
    finally:
        subscriber.close()
    return []
