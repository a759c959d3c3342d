"""``korvet tenants redis-user``: the Redis user of a front-end that serves one tenant alone."""

from __future__ import annotations

import hashlib
import re
from pathlib import Path

import click

from korvet.cli.passwords import password_file, read_password
from korvet.errors import KorvetError

_NAME = re.compile(r"[a-z0-9]([a-z0-9-]{0,38}[a-z0-9])?")


@click.command("redis-user")
@click.argument("name")
@password_file
@click.option("--cluster", is_flag=True, help="With the further rights that every node of a cluster needs.")
def redis_user(name: str, password_file: Path | None, cluster: bool) -> None:
    """Print the line that makes the Redis user korvet-NAME, which reaches no key but the tenant's.

    An admin of Redis gives the line to redis-cli. It has a hash of the password. A front-end with a fixed namespace
    logs in as this user. It loads no library: another front-end or 'korvet functions load' does that.

    \b
    Example:  korvet tenants redis-user acme --password-file acme.secret | redis-cli
    """
    if not _NAME.fullmatch(name):
        raise KorvetError(f"tenant {name!r}: a name has at most 40 of a-z, 0-9 and '-', and no '-' at its ends")
    click.echo(" ".join(acl_line(name, read_password(password_file), is_cluster=cluster)))


def acl_line(name: str, password: str, *, is_cluster: bool) -> list[str]:
    """The words of ACL SETUSER for a tenant. Functions run with these rights, too."""
    from korvet.store.keys import Namespace
    from korvet.store.rights import LOAD, commands, rule_of

    prefix = Namespace(name).prefix
    rules = dict.fromkeys(map(rule_of, commands(prefix, is_cluster=is_cluster)))
    hashed = hashlib.sha256(password.encode()).hexdigest()
    limits = ["reset", "on", f"#{hashed}", f"~{prefix}*", f"&{prefix}*", "-@all"]
    return ["ACL", "SETUSER", f"korvet-{name}", *limits, *(rule for rule in rules if rule != LOAD)]
