"""korvet_log_touch."""

from __future__ import annotations

from tests.lua.log import GONE, Log


def touch(log: Log) -> int:
    return int(log.call("korvet_log_touch", log.topic_id, keys=(log.meta,)))


def test_touch_is_a_write_that_changes_nothing(log: Log) -> None:
    log.append(3)
    before = log.server.hgetall(log.meta)
    changes = log.server.info("persistence")["rdb_changes_since_last_save"]
    assert touch(log) == 0
    assert log.server.info("persistence")["rdb_changes_since_last_save"] == changes + 1
    assert log.server.hgetall(log.meta) == before


def test_touch_works_at_maxmemory(log: Log) -> None:
    log.server.config_set("maxmemory", 1)
    assert touch(log) == 0


def test_touch_spares_another_topic_and_makes_no_partition(log: Log) -> None:
    log.topic_id = "b" * 32
    changes = log.server.info("persistence")["rdb_changes_since_last_save"]
    assert touch(log) == GONE
    assert log.server.info("persistence")["rdb_changes_since_last_save"] == changes
    assert int(log.call("korvet_log_touch", log.topic_id, keys=(log.meta + "x",))) == GONE
    assert log.server.exists(log.meta + "x") == 0
