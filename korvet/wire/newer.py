"""Versions of Kafka 4.4's APIs that kio 0.6.5 lacks, made from its newest ones.

Each is a change of the version before, by Kafka's message definitions (clients/src/main/resources/common/message). The
classes are as kio would generate them: names, types and metadata. A version that kio has is taken from there, so its
row here can then go.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import MISSING, field, fields, is_dataclass, make_dataclass
from functools import cache
from types import GenericAlias, UnionType
from typing import Any, Final, NamedTuple, get_args, get_origin
from uuid import UUID

from kio.index import UnknownEntity, load_request_schema, load_response_schema
from kio.static.primitive import i8, i16, i32


class _New(NamedTuple):
    """A field; it comes last, or in the place of another one."""

    name: str
    type: Any
    kafka_type: str
    default: Any = MISSING
    instead_of: str = ""


_BY_ID: Final = (_New("topic_id", UUID | None, "uuid", instead_of="name"),)
CHANGES: Final[Mapping[tuple[int, int], Mapping[str, tuple[_New, ...]]]] = {
    # KIP-1242: the cluster and the node to which the client means to talk.
    (18, 5): {
        "ApiVersionsRequest": (_New("cluster_id", str | None, "string", None), _New("node_id", i32, "int32", i32(-1)))
    },
    # KIP-1228: the version of the transaction that the marker ends.
    (27, 2): {"WritableTxnMarker": (_New("transaction_version", i8, "int8", i8(0)),)},
    # KIP-1319: topics by their ids.
    (28, 6): {"TxnOffsetCommitRequestTopic": _BY_ID, "TxnOffsetCommitResponseTopic": _BY_ID},
    # KIP-1331: messages of errors.
    (42, 3): {"DeletableGroupResult": (_New("error_message", str | None, "string", None),)},
}
"""By key and version: the new fields of each entity, by the names of its class."""
_CONSTANTS: Final = ("__type__", "__flexible__", "__api_key__", "__header_schema__")


@cache
def request_class(api_key: int, version: int) -> Any:
    """The class of a request.

    :raises KioIndexError: nobody knows this version.
    """
    return _class(api_key, version, load_request_schema, request_class)


@cache
def response_class(api_key: int, version: int) -> Any:
    """As `request_class`, of a response."""
    return _class(api_key, version, load_response_schema, response_class)


def _class(api_key: int, version: int, load: Callable[[int, int], Any], before: Callable[[int, int], Any]) -> Any:
    try:
        return load(api_key, version)
    except UnknownEntity:
        if (api_key, version) not in CHANGES:
            raise
        return _changed(before(api_key, version - 1), version, CHANGES[api_key, version])


def _changed(schema: Any, version: int, changes: Mapping[str, tuple[_New, ...]]) -> Any:
    new = changes.get(schema.__name__, ())
    places = {one.instead_of: one for one in new if one.instead_of}
    made = [
        _field(places[old.name])
        if old.name in places
        else (old.name, _type(old.type, version, changes), field(default=old.default, metadata=old.metadata))
        for old in fields(schema)
    ]
    made += [_field(one) for one in new if not one.instead_of]
    constants = {name: getattr(schema, name) for name in _CONSTANTS} | {"__version__": i16(version)}
    return make_dataclass(schema.__name__, made, namespace=constants, frozen=True, slots=True, kw_only=True)


def _field(new: _New) -> tuple[str, Any, Any]:
    return new.name, new.type, field(default=new.default, metadata={"kafka_type": new.kafka_type})


def _type(kind: Any, version: int, changes: Mapping[str, tuple[_New, ...]]) -> Any:
    """A field's type, with the entities of this version in it."""
    if is_dataclass(kind):
        return _changed(kind, version, changes)
    if get_origin(kind) is UnionType:
        one, other = (_type(one, version, changes) for one in get_args(kind))
        return one | other
    if get_origin(kind) is tuple:
        return GenericAlias(tuple, (_type(get_args(kind)[0], version, changes), ...))
    return kind
