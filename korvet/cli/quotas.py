"""``korvet quotas``: quotas, like kafka-configs.sh for users, clients and ips; over Kafka's protocol or in Redis."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import wraps
from typing import TYPE_CHECKING, Any, cast

import click

from korvet.cli.ground.options import Function, as_json, confirmed
from korvet.cli.ground.output import show_json, show_table
from korvet.cli.security.backend import DEFAULT_NAMESPACE, Backend, RedisBackend, security_backend
from korvet.errors import KorvetError

if TYPE_CHECKING:
    from korvet.quotas.entity import Entity

_FLAGS = {
    "user": ("user", "NAME", "A user."),
    "client": ("client-id", "NAME", "A client id; with --user only of this user."),
    "ip": ("ip", "ADDRESS", "An IP address, for connections."),
}
"""The flags of kafka-configs, with their types of entities."""


LOBBY = ""
"""The name that stands for no namespace; none has it."""


@click.group()
def quotas() -> None:
    """Set, list and remove quotas, over Kafka's protocol or straight in Redis."""


def _entity(function: Function) -> Function:
    """The flags that name an entity; hands over ``entity``, with no part if there is no flag."""

    @wraps(function)
    def with_entity(*args: Any, **given: Any) -> Any:
        return function(*args, entity=_named(given), **given)

    decorated: Function = cast("Function", with_entity)
    for flag, (_, metavar, help_text) in reversed(_FLAGS.items()):
        decorated = click.option(f"--{flag}-defaults", is_flag=True, help="Each one without a quota of its own.")(
            decorated
        )
        decorated = click.option(f"--{flag}", metavar=metavar, help=help_text)(decorated)
    return decorated


def _place(function: Function) -> Function:
    """The flags of both backends and of the lobby; hands over ``backend``."""

    @security_backend
    @click.option("--lobby", is_flag=True, help="With Redis: for addresses whose clients have not chosen a tenant yet.")
    @wraps(function)
    def with_place(*args: Any, backend: Backend, lobby: bool, **given: Any) -> Any:
        if lobby:
            if not isinstance(backend, RedisBackend) or backend.namespace != DEFAULT_NAMESPACE:
                raise click.UsageError("--lobby goes with --redis or --data-dir, and without --namespace")
            if given["entity"].parts and given["entity"].ip is None:
                raise click.UsageError("in the lobby there are no users and client ids yet; give --ip or --ip-defaults")
            backend = replace(backend, namespace=LOBBY)
        return function(*args, backend=backend, **given)

    return cast("Function", with_place)


def _named(given: dict[str, Any]) -> Entity:
    """The entity of some flags, which it takes out of the words."""
    from korvet.quotas.entity import Entity, entity_of

    parts: dict[str, str | None] = {}
    for flag, (kind, *_) in _FLAGS.items():
        name, is_default = given.pop(flag), given.pop(f"{flag}_defaults")
        if is_default and name is not None:
            raise click.UsageError(f"give either --{flag} or --{flag}-defaults")
        if is_default or name is not None:
            parts[kind] = name
    entity = entity_of(parts) if parts else Entity()
    if isinstance(entity, str):
        raise click.UsageError(entity)
    return entity


@quotas.command("set")
@click.argument("values", nargs=-1, required=True, metavar="QUOTA=NUMBER...")
@_entity
@_place
def set_quotas(values: tuple[str, ...], entity: Entity, backend: Backend) -> None:
    """Set quotas of a user, a client id, a user with a client id, or an address; others stay.

    \b
    Quotas:   producer_byte_rate, consumer_byte_rate, request_percentage, controller_mutation_rate;
              of addresses connection_creation_rate
    Example:  korvet quotas set --user alice producer_byte_rate=10485760
    """
    _require(entity)
    numbers = _numbers(entity, values)
    with backend.opened() as secured:
        secured.quotas.alter(entity, numbers)
    _show({entity: numbers})


@quotas.command("list")
@_entity
@as_json
@_place
def list_quotas(entity: Entity, as_json: bool, backend: Backend) -> None:
    """List the quotas, all or those of entities with the parts that are named.

    \b
    Example:  korvet quotas list --user alice
    """
    wanted = set(entity.parts)
    with backend.opened() as secured:
        settings = secured.quotas.find()
    found = {one: settings[one] for one in sorted(settings, key=_by_name) if wanted <= set(one.parts)}
    if as_json:
        show_json([{"entity": _as_json(one), "quotas": dict(sorted(found[one].items()))} for one in found])
    else:
        _show(found)


@quotas.command()
@click.argument("names", nargs=-1, metavar="[QUOTA]...")
@_entity
@confirmed
@_place
def remove(names: tuple[str, ...], entity: Entity, execute: bool, backend: Backend) -> None:
    """Remove quotas of one entity, all of them or those that are named; without --execute only show them.

    \b
    Example:  korvet quotas remove --user alice producer_byte_rate --execute
    """
    _require(entity)
    with backend.opened() as secured:
        there = secured.quotas.find().get(entity, {})
        gone = sorted(set(names) or there)
        missing = [name for name in gone if name not in there] if there else ["quota"]
        if missing:
            raise KorvetError(f"it has no {' and no '.join(missing)}; see all quotas with: korvet quotas list")
        if execute:
            secured.quotas.alter(entity, dict.fromkeys(gone))
    if execute:
        click.echo(f"removed: {', '.join(gone)}")
    else:
        _show({entity: {name: there[name] for name in gone}})


def _require(entity: Entity) -> None:
    if not entity.parts:
        raise click.UsageError(f"name an entity: {', '.join(f'--{flag}' for flag in _FLAGS)}, or one of --…-defaults")


def _numbers(entity: Entity, values: Sequence[str]) -> dict[str, float]:
    """The quotas of QUOTA=NUMBER pairs, if the entity may have them."""
    from korvet.quotas.entity import value_problem

    numbers = {}
    for pair in values:
        name, separator, text = pair.partition("=")
        try:
            number = float(text)
        except ValueError:
            separator, number = "", 0.0
        if not separator:
            raise click.UsageError(f"{pair!r} is not of the form QUOTA=NUMBER")
        if name in numbers:
            raise click.UsageError(f"{name} is given twice")
        problem = value_problem(entity, name, number)
        if problem is not None:
            raise click.UsageError(problem)
        numbers[name] = number
    return numbers


def _by_name(entity: Entity) -> list[tuple[str, str]]:
    return entity.parts


def _show(settings: Mapping[Entity, Mapping[str, float]]) -> None:
    from korvet.quotas.entity import number_text

    show_table(
        ["USER", "CLIENT ID", "IP", "QUOTA", "NUMBER"],
        [
            (*(name if name != "" else "<default>" for name in entity), quota, number_text(number))
            for entity, numbers in settings.items()
            for quota, number in sorted(numbers.items())
        ],
    )


def _as_json(entity: Entity) -> dict[str, str | None]:
    """An entity as in Kafka's protocol: null is the default one."""
    return {kind: name or None for kind, name in entity.parts}
