"""``korvet tenants redis-user``: the Redis users of tenants, and the one of front-ends that serve tenants as these."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path

import click

from korvet.cli.ground.passwords import password_file, read_password
from korvet.errors import KorvetError

_FRONT_ENDS = "korvet"
_USERS = "%R~korvet:{*:@security}:users"
"""Front-ends judge a login by a tenant's users before they open its namespace."""


@click.command("redis-user")
@click.argument("name", required=False)
@password_file
@click.option("--cluster", is_flag=True, help="With the further rights that every node of a cluster needs.")
@click.option("--front-ends", is_flag=True, help="In place of NAME: front-ends with tenant-redis-passwords.")
def redis_user(name: str | None, password_file: Path | None, cluster: bool, front_ends: bool) -> None:
    """Print the line that makes the Redis user korvet-NAME, which reaches no key but the tenant's.

    An admin of Redis gives the line to redis-cli. It has a hash of the password. Front-ends log in as this user: those
    with the setting tenant-redis-passwords, or one with the fixed namespace NAME. The user loads no library: another
    user or 'korvet functions load' does that.

    With --front-ends the line makes the user korvet. It loads the library and reads the tenants and their users, but
    reaches nothing else of a tenant.

    \b
    Example:  korvet tenants redis-user acme --password-file acme.secret | redis-cli
    """
    from korvet.store.tenants import is_tenant_name

    if front_ends == (name is not None):
        raise click.UsageError("Give either NAME or --front-ends.")
    if name is not None and not is_tenant_name(name):
        raise KorvetError(f"tenant {name!r}: a name has at most 40 of a-z, 0-9 and '-', and no '-' at its ends")
    password = read_password(password_file)
    if name is None:
        line = front_ends_line(password, is_cluster=cluster)
    else:
        line = tenant_line(name, password, is_cluster=cluster)
    click.echo(" ".join(line))


def tenant_line(name: str, password: str, *, is_cluster: bool) -> list[str]:
    """The words of ACL SETUSER for a tenant. Functions run with these rights, too."""
    from korvet.store.keys import Namespace
    from korvet.store.rights import LOAD
    from korvet.store.tenants import redis_user_of

    prefix = Namespace(name).prefix
    rules = [rule for rule in _rules(is_cluster=is_cluster) if rule != LOAD]
    return _line(redis_user_of(name), password, [prefix], rules)


def front_ends_line(password: str, *, is_cluster: bool) -> list[str]:
    """The words of ACL SETUSER for front-ends that serve tenants as their own Redis users."""
    from korvet.store.keys import LOBBY, TENANTS_PREFIX

    prefixes = [TENANTS_PREFIX, LOBBY.prefix]
    return _line(_FRONT_ENDS, password, prefixes, [_USERS, *_rules(is_cluster=is_cluster)])


def _rules(*, is_cluster: bool) -> list[str]:
    from korvet.store.rights import commands, rule_of

    return list(dict.fromkeys(map(rule_of, commands("", is_cluster=is_cluster))))


def _line(user: str, password: str, prefixes: Sequence[str], rules: Sequence[str]) -> list[str]:
    hashed = hashlib.sha256(password.encode()).hexdigest()
    keys = [f"{kind}{prefix}*" for kind in "~&" for prefix in prefixes]
    return ["ACL", "SETUSER", user, "reset", "on", f"#{hashed}", *keys, "-@all", *rules]
