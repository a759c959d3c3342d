"""``korvet acls``: access rules, like kafka-acls.sh; over Kafka's protocol, or straight in Redis for the first ones."""

from __future__ import annotations

from functools import wraps
from typing import TYPE_CHECKING, Any, cast

import click

from korvet.cli.ground.options import Function, as_json, confirmed
from korvet.cli.ground.output import show_json, show_table
from korvet.cli.security.backend import Backend, security_backend

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from korvet.cli.security.rules import Words
    from korvet.security.acl import Acl


@click.group()
def acls() -> None:
    """Add, list and remove access rules, over Kafka's protocol or straight in Redis."""


def _several(flag: str, name: str, metavar: str, help_text: str) -> Callable[[Function], Function]:
    return click.option(flag, name, multiple=True, metavar=metavar, help=f"{help_text} May be given again.")


def _resources(*pattern_types: str) -> Callable[[Function], Function]:
    """The flags that name resources."""

    def decorate(function: Function) -> Function:
        for option in (
            click.option(
                "--resource-pattern-type",
                "pattern_type",
                type=click.Choice(pattern_types, case_sensitive=False),
                default=pattern_types[0],
                show_default=True,
                help="prefixed takes names for the beginnings of names"
                + ("; match means all rules that apply to a name." if "match" in pattern_types else "."),
            ),
            click.option("--cluster", is_flag=True, help="The cluster."),
            _several("--transactional-id", "transactional_ids", "ID", "A transactional id; * means all."),
            _several("--group", "groups", "NAME", "A group; * means all."),
            _several("--topic", "topics", "NAME", "A topic; * means all."),
        ):
            function = option(function)
        return function

    return decorate


def _subjects(function: Function) -> Function:
    """The flags of principals and operations; together with those of resources they become ``words``."""

    @_several("--allow-principal", "allowed", "User:NAME", "A principal that may; User:* means all.")
    @_several("--deny-principal", "denied", "User:NAME", "A principal that may not.")
    @_several("--allow-host", "allowed_hosts", "ADDRESS", "An address from which allowed principals may.")
    @_several("--deny-host", "denied_hosts", "ADDRESS", "An address from which denied principals may not.")
    @_several("--operation", "operations", "NAME", "Read, Write, Describe, DescribeConfigs, …")
    @click.option("--producer", is_flag=True, help="What a producer needs: Write, Describe and Create.")
    @click.option("--consumer", is_flag=True, help="What a member of a group needs: Read and Describe.")
    @wraps(function)
    def with_words(*args: Any, **given: Any) -> Any:
        from korvet.cli.security.rules import Words

        words = Words(**{name: given.pop(name) for name in Words.__dataclass_fields__})
        return function(*args, words=words, **given)

    return cast("Function", with_words)


@acls.command()
@_resources("literal", "prefixed")
@_subjects
@security_backend
def add(words: Words, backend: Backend) -> None:
    """Add access rules. Without --operation they are for all operations, and without --allow-host from all addresses.

    \b
    Example:  korvet acls add --allow-principal User:alice --producer --topic orders
    """
    from korvet.cli.security.rules import rules_of

    rules = rules_of(words)
    with backend.opened() as secured:
        secured.rules.add(rules)
    _show(rules)


@acls.command("list")
@_resources("literal", "prefixed", "match", "any")
@_several("--principal", "principals", "User:NAME", "Only rules for this principal.")
@as_json
@security_backend
def list_(principals: tuple[str, ...], as_json: bool, backend: Backend, **resources: Any) -> None:
    """List the access rules, all or those of some resources and principals.

    \b
    Example:  korvet acls list --topic orders --resource-pattern-type match
    """
    from korvet.cli.security.rules import Words, filters_of

    with backend.opened() as secured:
        rules = secured.rules.find(filters_of(Words(**resources), principals))
    if as_json:
        show_json([_as_json(rule) for rule in rules])
    else:
        _show(rules)


@acls.command()
@_resources("literal", "prefixed", "match", "any")
@_subjects
@confirmed
@security_backend
def remove(words: Words, execute: bool, backend: Backend) -> None:
    """Remove all access rules that the flags describe; a flag that is not given describes all. Shows them first.

    \b
    Example:  korvet acls remove --topic orders --allow-principal User:alice --execute
    """
    from korvet.cli.security.rules import filters_of

    if not (words.resources or words.allowed or words.denied):
        raise click.UsageError("name resources or principals whose rules are meant")
    filters = filters_of(words)
    with backend.opened() as secured:
        rules = secured.rules.remove(filters) if execute else secured.rules.find(filters)
    _show(rules)


def _show(rules: Sequence[Acl]) -> None:
    from korvet.cli.security.rules import word_of

    show_table(
        ["PRINCIPAL", "PERMISSION", "OPERATION", "RESOURCE", "PATTERN", "NAME", "HOST"],
        [
            (
                rule.principal,
                rule.permission.name.lower(),
                word_of(rule.operation),
                rule.resource_type.name.lower(),
                rule.pattern_type.name.lower(),
                rule.name,
                rule.host,
            )
            for rule in rules
        ],
    )


def _as_json(rule: Acl) -> dict[str, str]:
    return {
        "principal": rule.principal,
        "permission": rule.permission.name,
        "operation": rule.operation.name,
        "resource_type": rule.resource_type.name,
        "pattern_type": rule.pattern_type.name,
        "name": rule.name,
        "host": rule.host,
    }
