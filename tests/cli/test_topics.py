"""``korvet topics`` on korvet and on Apache Kafka."""

import re
from collections.abc import Callable, Iterable
from typing import Any

import confluent_kafka
import pytest
from confluent_kafka.admin import AdminClient

from tests.cli.conftest import Korvet
from tests.kafka.waiting import poll_until
from tests.support.times import DAY, MIDNIGHT_MS

Ask = Callable[..., Any]
Produce = Callable[[str, int, Iterable[int]], None]


def test_topic_is_created_listed_and_deleted(korvet: Korvet, ask: Ask, name: str) -> None:
    assert korvet("topics", "create", name, "--partitions", "3") == (0, f"created topic {name} with 3 partitions\n", "")
    # Kafka answers a creation or a deletion before its metadata follows.
    poll_until(lambda: _listed(ask, name) != [], "the topic in the list")
    assert {"name": name, "partitions": 3, "internal": False}.items() <= _listed(ask, name)[0].items()
    assert re.fullmatch(r"[\w-]{22}", _listed(ask, name)[0]["id"])
    code, out, err = korvet("topics", "delete", name)
    assert (code, out.splitlines()[1].split()[::2]) == (1, [name, "0"])
    assert err == "nothing was changed; add --execute to do it\n"
    assert korvet("topics", "delete", name, "--execute") == (0, f"deleted topic {name}\n", "")
    poll_until(lambda: _listed(ask, name) == [], "the topic gone from the list")


def _listed(ask: Ask, name: str) -> list[dict[str, Any]]:
    return [topic for topic in ask("topics", "list") if topic["name"] == name]


def test_table_of_topics_has_a_line_for_each(korvet: Korvet, ask: Ask, name: str) -> None:
    korvet("topics", "create", name, f"{name}-2")
    poll_until(lambda: all(_listed(ask, one) for one in (name, f"{name}-2")), "the topics in the list")
    code, out, _ = korvet("topics", "list")
    lines = out.splitlines()
    assert (code, lines[0].split()) == (0, ["TOPIC", "PARTITIONS", "ID"])
    assert [line.split()[:2] for line in lines if line.startswith(name)] == [[name, "1"], [f"{name}-2", "1"]]


def test_creating_a_topic_that_exists_fails_without_if_not_exists(korvet: Korvet, name: str) -> None:
    korvet("topics", "create", name)
    code, _, err = korvet("topics", "create", name)
    assert (code, err.startswith(f"korvet: topic '{name}': TOPIC_ALREADY_EXISTS: ")) == (1, True)
    assert korvet("topics", "create", name, "--if-not-exists") == (0, f"topic {name} exists\n", "")


def test_deleting_a_topic_that_does_not_exist_fails_without_if_exists(korvet: Korvet, name: str) -> None:
    code, _, err = korvet("topics", "delete", name, "--execute")
    why = "This server does not host this topic-partition; see all topics with: korvet topics list"
    assert (code, err) == (1, f"korvet: topic '{name}': UNKNOWN_TOPIC_OR_PARTITION: {why}\n")
    assert korvet("topics", "delete", name, "--if-exists", "--execute") == (0, f"topic {name} does not exist\n", "")


def test_illegal_name_is_refused_by_the_broker(korvet: Korvet) -> None:
    code, _, err = korvet("topics", "create", "no spaces")
    assert (code, err.startswith("korvet: topic 'no spaces': INVALID_TOPIC_EXCEPTION")) == (1, True)


def test_description_shows_offsets_and_settings(korvet: Korvet, ask: Ask, produce: Produce, name: str) -> None:
    korvet(
        "topics", "create", name, "-p", "2", "--config", "retention.ms=864000000", "--config", "max.message.bytes=2000"
    )
    produce(name, 1, [MIDNIGHT_MS] * 3)
    (topic,) = ask("topics", "describe", name)
    assert topic["configs"] == {"retention.ms": "864000000", "max.message.bytes": "2000"}
    offsets = [(item["partition"], item["start_offset"], item["end_offset"]) for item in topic["partitions"]]
    assert offsets == [(0, 0, 0), (1, 0, 3)]
    (nothing, no_time), (size, oldest) = ((item["bytes"], item["oldest_timestamp"]) for item in topic["partitions"])
    assert (nothing, no_time, oldest) == (0, None, MIDNIGHT_MS)
    assert 3 * len(b"record") < size < 1000
    _, out, _ = korvet("topics", "describe", name)
    assert out.splitlines()[0].endswith("settings: max.message.bytes=2000, retention.ms=864000000")
    assert [line.split()[-2:] for line in out.splitlines()[1:]] == [
        ["BYTES", "OLDEST"],
        ["0", "-"],
        [str(size), f"{DAY}T00:00:00.000+00:00"],
    ]


def test_description_shows_archived_offsets(
    korvet: Korvet, bootstrap: str, ask: Ask, produce: Produce, name: str
) -> None:
    korvet("topics", "create", name, f"{name}-2", "-p", "2")
    poll_until(lambda: _listed(ask, f"{name}-2") != [], "the topic in the list")
    produce(name, 1, [MIDNIGHT_MS] * 3)
    admin = AdminClient({"bootstrap.servers": bootstrap})
    epoch = ask("topics", "describe", name)[0]["partitions"][1]["leader_epoch"]
    for offset, leader_epoch, shown in ((2, epoch, (2, 1)), (9, epoch, (3, 0)), (2, epoch, (2, 1))):
        archive(admin, name, offset, leader_epoch)
        (topic, plain) = ask("topics", "describe", name, f"{name}-2")
        offsets = [
            (item["archived_offset"], item["not_archived"]) for item in topic["partitions"] + plain["partitions"]
        ]
        assert offsets == [(None, None), shown, (None, None), (None, None)]
    _, out, _ = korvet("topics", "describe", name)
    assert [line.split()[-2:] for line in out.splitlines()[1:]] == [["ARCHIVED", "LEFT"], ["-", "-"], ["2", "1"]]
    assert "ARCHIVED" not in korvet("topics", "describe", f"{name}-2")[1]


def test_description_shows_no_archived_offset_that_retention_ignores(
    korvet: Korvet, bootstrap: str, ask: Ask, produce: Produce, name: str
) -> None:
    korvet("topics", "create", name, "-p", "2")
    produce(name, 1, [MIDNIGHT_MS] * 3)
    admin = AdminClient({"bootstrap.servers": bootstrap})
    # Without an epoch, and with one that the log does not know, the histories may have parted anywhere.
    for leader_epoch in (-1, 99):
        archive(admin, name, 2, leader_epoch)
        (topic,) = ask("topics", "describe", name)
        assert [item["archived_offset"] for item in topic["partitions"]] == [None, None]


def archive(admin: AdminClient, topic: str, offset: int, leader_epoch: int) -> None:
    """Commit an offset of partition 1 as an archive does."""
    position = confluent_kafka.TopicPartition(topic, 1, offset, leader_epoch=leader_epoch)
    asked = confluent_kafka.ConsumerGroupTopicPartitions("korvet.archive", [position])
    admin.alter_consumer_group_offsets([asked])["korvet.archive"].result(30)


def test_describing_an_unknown_topic_fails(korvet: Korvet, name: str) -> None:
    advice = "see all topics with: korvet topics list"
    err = f"korvet: topic '{name}': UNKNOWN_TOPIC_OR_PARTITION; {advice}\n"
    assert korvet("topics", "describe", name) == (1, "", err)


def test_settings_are_changed_and_taken_back(korvet: Korvet, ask: Ask, name: str) -> None:
    korvet("topics", "create", name, "--config", "retention.ms=864000000")
    changed = korvet("topics", "configure", name, "--set", "retention.bytes=1000", "--unset", "retention.ms")
    assert changed == (0, f"configured topic {name}\n", "")
    settings = {item["name"]: item for item in ask("topics", "configure", name)}
    assert (settings["retention.bytes"]["value"], settings["retention.bytes"]["source"]) == ("1000", "topic")
    assert settings["retention.ms"]["value"] == "604800000"
    assert settings["retention.ms"]["source"] != "topic"


@pytest.mark.parametrize("change", ["retention.ms=soon", "retention.moments=1"])
def test_wrong_setting_is_refused(korvet: Korvet, name: str, change: str) -> None:
    korvet("topics", "create", name)
    code, _, err = korvet("topics", "configure", name, "--set", change)
    assert (code, err.startswith(f"korvet: topic '{name}': INVALID_CONFIG")) == (1, True)


def test_partitions_can_only_be_raised(korvet: Korvet, ask: Ask, name: str) -> None:
    korvet("topics", "create", name)
    assert korvet("topics", "configure", name, "--partitions", "4")[0] == 0
    assert len(ask("topics", "describe", name)[0]["partitions"]) == 4
    code, _, err = korvet("topics", "configure", name, "--partitions", "2")
    assert (code, err.startswith(f"korvet: topic '{name}': INVALID_PARTITIONS")) == (1, True)
