"""The two backends of users, access rules and quotas: over Kafka's protocol, or straight in Redis.

The first users and rules go straight to Redis, before anybody may log in.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol, cast

import click
from click.core import ParameterSource

from korvet.cli.ground.cluster import Cluster, named_cluster
from korvet.cli.ground.options import Function, bootstrap_server, command_config, embedded_url

if TYPE_CHECKING:
    from korvet.cli.kafka.user_facts import User
    from korvet.quotas.entity import Entity
    from korvet.security.acl import Acl, AclFilter
    from korvet.store.security.users import CredentialKey

_REDIS: Final = ("redis_url", "data_dir")
_KAFKA: Final = ("bootstrap_server", "command_config")
DEFAULT_NAMESPACE: Final = "default"


class Users(Protocol):
    """The users of a namespace: see `korvet.cli.security.in_redis.RedisUsers`."""

    def add(self, key: CredentialKey, password: str, iterations: int) -> None: ...
    def find(self) -> list[User]: ...
    def remove(self, user: str, mechanisms: Sequence[str]) -> bool: ...


class Rules(Protocol):
    """The access rules of a namespace: see `korvet.cli.security.in_redis.RedisRules`."""

    def add(self, rules: Sequence[Acl]) -> None: ...
    def find(self, filters: Sequence[AclFilter]) -> list[Acl]: ...
    def remove(self, filters: Sequence[AclFilter]) -> list[Acl]: ...


class Quotas(Protocol):
    """The quotas of a namespace: see `korvet.cli.kafka.quotas.KafkaQuotas`."""

    def alter(self, entity: Entity, quotas: Mapping[str, float | None]) -> None: ...
    def find(self) -> dict[Entity, dict[str, float]]: ...


class Secured(NamedTuple):
    """The users, rules and quotas of a namespace, at one backend."""

    users: Users
    rules: Rules
    quotas: Quotas


@dataclass(frozen=True, slots=True, kw_only=True)
class KafkaBackend:
    """A listener, and so its namespace."""

    cluster: Cluster

    @contextmanager
    def opened(self) -> Iterator[Secured]:
        """Connect, and close the connections at the end of the block."""
        from korvet.cli.kafka.acls import KafkaRules
        from korvet.cli.kafka.quotas import KafkaQuotas
        from korvet.cli.kafka.users import KafkaUsers

        with self.cluster.client() as client:
            yield Secured(KafkaUsers(client), KafkaRules(client), KafkaQuotas(client))


@dataclass(frozen=True, slots=True, kw_only=True)
class RedisBackend:
    """A Redis, and a namespace in it."""

    url: str
    namespace: str

    @contextmanager
    def opened(self) -> Iterator[Secured]:
        """Connect, and close the connections at the end of the block."""
        from korvet.cli.redis.connections import open_nodes, refuse_lone_node
        from korvet.cli.security.in_redis import RedisQuotas, RedisRules, RedisUsers
        from korvet.store.keys import Namespace

        with open_nodes(self.url) as nodes:
            refuse_lone_node(self.url, nodes)
            namespace = Namespace(self.namespace)
            yield Secured(RedisUsers(nodes, namespace), RedisRules(nodes, namespace), RedisQuotas(nodes, namespace))


Backend = KafkaBackend | RedisBackend


def security_backend(function: Function) -> Function:
    """The flags of both backends; hands over ``backend``. Flags count before variables, and brokers before Redis."""

    @bootstrap_server
    @command_config
    @click.option("--redis", "redis_url", envvar="KORVET_REDIS", metavar="URL", help="Straight in this Redis.")
    @click.option(
        "--data-dir",
        envvar="KORVET_DATA_DIR",
        metavar="DIR",
        help="Straight in the embedded server of this directory, which must be running.",
    )
    @click.option("--namespace", metavar="NAME", help=f"With Redis: the namespace.  [default: {DEFAULT_NAMESPACE}]")
    @wraps(function)
    def with_backend(
        *args: Any,
        bootstrap_server: str | None,
        command_config: Path | None,
        redis_url: str | None,
        data_dir: str | None,
        namespace: str | None,
        **others: Any,
    ) -> Any:
        if _is_redis_meant():
            url = redis_url or embedded_url(Path(data_dir or "data"))
            return function(*args, backend=RedisBackend(url=url, namespace=namespace or DEFAULT_NAMESPACE), **others)
        if namespace is not None:
            raise click.UsageError("--namespace goes with --redis or --data-dir; a listener has its own namespace")
        return function(*args, backend=KafkaBackend(cluster=named_cluster(bootstrap_server, command_config)), **others)

    return cast("Function", with_backend)


def _is_redis_meant() -> bool:
    """True if the flags, or without any the environment, name a Redis and no broker."""
    for source in (ParameterSource.COMMANDLINE, ParameterSource.ENVIRONMENT):
        is_redis, is_kafka = (_any_from(source, names) for names in (_REDIS, _KAFKA))
        if is_redis and is_kafka and source is ParameterSource.COMMANDLINE:
            raise click.UsageError("name either brokers (--bootstrap-server, --command-config) or a Redis")
        if is_redis or is_kafka:
            return not is_kafka
    return False


def _any_from(source: ParameterSource, names: Sequence[str]) -> bool:
    context = click.get_current_context()
    return any(context.get_parameter_source(name) is source for name in names)
