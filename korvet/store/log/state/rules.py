"""The rules for records that Redis users add; they lie in the partition's meta hash."""

from __future__ import annotations

from korvet.configs.topics import VALUE_SCHEMA
from korvet.configs.types import split
from korvet.store.catalog.catalog import Catalog
from korvet.store.catalog.topic import Topic


def rules_of(catalog: Catalog, topic: Topic) -> str:
    """The rules in the format of ``lua/2-log/3-records.lua``; empty if no record may be added."""
    if catalog.setting(topic, "korvet.storage") != "record":
        return ""
    flags = (
        catalog.setting(topic, "message.timestamp.type") == "LogAppendTime",
        "compact" in split(catalog.setting(topic, "cleanup.policy")),
        bool(catalog.setting(topic, VALUE_SCHEMA)),
    )
    return " ".join([catalog.setting(topic, "max.message.bytes"), *(str(int(flag)) for flag in flags)])
