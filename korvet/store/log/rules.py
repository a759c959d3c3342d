"""What Redis users may add to a topic's log, which the functions that take it find in the partition's meta hash."""

from __future__ import annotations

from korvet.store.catalog import Catalog, Topic
from korvet.store.configs import split


def rules_of(catalog: Catalog, topic: Topic) -> str:
    """The rules as ``lua/2a_log_records.lua`` reads them; empty where nothing may be added."""
    if catalog.setting(topic, "korvet.storage") != "record":
        return ""
    flags = (
        catalog.setting(topic, "message.timestamp.type") == "LogAppendTime",
        "compact" in split(catalog.setting(topic, "cleanup.policy")),
        bool(catalog.setting(topic, "korvet.value.schema")),
    )
    return " ".join([catalog.setting(topic, "max.message.bytes"), *(str(int(flag)) for flag in flags)])
