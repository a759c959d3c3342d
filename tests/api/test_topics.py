"""Topics that are created, grown and deleted, where korvet's own keys and bounds show. The oracle compares the rest."""

from tests.api.raw import ask, create_topics, created, errors, unique
from tests.support.broker import KorvetServer


def test_a_name_that_collides_with_an_existing_one_is_refused(broker: KorvetServer) -> None:
    dotted = created(broker.port, f"{unique()}.x")
    underscored = dotted.replace(".", "_")
    message = f"Topic '{underscored}' collides with existing topic: {dotted}"
    results = create_topics(broker.port, {"name": underscored})
    assert errors(results) == [(underscored, "INVALID_TOPIC_EXCEPTION", message)]


def test_new_names_of_one_request_do_not_collide(broker: KorvetServer) -> None:
    base = unique()
    results = create_topics(broker.port, {"name": f"{base}.x"}, {"name": f"{base}_x"})
    assert [result["error_code"] for result in results] == ["NONE", "NONE"]


def test_a_topic_does_not_grow_beyond_its_bound(broker: KorvetServer) -> None:
    name = created(broker.port)
    asked = [{"name": name, "count": 10_001, "assignments": None}]
    answer = ask(broker.port, "create_partitions", 3, topics=asked, timeout=10_000)
    assert errors(answer["results"]) == [(name, "POLICY_VIOLATION", "A topic has at most 10000 partitions.")]


def test_deletion_leaves_nothing_and_frees_the_name(broker: KorvetServer) -> None:
    name = created(broker.port, partitions=2)
    ask(broker.port, "delete_topics", 5, topic_names=[name], timeout=10_000)
    with broker.redis() as client:
        assert list(client.scan_iter(match=f"*{name}*", count=1000)) == []
    assert created(broker.port, name) == name


def test_all_topics_are_paged_from_the_next_name(broker: KorvetServer) -> None:
    base = unique()
    for end in "ab":
        created(broker.port, f"{base}-{end}", 2)
    cursor = {"topic_name": f"{base}-", "partition_index": 1}
    answer = ask(broker.port, "describe_topic_partitions", 0, topics=[], response_partition_limit=2, cursor=cursor)
    (topic,) = answer["topics"]
    assert (topic["name"], [part["partition_index"] for part in topic["partitions"]]) == (f"{base}-a", [0, 1])
    assert answer["next_cursor"] == {"topic_name": f"{base}-b", "partition_index": 0}
