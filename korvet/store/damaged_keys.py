"""Keys deleted, truncated or replaced by hand: the required type of each, and the repairing command.

The next calls heal most of them. The log and `korvet doctor` name the others by these tables.
"""

from __future__ import annotations

import re
import shlex
from typing import Final

REPAIR: Final = "korvet doctor --repair"
_TYPES: Final = {
    r".*:@catalog": {r"meta|topics|configs|frontends": "hash", r"groups:\d\d": "set"},
    r".*:@security": {r"users|acls|quotas": "hash", r"secret": "string"},
    r".*:@group:.+": {r"group|members|static|offsets|attached|pending": "hash", r"sessions": "zset"},
    r".*:@reader:.+": {r"groups": "hash"},
    r".*:@txn:\d\d": {r"id:.+": "hash", r"deadlines": "zset"},
    r".*:@quota:\d\d": {r".+": "string"},
    r".*:@connections|@tenants": {r"leases": "zset", r"connections:.+|tenants|frontends": "hash", r"secret": "string"},
    r"[^:]*:[^:@]+:\d+": {
        r"log|log:spare|in|in:refused": "stream", r"meta|producers|transactions|shares": "hash",
        r"open|aborted|tier|share:.*": "zset",
        r"log:[^:]+": "string",
    },
}  # fmt: skip
"""The types of a unit's keys: patterns of units and of the names after them."""
_KEY: Final = re.compile(r"korvet:\{(.*?)\}:(.+)")
_WRONG_TYPE: Final = re.compile(r"WRONGTYPE Operation against (korvet:\S+), which holds")
"""The text by which `lua/0-core/4-calls.lua` and `korvet.redis.error_replies` name a key of another type."""
_UNREADABLE: Final = re.compile(r"field (.+) of (korvet:\S+) cannot be read")
_CUT_META: Final = re.compile(r"(korvet:\S+:meta) has a field that is missing or no number")
"""A partition's meta hash is made again from its log when it is gone."""
_DELETED: Final = "@catalog}:configs was deleted"


def type_of(key: str) -> str | None:
    """The Redis type of a key; None if it is none of korvet's, or of any type."""
    found = _KEY.fullmatch(key)
    if found is None:
        return None
    for unit, names in _TYPES.items():
        if re.fullmatch(unit, found[1]):
            return next((kind for name, kind in names.items() if re.fullmatch(name, found[2])), None)
    return None


def repair_of(reason: str) -> str | None:
    """The command that repairs the damage in an error's text, or None."""
    if wrong := _WRONG_TYPE.search(reason) or _CUT_META.search(reason):
        return f"redis-cli DEL {shlex.quote(wrong[1])}"
    if unreadable := _UNREADABLE.search(reason):
        field, key = unreadable.groups()
        return REPAIR if key.endswith("@catalog}:topics") else f"redis-cli HDEL {shlex.quote(key)} {shlex.quote(field)}"
    return REPAIR if _DELETED in reason else None
