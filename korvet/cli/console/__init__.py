"""``korvet console``: the cluster in a browser. It is a Kafka client, so it shows any Kafka cluster.

The pages are made on this side, from the same functions as the commands of `korvet topics` and `korvet groups`. Names
and records are other people's data: templates escape them, and a strict content security policy runs no script but the
console's own files.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from korvet.cli.options import cluster_options
from korvet.errors import ConfigError

if TYPE_CHECKING:
    from korvet.cli.cluster import Cluster

DEFAULT_LISTEN = "127.0.0.1:9080"


@click.command()
@click.option(
    "--listen",
    default=DEFAULT_LISTEN,
    show_default=True,
    envvar="KORVET_CONSOLE_LISTEN",
    metavar="HOST:PORT",
    help="The address of the pages; only one of the loopback. Port 0 takes a free one.",
)
@click.option("--redis", "redis_url", envvar="KORVET_REDIS", metavar="URL", help="Show this Redis's health, too.")
@click.option("--allow-changes", is_flag=True, help="Offer to reset offsets, to delete groups and to remove members.")
@cluster_options
def console(listen: str, redis_url: str | None, allow_changes: bool, cluster: Cluster) -> None:
    """Show topics, records, groups and transactions in a browser, until Ctrl-C.

    The console asks for no login, so it listens on the loopback alone. Reach it from elsewhere through a tunnel of SSH.
    It shows what this command's client may see.

    \b
    Example:  korvet console --bootstrap-server broker.example:9092
    """
    from korvet.cli.console.serving import serve
    from korvet.cli.kafka.address import parse_addresses

    address, *more = parse_addresses(listen)
    if more or address.host not in ("127.0.0.1", "localhost", "::1"):
        raise ConfigError(
            f"--listen {listen}: the console asks for no login, so it listens on one address, 127.0.0.1 or ::1; "
            "reach it from elsewhere by ssh -L"
        )
    serve(address, cluster.clients(), redis_url, allow_changes=allow_changes)
