"""``korvet console``: the cluster in a browser. It is a Kafka client, so it shows any Kafka cluster.

The pages are made on this side, from the same functions as the commands of `korvet topics` and `korvet groups`. Names
and records are other people's data: templates escape them, and a strict content security policy runs no script but the
console's own files.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from korvet.cli.ground.options import cluster_options
from korvet.cli.ground.times import Duration

if TYPE_CHECKING:
    from korvet.cli.ground.cluster import Cluster

DEFAULT_LISTEN = "127.0.0.1:9080"


@click.command()
@click.option(
    "--listen",
    default=DEFAULT_LISTEN,
    show_default=True,
    envvar="KORVET_CONSOLE_LISTEN",
    metavar="HOST:PORT",
    help="The address of the pages. Port 0 takes a free one. Other addresses than the loopback's need --login.",
)
@click.option("--login", is_flag=True, help="Visitors log in as users of the broker, and see what these may see.")
@click.option("--tls-cert", metavar="FILE", help="The certificate chain of the pages in PEM.")
@click.option("--tls-key", metavar="FILE", help="The certificate's key in PEM.")
@click.option("--tls-terminated", is_flag=True, help="A proxy before the console speaks TLS with browsers.")
@click.option(
    "--hostname", "hostnames", multiple=True, metavar="NAME", help="A name of the console in URLs. May be given again."
)
@click.option(
    "--idle-timeout",
    type=Duration(),
    default="30m",
    show_default=True,
    metavar="DURATION",
    help="Log out visitors that did nothing for so long.",
)
@click.option(
    "--operator", "operators", multiple=True, metavar="USER", help="With --login: a user that sees Redis and the lake."
)
@click.option("--redis", "redis_url", envvar="KORVET_REDIS", metavar="URL", help="Show the cluster's Redis, too.")
@click.option(
    "--namespace", default="default", show_default=True, metavar="NAME", help="The namespace of the topics in Redis."
)
@click.option(
    "--lake-report",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE",
    help="Show the lake by this file, which 'korvet pipeline report --json' writes.",
)
@click.option(
    "--metrics",
    multiple=True,
    metavar="URL",
    help="The HTTP port of a front-end, which knows the lags of the last hour. May be given again.",
)
@click.option(
    "--allow-changes",
    is_flag=True,
    help="Offer changes: of offsets, groups, members and transactions, and with --redis repairs.",
)
@cluster_options
def console(
    listen: str,
    login: bool,
    tls_cert: str | None,
    tls_key: str | None,
    tls_terminated: bool,
    hostnames: tuple[str, ...],
    idle_timeout: float,
    operators: tuple[str, ...],
    redis_url: str | None,
    namespace: str,
    lake_report: Path | None,
    metrics: tuple[str, ...],
    allow_changes: bool,
    cluster: Cluster,
) -> None:
    """Show topics, records, groups and transactions in a browser, until Ctrl-C.

    Without --login it shows what this command's client may see, to everybody at this machine. With it, visitors log in
    as users of the broker, at a listener with logins.

    \b
    Examples:  korvet console --bootstrap-server broker.example:9092
               korvet console --login --listen 0.0.0.0:9080 --tls-cert tls.crt --tls-key tls.key -b 127.0.0.1:9093
    """
    from korvet.cli.console.sources import Sources
    from korvet.cli.console.start import Way, start, tls_files
    from korvet.server.ground.logs import configure_logging

    tls = tls_files(tls_cert, tls_key, is_terminated=tls_terminated)
    way = Way(
        login=login,
        has_tls=tls_terminated or tls is not None,
        is_proxied=tls_terminated,
        hostnames=frozenset(hostnames),
        idle_s=idle_timeout,
        operators=frozenset(operators),
        sources=Sources(redis_url=redis_url, namespace=namespace, lake_report=lake_report, metrics=metrics),
        allow_changes=allow_changes,
    )
    configure_logging("info", "text")
    start(listen, way, tls, cluster)
