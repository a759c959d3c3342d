"""Compare two transcripts of a script field by field, without the fields that may differ."""

import re
import uuid
from collections.abc import Iterator, Mapping, Sequence
from itertools import zip_longest
from typing import Any, Final

from tests.oracle import batches
from tests.oracle.differences import DIFFERENCES, FREE, Difference
from tests.oracle.script import NAMES, Played, Transcript, error_codes
from tests.oracle.versions import ADVERTISED, API_KEYS, OF_NEWEST

_COMPARED: Final = {name: row.compared for row in FREE for name in row.fields}
_KEYS: Final = ("name", "topic", "topic_id", "group_id", "key", "member_id", "resource_name", "partition_index",
                "topic_name", "partition_id", "index", "partition", "api_key")  # fmt: skip
# Lists that hold things of others on the same broker; the comparison takes only the script's own.
_OWN_ONLY: Final = {("list_groups", "groups"): "group_id", ("metadata", "topics"): "name",
                    ("describe_log_dirs", "results[].topics"): "name",
                    ("list_config_resources", "config_resources"): "resource_name",
                    ("list_transactions", "transaction_states"): "transactional_id",
                    ("elect_leaders", "replica_election_results"): "topic"}  # fmt: skip
_MESSAGES: Final = ("error_message", "batch_index_error_message")
_ABSENT: Final = "(absent)"


def _presence(value: Any) -> Any:
    """Kafka's "no message" is null, empty or NONE, depending on the API; negative numbers mean absence."""
    if isinstance(value, list):
        return [_presence(item) for item in value]
    if value is None or (isinstance(value, str) and value.upper() in ("", "NONE")):
        return "(none)"
    return value if isinstance(value, int) and value < 0 else "(present)"


def _order(value: Any) -> str:
    if isinstance(value, dict):
        return repr([value[key] for key in _KEYS if key in value]) + repr(value)
    return repr(value)


class _Normalizer:
    def __init__(self, played: Played, variables: Mapping[str, Any]) -> None:
        self._api = played.api
        self._names = {
            value: f"<{name}>"
            for name, value in variables.items()
            if isinstance(value, str | uuid.UUID) and value not in ("", None)
        }
        self._own = {variables.get(name) for name in NAMES}

    def tree(self, value: Any, path: str = "") -> Any:
        name = path.rsplit(".", 1)[-1].replace("[]", "")
        if isinstance(value, dict):
            return {
                key: self.tree(item, f"{path}.{key}" if path else key)
                for key, item in value.items()
                if _COMPARED.get(key) != "not"
            }
        if name == "records" and (value is None or isinstance(value, bytes)):
            return self.batches(value)
        if isinstance(value, str | uuid.UUID) and value in self._names:
            return self._names[value]
        if _COMPARED.get(name) == "presence":
            return _presence(value)
        if name in _MESSAGES:
            return self.message(value)
        if isinstance(value, list):
            return sorted((self.tree(item, f"{path}[]") for item in self.own(value, path)), key=_order)
        return value

    def message(self, value: str | None) -> str:
        """The text with names for the variables in it; the absence of a message has no form of its own."""
        for variable, name in self._names.items():
            value = value and value.replace(str(variable), name)
        # To a client without rights Kafka's controller shows its own copy of the request.
        value = re.sub(r"^Request Request\(.* needs \w+ permission\.$", "Cluster authorization failed.", value or "")
        return "" if value == "NONE" else value

    def own(self, values: list[Any], path: str) -> list[Any]:
        if (self._api, path) in _OWN_ONLY:
            key = _OWN_ONLY[self._api, path]
            return [item for item in values if item[key] in self._own or not item[key]]
        if (self._api, path) == ("api_versions", "api_keys"):
            # What only the newest Kafka serves, tests/oracle/test_compatibility_page.py compares.
            ours = {API_KEYS[api] for api in ADVERTISED.keys() - OF_NEWEST.keys()}
            return [item for item in values if item["api_key"] in ours]
        return values

    def batches(self, data: bytes | None) -> Any:
        found = batches.describe(data)
        if found is None:
            return None
        # Batches keep their order, because it is the log's order.
        return [{key: _presence(v) if _COMPARED.get(key) else v for key, v in batch.items()} for batch in found]


def normalize(played: Played, variables: Mapping[str, Any]) -> Any:
    """An outcome with names for the script's variables, and without values that two brokers never share."""
    return _Normalizer(played, variables).tree(played.outcome)


def _pairs(left: Sequence[Any], right: Sequence[Any]) -> Iterator[tuple[str, Any, Any]]:
    """Elements of two lists side by side: by key if every element of both has a distinct one, else by position."""
    for key in _KEYS:
        keys = [[item.get(key) if isinstance(item, dict) else None for item in side] for side in (left, right)]
        if all(None not in side and len(set(map(repr, side))) == len(side) for side in keys) and (left or right):
            ones, others = (
                dict(zip(map(repr, keys[0]), left, strict=True)),
                dict(zip(map(repr, keys[1]), right, strict=True)),
            )
            for name in dict.fromkeys([*ones, *others]):
                yield f"[{key}={name}]", ones.get(name, _ABSENT), others.get(name, _ABSENT)
            return
    for index, (one, other) in enumerate(zip_longest(left, right, fillvalue=_ABSENT)):
        yield f"[{index}]", one, other


def diff(left: Any, right: Any, path: str = "", shown: str = "") -> Iterator[tuple[str, str, Any, Any]]:
    """Yield (path, path as shown with indexes, left value, right value) for every leaf that is not equal."""
    if isinstance(left, dict) and isinstance(right, dict):
        for key in dict.fromkeys([*left, *right]):
            inner = f"{path}.{key}" if path else key
            yield from diff(left.get(key, _ABSENT), right.get(key, _ABSENT), inner, f"{shown}.{key}" if shown else key)
    elif isinstance(left, list) and isinstance(right, list):
        for index, one, other in _pairs(left, right):
            yield from diff(one, other, f"{path}[]", f"{shown}{index}")
    elif type(left) is not type(right) or left != right:
        yield path or "answer", shown or "answer", left, right


def _allowed(played: Played, script: str, path: str, differences: Sequence[Difference], *, extra: bool) -> bool:
    if any(path == ignored or path.startswith((f"{ignored}.", f"{ignored}[")) for ignored in played.ignore):
        return True
    return any(row.covers(played.api, script, path) and (extra or not row.extra) for row in differences)


def mismatches(
    script: str, kafka: Transcript, korvet: Transcript, differences: Sequence[Difference] = DIFFERENCES
) -> list[str]:
    """One line for each field in which korvet differs from Kafka, unless a row of the table allows it."""
    lines = []
    for ours, theirs in zip(korvet.played, kafka.played, strict=True):
        left, right = normalize(theirs, kafka.variables), normalize(ours, korvet.variables)
        for path, shown, one, other in diff(left, right):
            if not _allowed(theirs, script, path, differences, extra=one == _ABSENT):
                lines.append(f"{theirs.label}: {shown}: Kafka {one!r}, korvet {other!r}")
    return lines


def surprises(kafka: Transcript) -> list[str]:
    """One line for each answer of Kafka with other error codes than the script states: the script is wrong."""
    lines = []
    for played in kafka.played:
        found = error_codes(played.outcome) if isinstance(played.outcome, dict) else {played.outcome}
        if played.errors is not None and found != set(played.errors):
            lines.append(f"{played.label}: Kafka answered {sorted(found)}, the script says {sorted(played.errors)}")
    return lines
