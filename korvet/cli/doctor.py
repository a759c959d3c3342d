"""``korvet doctor``: the fitness of a Redis for korvet, and the records that it would lose in a crash."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from korvet.cli.ground.options import as_json, redis_target
from korvet.cli.ground.output import show_json

if TYPE_CHECKING:
    from korvet.cli.redis.checks import Finding, Wanted
    from korvet.cli.redis.connections import Node
    from korvet.redis.address import RedisUrl
    from korvet.store.keys import Namespace

_MOST_PASSES = 3
_COLOURS = {"ok": "green", "note": "yellow", "mend": "red"}


@click.command()
@redis_target
@click.option(
    "--namespace",
    default="default",
    show_default=True,
    metavar="NAME",
    help="The namespace whose keys the command looks at, and on whose keys it tries the rights.",
)
@click.option("--repair", is_flag=True, help="Repair damaged keys, and say what was done.")
@as_json
def doctor(url: str, namespace: str, repair: bool, as_json: bool) -> None:
    """Look at a Redis: version, losses in a crash, memory, replicas, the library, every right that korvet needs, and
    damage to keys.

    Findings are 'ok', 'note' (it works, and you should know) or 'mend'; if one is 'mend' the exit code is 1. Without
    --repair the command changes nothing, and says what that would do.

    \b
    Example:  korvet doctor --redis redis://127.0.0.1:6379
              korvet doctor --redis redis://127.0.0.1:6379 --repair
    """
    from korvet.cli.redis.checks import Verdict

    found = examined(url, namespace)
    found["keys"] = _examined_keys(url, namespace, repairs=repair)
    if as_json:
        show_json(
            [
                {"server": server, "subject": item.subject, "verdict": item.verdict, "text": item.text}
                for server, findings in found.items()
                for item in findings
            ]
        )
    else:
        for server, findings in found.items():
            _show(server, findings)
    if any(item.verdict is Verdict.MEND for findings in found.values() for item in findings):
        raise click.exceptions.Exit(1)


def examined(url: str, namespace: str) -> dict[str, list[Finding]]:
    """The findings of each server, by its address.

    :raises KorvetError: if a server cannot be looked at.
    """
    from korvet.cli.redis.checks import wanted_of
    from korvet.cli.redis.connections import open_nodes
    from korvet.redis.address import parse_redis_url
    from korvet.store.keys import Namespace

    with open_nodes(url) as nodes:
        tenant = Namespace(namespace)
        wanted = wanted_of([node.client for node in nodes], tenant)
        return {str(node.address): _examine(node, tenant, wanted, parse_redis_url(url)) for node in nodes}


def _examined_keys(url: str, namespace: str, *, repairs: bool) -> list[Finding]:
    """The findings about the keys of all servers.

    :raises KorvetError: a server cannot be looked at, or refuses a repair.
    """
    from korvet.cli.redis.checks import Finding, Verdict
    from korvet.cli.redis.connections import open_nodes, refuse_lone_node
    from korvet.cli.redis.key_checks import find_damage
    from korvet.errors import KorvetError
    from korvet.store.damaged_keys import REPAIR
    from korvet.store.keys import Namespace

    findings = []
    with open_nodes(url) as nodes:
        try:
            refuse_lone_node(url, nodes)
            left = list(find_damage(nodes, Namespace(namespace)))
        except KorvetError as error:
            return [Finding("keys", Verdict.NOTE, f"they were not looked at: {error}")]
        # A repair may show what it hid: a catalog without topics, after a text in their place is removed.
        for _ in range(_MOST_PASSES if repairs else 0):
            done = [one.repair() for one in left if one.repair is not None]
            if not done:
                break
            findings += [Finding("keys", Verdict.NOTE, text) for text in done]
            left = list(find_damage(nodes, Namespace(namespace)))
    for one in left:
        text = one.text if one.repair is None else f"{one.text}; '{REPAIR}' {one.effect}"
        findings.append(Finding("keys", Verdict.MEND, text))
    return findings or [Finding("keys", Verdict.OK, "none is damaged")]


def _examine(node: Node, namespace: Namespace, wanted: Wanted, url: RedisUrl) -> list[Finding]:
    from redis.exceptions import RedisError

    from korvet.cli.redis.checks import examine
    from korvet.errors import KorvetError

    try:
        return list(examine(node.client, namespace, wanted, url))
    except RedisError as error:
        raise KorvetError(f"cannot look at {node.address}: {error}") from None


def _show(server: str, findings: list[Finding]) -> None:
    click.echo(server)
    for item in findings:
        mark = click.style(f"{item.verdict:<5}", fg=_COLOURS[item.verdict])
        click.echo(f"  {mark} {item.subject:<11} {item.text}")
