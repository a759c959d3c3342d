"""kafka-topics and Kafka's other tools for topics print the same about korvet as about Kafka."""

from __future__ import annotations

import json
from pathlib import Path

from tests.api.raw import unique
from tests.oracle.tools import (
    BEGAN_MS,
    CONSOLE,
    DELETE_RECORDS,
    ELECTION,
    LOG_DIRS,
    OFFSETS,
    REASSIGN,
    TOPICS,
    Tools,
    produce,
)


def test_topic_tool_prints_as_for_kafka(tools: Tools, topic: str) -> None:
    one = ("--topic", topic)
    tools.same(TOPICS, "--create", *one, "--partitions", "1", code=1)
    tools.same(TOPICS, "--create", "--topic", f"{topic}-2", "--config", "retention.ms=long", code=1)
    assert tools.same(TOPICS, "--list", mine=topic) == f"{topic}\n"
    tools.same(TOPICS, "--describe", *one)
    tools.same(TOPICS, "--alter", *one, "--partitions", "3")
    tools.same(TOPICS, "--alter", *one, "--partitions", "2", code=1)
    assert "PartitionCount: 3 ReplicationFactor: 1 Configs: retention.ms=100000000" in tools.same(
        TOPICS, "--describe", *one
    )
    tools.same(TOPICS, "--describe", "--topics-with-overrides", mine=topic)
    tools.same(TOPICS, "--describe", "--under-replicated-partitions", mine=topic)
    tools.same(TOPICS, "--describe", "--unavailable-partitions", mine=topic)
    tools.same(TOPICS, "--describe", "--at-min-isr-partitions", mine=topic)
    tools.same(TOPICS, "--describe", "--topic", f"{topic}-2", code=1)
    tools.same(TOPICS, "--delete", *one)
    assert tools.same(TOPICS, "--list", mine=topic) == ""
    tools.same(TOPICS, "--delete", *one, "--if-exists")


def test_topic_tool_adds_partitions_at_the_nodes_of_metadata(tools: Tools) -> None:
    one = ("--topic", unique("tool"))
    tools.same(TOPICS, "--create", *one, "--replica-assignment", "1,1")
    tools.same(TOPICS, "--alter", *one, "--partitions", "4", "--replica-assignment", "1,1,1,1")
    assert "PartitionCount: 4" in tools.same(TOPICS, "--describe", *one)


def test_record_and_offset_tools_print_as_for_kafka(tools: Tools, topic: str, tmp_path: Path) -> None:
    for broker in tools.brokers:
        produce(broker, topic, 10)
    shown = ("print.key=true", "print.timestamp=true", "print.partition=true", "print.offset=true")
    options = [part for one in shown for part in ("--property", one)]
    read = tools.same(CONSOLE, "--topic", topic, "--from-beginning", "--max-messages", "10", *options)
    assert f"CreateTime:{BEGAN_MS + 9} Partition:0 Offset:9 key value 9\nProcessed a total of 10 messages\n" in read
    for when in ("latest", "earliest", "max-timestamp", str(BEGAN_MS + 4)):
        tools.same(OFFSETS, "--topic-partitions", f"{topic}:0-2", "--time", when)
    tools.same(OFFSETS, "--topic", f"{topic}-2", code=1)
    plan = tmp_path / "offsets.json"
    for offset in (4, 400):
        parts = [{"topic": topic, "partition": 0, "offset": offset}]
        plan.write_text(json.dumps({"version": 1, "partitions": parts}))
        tools.same(DELETE_RECORDS, "--offset-json-file", str(plan))
    assert tools.same(OFFSETS, "--topic", topic, "--time", "-2") == f"{topic}:0:4\n{topic}:1:0\n"


def test_log_directory_tool_prints_as_for_kafka(tools: Tools, topic: str) -> None:
    for broker in tools.brokers:
        # The test sends one record, because the client's timing decides how many records share a batch.
        produce(broker, topic, 1)
    told = json.loads(tools.same(LOG_DIRS, "--describe", "--topic-list", topic, mine="{").replace("DIRECTORY", '""'))
    sizes = {one["partition"]: one["size"] for one in told["brokers"][0]["logDirs"][0]["partitions"]}
    assert sizes[f"{topic}-0"] > 61
    assert sizes[f"{topic}-1"] == 0
    tools.same(LOG_DIRS, "--describe", "--broker-list", "1234567", code=1)


def test_election_tool_prints_as_for_kafka(tools: Tools, topic: str) -> None:
    kind = ("--election-type", "preferred")
    tools.same(ELECTION, *kind, "--all-topic-partitions")
    assert tools.same(ELECTION, *kind, "--topic", topic, "--partition", "0") == (
        f"Valid replica already elected for partitions {topic}-0\n"
    )
    tools.same(ELECTION, "--election-type", "unclean", "--topic", topic, "--partition", "99", code=1)


def test_reassignment_tool_prints_as_for_kafka(tools: Tools, topic: str, tmp_path: Path) -> None:
    assert tools.same(REASSIGN, "--list") == "No partition reassignments found.\n"
    topics, plan = tmp_path / "topics.json", tmp_path / "plan.json"
    topics.write_text(json.dumps({"version": 1, "topics": [{"topic": topic}]}))
    tools.same(REASSIGN, "--generate", "--topics-to-move-json-file", str(topics), "--broker-list", "1")
    for node_id, code in ((1, 0), (2, 1)):
        parts = [{"topic": topic, "partition": 0, "replicas": [node_id], "log_dirs": ["any"]}]
        plan.write_text(json.dumps({"version": 1, "partitions": parts}))
        tools.same(REASSIGN, "--execute", "--reassignment-json-file", str(plan), code=code)
        if code == 0:
            tools.same(REASSIGN, "--verify", "--reassignment-json-file", str(plan))
            tools.same(REASSIGN, "--cancel", "--reassignment-json-file", str(plan))
