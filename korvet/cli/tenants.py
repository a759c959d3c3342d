"""``korvet tenants``: the namespaces that clients may choose, straight in Redis, while front-ends run."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

import click

from korvet.cli.ground.options import as_json, confirmed, redis_target
from korvet.cli.ground.output import show_json, show_table
from korvet.cli.tenant_redis_user import redis_user
from korvet.errors import KorvetError

if TYPE_CHECKING:
    from korvet.store.tenants import Tenant

_REFUSALS: Final = {
    42: "tenant {0!r}: a name has at most 40 of a-z, 0-9 and '-', and no '-' at its ends; and a tenant that is being "
    "deleted stays so",
    44: "tenant {0!r}: there are 10000 tenants, or its settings are longer than 4096 bytes",
    91: "there is no tenant {0!r}, or it is being deleted",
    92: "tenant {0!r} is there already",
}


def limits_argument(_context: click.Context, _parameter: click.Parameter, pairs: tuple[str, ...]) -> dict[str, int]:
    """The limits of NAME=NUMBER pairs; -1 for NAME=none."""
    from korvet.store.tenants import RATES, TenantLimit

    limits = {}
    for pair in pairs:
        name, separator, number = pair.partition("=")
        if name not in list(TenantLimit) or not separator or not (number == "none" or number.isdecimal()):
            raise click.BadParameter(f"{pair!r} is no NAME=NUMBER or NAME=none; names: {', '.join(TenantLimit)}")
        limits[name] = -1 if number == "none" else int(number)
        if limits[name] >= 2**53:
            raise click.BadParameter(f"{pair!r}: the number is too large")
        if name in RATES and limits[name] == 0:
            raise click.BadParameter(f"{pair!r}: a rate is greater than 0; to let nobody in: korvet tenants suspend")
    return limits


super_users_option = click.option("--super-users", metavar="LIST", help="Who may do everything in it: 'User:a;User:b'.")


@click.group()
def tenants() -> None:
    """Create, list, limit, suspend and delete tenants in Redis. Front-ends hear of it within a second.

    A tenant is a namespace that clients may choose, by a server name or a login ('namespace-from' of a listener).
    """


@tenants.command()
@click.argument("name")
@click.argument("limits", nargs=-1, callback=limits_argument, metavar="[LIMIT=NUMBER]...")
@redis_target
@super_users_option
@click.option("--adopt", is_flag=True, help="Also if the namespace has topics or users already.")
def create(name: str, limits: Mapping[str, int], url: str, super_users: str | None, adopt: bool) -> None:
    """Create a tenant. Its users are added with 'korvet users add --namespace NAME'.

    \b
    Example:  korvet tenants create acme topics=100 bytes=1000000000 --redis redis://127.0.0.1:6379
    """
    from ulid import ULID

    from korvet.cli.redis.connections import call_at, call_function, open_nodes, refuse_lone_node
    from korvet.store.keys import TENANTS, Namespace

    _check_super_users(super_users)
    limits = {limit: number for limit, number in limits.items() if number >= 0}
    with open_nodes(url) as nodes:
        refuse_lone_node(url, nodes)
        namespace = Namespace(name)
        for key in (namespace.catalog.topics, namespace.security.users):
            # Both have a field that is neither topic nor user.
            if not adopt and call_at(nodes, "HLEN", key) > 1:
                raise KorvetError(f"namespace {name!r} has topics or users already; give --adopt to make it a tenant")
        code, _ = call_function(
            nodes, "korvet_tenant_create", TENANTS.tenants,
            name=name, id=str(ULID()), limits=json.dumps(limits), super_users=super_users or "",
        )  # fmt: skip
    _check(name, code)
    click.echo(f"tenant {name} is created")


@tenants.command("list")
@redis_target
@as_json
def list_tenants(url: str, as_json: bool) -> None:
    """List the tenants, their states, super users and limits.

    \b
    Example:  korvet tenants list --redis redis://127.0.0.1:6379
    """
    found = [tenant for _, tenant in sorted(read_tenants(url).items())]
    if as_json:
        show_json([_as_json(tenant) for tenant in found])
        return
    rows = [(one.name, one.state.value, one.super_users or "-", _shown(one.limits) or "-") for one in found]
    show_table(["TENANT", "STATE", "SUPER USERS", "LIMITS"], rows)


@tenants.command()
@click.argument("name")
@click.argument("limits", nargs=-1, callback=limits_argument, metavar="[LIMIT=NUMBER]...")
@redis_target
@super_users_option
def limit(name: str, limits: Mapping[str, int], url: str, super_users: str | None) -> None:
    """Change limits of a tenant; LIMIT=none removes one. Others stay. What is there already stays, too.

    \b
    Example:  korvet tenants limit acme partitions=500 connections=none --redis redis://127.0.0.1:6379
    """
    if not limits and super_users is None:
        raise click.UsageError("give at least one LIMIT=NUMBER, or --super-users")
    _check_super_users(super_users)
    _change(url, "korvet_tenant_configure", name=name, limits=json.dumps(limits), super_users=super_users)
    click.echo(f"tenant {name}: {_shown(read_tenants(url)[name].limits) or 'no limits'}")


@tenants.command()
@click.argument("name")
@redis_target
def suspend(name: str, url: str) -> None:
    """Close a tenant's connections, and let nobody in. Its data stays.

    \b
    Example:  korvet tenants suspend acme --redis redis://127.0.0.1:6379
    """
    _change(url, "korvet_tenant_switch", name=name, state="suspended")
    click.echo(f"tenant {name} is suspended")


@tenants.command()
@click.argument("name")
@redis_target
def resume(name: str, url: str) -> None:
    """Let a suspended tenant's clients in again.

    \b
    Example:  korvet tenants resume acme --redis redis://127.0.0.1:6379
    """
    _change(url, "korvet_tenant_switch", name=name, state="active")
    click.echo(f"tenant {name} is active")


@tenants.command()
@click.argument("name")
@redis_target
@confirmed
def delete(name: str, url: str, execute: bool) -> None:
    """Delete a tenant with all its topics, groups, users and rules; without --execute only count its keys.

    May be repeated if it was cut short.

    \b
    Example:  korvet tenants delete acme --redis redis://127.0.0.1:6379 --execute
    """
    from korvet.cli.redis.connections import open_nodes, refuse_lone_node
    from korvet.cli.redis.tenant_deletion import count_keys, delete_tenant

    if name not in read_tenants(url):
        _check(name, 91)
    with open_nodes(url) as nodes:
        refuse_lone_node(url, nodes)
        if not execute:
            click.echo(f"tenant {name} has {count_keys(nodes, name)} keys")
            return
        keys = delete_tenant(nodes, name)
    click.echo(f"tenant {name} is deleted, with {keys} keys")


tenants.add_command(redis_user)


def _check_super_users(super_users: str | None) -> None:
    """Refuse super users that front-ends could not read.

    :raises ConfigError: if one is no principal.
    """
    from korvet.security.authorizer import parse_super_users

    parse_super_users(super_users or "")


def _change(url: str, function: str, /, *, name: str, **named: str | None) -> None:
    from korvet.cli.redis.connections import call_function, open_nodes, refuse_lone_node
    from korvet.store.keys import TENANTS

    with open_nodes(url) as nodes:
        refuse_lone_node(url, nodes)
        code, _ = call_function(nodes, function, TENANTS.tenants, name=name, **named)
    _check(name, code)


def _check(name: str, code: int) -> None:
    if code:
        raise KorvetError(_REFUSALS[code].format(name))


def read_tenants(url: str) -> Mapping[str, Tenant]:
    """The tenants in a Redis, by their names.

    :raises KorvetError: if Redis cannot be reached.
    """
    from korvet.cli.redis.connections import call_function, open_nodes
    from korvet.store.keys import TENANTS
    from korvet.store.tenants import parse_tenants

    with open_nodes(url) as nodes:
        return parse_tenants(call_function(nodes, "korvet_tenants_read", TENANTS.tenants, known_version=-1)[2])


def _shown(limits: Mapping[str, int]) -> str:
    return " ".join(f"{name}={number}" for name, number in sorted(limits.items()))


def _as_json(tenant: Tenant) -> Mapping[str, object]:
    return {
        "tenant": tenant.name,
        "state": tenant.state.value,
        "created_ms": tenant.created_ms,
        "super_users": tenant.super_users,
        "limits": dict(sorted(tenant.limits.items())),
    }
