"""docs/bounds.md, the table of all bounds and limits that a client can reach.

Three parts of the code make it: korvet's own limits, with the bounded elements of requests; the public constants named
MOST…, MAX… or LONGEST…; and the broker's settings.
"""

from __future__ import annotations

import ast
import importlib
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple

from korvet.api import registry
from korvet.configs.brokers import BROKER_CONFIGS, MOST_MEMBERS, MOST_PARTITIONS
from korvet.security.stored_rules import MOST_RULES
from korvet.store.groups.consumer import MOST_NAMES
from korvet.store.security.quotas import MOST_AT_ONCE as MOST_QUOTAS
from korvet.store.security.users import MOST_AT_ONCE as MOST_CREDENTIALS
from korvet.store.tenants import TenantLimit
from korvet.wire.codec import most_elements
from tests.support.largest import Location, locations, versions

ROOT: Final = Path(__file__).resolve().parents[2]
PACKAGES: Final = ("wire", "api", "configs", "store", "quotas", "security", "server", "metrics", "patterns")
_NAME: Final = re.compile(r"(MOST|MAX|LONGEST)_[A-Z0-9_]+")
_SETTING: Final = re.compile(r"(^|\.)(max|min|size)(\.|$)|timeout|korvet\.(max|read|queued|unfinished)|num\.partitions")
_CALLED: Final = re.compile(r"`korvet\.([a-z_.]+)\.([A-Z_]+)`")


class Grant(NamedTuple):
    """A limit that korvet sets: the largest number of something, or its most in one request."""

    things: str
    number: int
    nested: int = 1
    """The elements of each list inside a thing."""


PARTITIONS: Final = Grant("partitions of a topic", MOST_PARTITIONS)
TOPICS: Final = Grant("topics of a member, a partition of each", MOST_NAMES)
MEMBERS: Final = Grant("members of a group", MOST_MEMBERS)
GRANTS: Final[Mapping[str, Grant]] = {
    **dict.fromkeys(("partitions", "partition_data", "partition_indexes", "assignments"), PARTITIONS),
    **dict.fromkeys(
        (
            "topics", "topic_names", "topic_partitions", "v3_and_below_topics", "subscribed_topic_names",
            "forgotten_topics_data",
        ),
        TOPICS,
    ),
    "members": MEMBERS,
    "creations": Grant("access rules of a namespace", MOST_RULES),
    "filters": Grant("access rules of a namespace", MOST_RULES),
    "entries": Grant("quotas of one request", MOST_QUOTAS),
    "upsertions": Grant("credentials of one request", MOST_CREDENTIALS),
    "deletions": Grant("credentials of one request", MOST_CREDENTIALS),
}  # fmt: skip
"""The limits by the last field of a location. Other lists (groups, resources, filters) have no limit of their own."""
OF_AN_API: Final[Mapping[tuple[str, str], Grant]] = {
    ("sync_group", "assignments"): MEMBERS,
    # A CreateTopics makes `MOST_PARTITIONS` at most, and a topic has at least one.
    ("create_topics", "topics"): Grant("partitions of a topic", MOST_PARTITIONS, 0),
    # A producer has a batch for each topic of a request.
    ("produce", "topic_data"): Grant("topics of a Produce, a batch for each", most_elements(0) // 2),
}


def grant_of(location: Location) -> Grant | None:
    """The limit that a list of a request may reach."""
    api, field = registry()[location.key].name, location.path[-1]
    return OF_AN_API.get((api, field)) or GRANTS.get(field)


class Named(NamedTuple):
    """A list of a request with as many things as a limit grants, and the elements of all lists of that request."""

    location: Location
    grant: Grant
    elements: int


def named() -> Iterator[Named]:
    """Every list of every served request that a limit is for."""
    for key, version in versions():
        arrays = [one for one in locations(key, version) if one.is_array]
        for one in arrays:
            grant = grant_of(one)
            if grant is not None:
                inside = sum(len(other.path) > len(one.path) and _is_inside(other, one) for other in arrays)
                elements = len(one.path) - 1 + grant.number * (1 + inside * grant.nested)
                yield Named(one, grant, elements)


def _is_inside(inner: Location, outer: Location) -> bool:
    return inner.path[: len(outer.path)] == outer.path


class Bound(NamedTuple):
    """A public constant of the code."""

    module: str
    name: str
    value: float
    text: str


def bounds() -> Iterator[Bound]:
    """The bounds of the packages that serve clients."""
    for package in PACKAGES:
        for path in sorted((ROOT / "korvet" / package).rglob("*.py")) or [ROOT / "korvet" / f"{package}.py"]:
            module = ".".join(path.relative_to(ROOT).with_suffix("").parts)
            for name, text in _documented(path):
                value: Any = getattr(importlib.import_module(module), name)
                if isinstance(value, int | float) and value > 0:
                    yield Bound(module.removeprefix("korvet."), name, value, text)


def _documented(path: Path) -> Iterator[tuple[str, str]]:
    """The names of bounds that a module makes, each with the first sentence about it."""
    body = ast.parse(path.read_text()).body
    for node, following in zip(body, [*body[1:], None], strict=True):
        target: ast.expr | None = node.target if isinstance(node, ast.AnnAssign) else None
        if isinstance(node, ast.Assign):
            (target, *_) = node.targets
        if isinstance(target, ast.Name) and _NAME.fullmatch(target.id):
            has_text = isinstance(following, ast.Expr) and isinstance(following.value, ast.Constant)
            text = str(following.value.value) if has_text else ""  # type: ignore[union-attr]
            yield target.id, re.split(r"(?<=[a-z`)])\. ", " ".join(text.split()))[0].rstrip(".")


def page() -> str:
    """The whole page."""
    return "".join(
        [
            "# Bounds and limits\n\n",
            "The code makes this page (`./scripts/pages`), and a test compares both. What happens "
            "beyond\na bound is in [compatibility.md](compatibility.md#behaviour-that-no-single-field-shows).\n\n",
            "## Limits, and the requests that reach them\n\n",
            "A request that names as many things as a limit grants is within the bound on its elements.\n\n",
            _table(("limit", "things", "largest request", "elements", "bound"), _granted()),
            "\n## Limits of a tenant\n\n",
            "An operator may set each of these for [a tenant](tenants.md):\n\n",
            *(f"- `{limit}`\n" for limit in TenantLimit),
            "\n## Settings\n\n",
            _table(("setting", "default"), _settings()),
            "\n## Constants\n\n",
            _table(("module", "constant", "value", "meaning"), _constants()),
        ]
    )  # fmt: skip


def _granted() -> Iterator[tuple[str, ...]]:
    largest: dict[tuple[str, int], Named] = {}
    for one in named():
        key = (one.grant.things, most_elements(one.location.key))
        if key not in largest or one.elements > largest[key].elements:
            largest[key] = one
    for (things, most), one in sorted(largest.items()):
        place = f"{registry()[one.location.key].name} `{'.'.join(one.location.path)}`"
        yield things, f"{one.grant.number:,}", place, f"{one.elements:,}", f"{most:,}"


def _settings() -> Iterator[tuple[str, ...]]:
    for name, config in sorted(BROKER_CONFIGS.items()):
        if _SETTING.search(name) and not config.is_fixed and config.documentation[:4] != "Kept":
            yield f"`{name}`", config.default or ""


def _constants() -> Iterator[tuple[str, ...]]:
    for one in bounds():
        yield f"`{one.module}`", f"`{one.name}`", f"{one.value:,}", _CALLED.sub(r"`\2`", one.text)


def _table(head: tuple[str, ...], rows: Iterator[tuple[str, ...]]) -> str:
    lines = [head, ("---",) * len(head), *rows]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)
