"""Each task's rows once: repeated tasks, other partitions, two tasks at once, and brokers that go away."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest
from confluent_kafka import Consumer, ConsumerGroupTopicPartitions, Producer, TopicPartition
from confluent_kafka.admin import AdminClient

from korvet.pipeline.broker import Broker
from korvet.pipeline.errors import BrokerUnreachable, PipelineError, UnknownTopic
from korvet.pipeline.sink import delivery, once
from korvet.pipeline.sink.delivery import Delivery, Fenced
from korvet.pipeline.sink.once import Task, write_once
from tests.pipeline.sinking import Step, batches, numbers, task
from tests.pipeline.written import create_topic
from tests.support.broker import KorvetServer, running_broker
from tests.support.kafka import free_port
from tests.support.redis import Server


def write(bootstrap: str, task: Task, *steps: Step, confirm_within_s: float = 60, **settings: str) -> int:
    """Write numbers to the topic of the query's name; a callable step runs between batches."""
    given = {"bootstrap.servers": bootstrap, **{name.replace("_", "."): value for name, value in settings.items()}}
    return write_once(given, task, batches(task.query, steps), confirm_within_s=confirm_within_s)


def test_repeated_task_writes_nothing(broker: KorvetServer) -> None:
    topic = create_topic(broker.bootstrap, "once-again")
    for run in ("first", "first", "second"):
        assert write(broker.bootstrap, task(topic, run=run), range(10), range(10, 15)) == 15
    assert write(broker.bootstrap, task(topic, batch=1), range(15, 20)) == 5
    assert numbers(broker.bootstrap, topic) == list(range(20))


def test_task_without_rows_notes_nothing(broker: KorvetServer) -> None:
    topic = create_topic(broker.bootstrap, "once-empty")
    assert write(broker.bootstrap, task(topic), []) == 0
    with Broker({"bootstrap.servers": broker.bootstrap}) as admin:
        assert admin.group_ids(task(topic).query_group) == []


def test_readers_skip_a_transaction_that_a_task_left_open(broker: KorvetServer) -> None:
    topic = create_topic(broker.bootstrap, "once-open")
    killed = Producer({"bootstrap.servers": broker.bootstrap, "transactional.id": task(topic).group})
    killed.init_transactions(30)
    killed.begin_transaction()
    killed.produce(topic, "13")
    assert killed.flush(30) == 0
    assert write(broker.bootstrap, task(topic), range(3)) == 3
    assert numbers(broker.bootstrap, topic) == [0, 1, 2]


def test_second_task_of_a_partition_fences_the_first(broker: KorvetServer) -> None:
    topic = create_topic(broker.bootstrap, "once-zombie")

    def other() -> None:
        write(broker.bootstrap, task(topic), range(6))

    with pytest.raises(PipelineError, match="ended by another task of the same partition"):
        write(broker.bootstrap, task(topic), range(3), other, range(3, 6))
    assert numbers(broker.bootstrap, topic) == list(range(6))


def test_task_fenced_after_its_last_row_writes_nothing(broker: KorvetServer) -> None:
    topic = create_topic(broker.bootstrap, "once-late-zombie")

    def other() -> None:
        write(broker.bootstrap, task(topic), range(6))

    with pytest.raises(PipelineError, match="ended by another task of the same partition"):
        write(broker.bootstrap, task(topic), range(6), other)
    assert numbers(broker.bootstrap, topic) == list(range(6))


def test_fenced_producer_says_so_if_its_callbacks_lost_the_error(broker: KorvetServer) -> None:
    topic = create_topic(broker.bootstrap, "once-lost-error")
    own = {"transactional.id": task(topic).group, "transaction.timeout.ms": "60000"}
    settings = {"bootstrap.servers": broker.bootstrap} | own
    fenced, winner = Delivery(settings), Delivery(settings)

    def lose(_: float) -> int:
        raise SystemError

    fenced.producer.init_transactions(30)
    fenced.producer.begin_transaction()
    winner.producer.init_transactions(30)
    with pytest.raises(Fenced):
        fenced.send([(topic, b"1", None, 0, 0, [])])
        fenced.finish()
    with pytest.raises(Fenced):
        fenced._serve(lose, 0)
    with pytest.raises(SystemError):
        winner._serve(lose, 0)


def test_repeated_task_with_other_rows_is_refused(broker: KorvetServer) -> None:
    topic = create_topic(broker.bootstrap, "once-other")
    write(broker.bootstrap, task(topic), range(10))
    for rows in (range(5), range(0), range(11), range(10, 20)):
        with pytest.raises(PipelineError, match="and the rows that its partitions 0 have written did not come again"):
            write(broker.bootstrap, task(topic, run="second"), rows, confirm_within_s=0)
        with pytest.raises(PipelineError, match=f"was written with 10 other rows than the {len(rows)} that it has"):
            write(broker.bootstrap, task(topic), rows)
    assert numbers(broker.bootstrap, topic) == list(range(10))


def test_batch_repeated_with_more_partitions_writes_nothing(broker: KorvetServer) -> None:
    """The first of two partitions was written. With four, its rows are in the first and the second."""
    topic = create_topic(broker.bootstrap, "once-grown")
    write(broker.bootstrap, task(topic), range(10))
    with pytest.raises(PipelineError, match="the rows that its partitions 0 have written did not come again"):
        write(broker.bootstrap, task(topic, partition=1, run="second"), range(5, 10), confirm_within_s=0)
    assert numbers(broker.bootstrap, topic) == list(range(10))


def test_batch_repeated_with_fewer_partitions_writes_nothing(broker: KorvetServer) -> None:
    """The fourth partition was written, and there are two now."""
    topic = create_topic(broker.bootstrap, "once-shrunk")
    write(broker.bootstrap, task(topic, partition=3), range(15, 20))
    with pytest.raises(PipelineError, match="the rows that its partitions 3 have written did not come again"):
        write(broker.bootstrap, task(topic, partition=1, run="second"), range(10, 20), confirm_within_s=1)
    assert numbers(broker.bootstrap, topic) == list(range(15, 20))


def test_renumbered_tasks_find_their_rows(broker: KorvetServer) -> None:
    """Spark's Kafka source renumbers after a restart. The first and the last of three tasks were written."""
    topic = create_topic(broker.bootstrap, "once-renumbered")
    write(broker.bootstrap, task(topic, partition=0), range(10))
    write(broker.bootstrap, task(topic, partition=2), range(20, 30))
    with ThreadPoolExecutor() as threads:
        # It waits for the two that come later.
        first = threads.submit(write, broker.bootstrap, task(topic, partition=0, run="second"), range(10, 20))
        write(broker.bootstrap, task(topic, partition=1, run="second"), range(20, 30))
        write(broker.bootstrap, task(topic, partition=2, run="second"), range(10))
        assert first.result(60) == 10
    assert numbers(broker.bootstrap, topic) == list(range(30))
    # Two more runs write nothing: a repeated task, and a run in the first order.
    write(broker.bootstrap, task(topic, partition=0, run="second"), range(10, 20))
    for partition, start in enumerate((0, 10, 20)):
        write(broker.bootstrap, task(topic, partition=partition, run="third"), range(start, start + 10))
    assert numbers(broker.bootstrap, topic) == list(range(30))
    for partition, start in enumerate((30, 40, 50)):
        write(broker.bootstrap, task(topic, batch=1, partition=partition, run="fourth"), range(start, start + 10))
    assert numbers(broker.bootstrap, topic) == list(range(60))


def test_task_of_a_dead_driver_finds_its_rows_at_another(broker: KorvetServer) -> None:
    topic = create_topic(broker.bootstrap, "once-outlived")

    def next_run() -> None:
        write(broker.bootstrap, task(topic, partition=1, run="second"), range(3))

    write(broker.bootstrap, task(topic), range(3), next_run)
    assert numbers(broker.bootstrap, topic) == [0, 1, 2]


def test_task_of_a_dead_driver_writes_nothing_after_the_next_run(broker: KorvetServer) -> None:
    """The task's own run began the batch, and no task of its number has fenced it yet."""
    topic = create_topic(broker.bootstrap, "once-begun-outlived")
    write(broker.bootstrap, task(topic), range(10))

    def next_run() -> None:
        write(broker.bootstrap, task(topic, partition=2, run="second"), range(10))
        write(broker.bootstrap, task(topic, partition=0, run="second"), range(10, 20))

    with pytest.raises(PipelineError, match="another run of the query goes on with it; this one ends"):
        write(broker.bootstrap, task(topic, partition=1), range(10, 20), next_run)
    assert numbers(broker.bootstrap, topic) == list(range(20))


def test_repeated_task_takes_no_second_note_of_equal_rows(broker: KorvetServer) -> None:
    """When the task took the first note, another task was about to take the task's own, and died."""
    topic = create_topic(broker.bootstrap, "once-repeated-equal")
    for partition in (0, 1):
        write(broker.bootstrap, task(topic, partition=partition), range(3))
    first, second = (task(topic, partition=partition, run="second") for partition in (0, 1))
    with Broker({"bootstrap.servers": broker.bootstrap}) as admin:
        ((topic_partition, note),) = admin.committed(second.group).items()
        taken = json.loads(note.metadata) | {"run": first.run, "task": first.partition}
        admin.commit(second.group, {topic_partition: replace(note, metadata=json.dumps(taken))})
    for one in (first, second):
        write(broker.bootstrap, one, range(3))
    assert numbers(broker.bootstrap, topic) == [0, 0, 1, 1, 2, 2]


def test_tasks_with_equal_rows_are_each_written_once(broker: KorvetServer) -> None:
    topic = create_topic(broker.bootstrap, "once-equal")
    write(broker.bootstrap, task(topic, partition=1), range(3))
    with ThreadPoolExecutor() as threads:
        again = [task(topic, partition=partition, run="second") for partition in range(3)]
        tasks = [threads.submit(write, broker.bootstrap, one, range(3)) for one in again]
        assert [one.result(60) for one in tasks] == [3, 3, 3]
    assert numbers(broker.bootstrap, topic) == [0, 0, 0, 1, 1, 1, 2, 2, 2]


def test_task_that_took_a_note_may_not_change_its_rows(broker: KorvetServer) -> None:
    topic = create_topic(broker.bootstrap, "once-held")
    write(broker.bootstrap, task(topic, partition=1), range(3))
    again = task(topic, partition=0, run="second")
    for _ in range(2):
        write(broker.bootstrap, again, range(3))
    with pytest.raises(PipelineError, match="was written with 3 other rows than the 4 that it has now"):
        write(broker.bootstrap, again, range(4))
    assert numbers(broker.bootstrap, topic) == [0, 1, 2]


def test_task_that_died_taking_a_note_hinders_the_next_briefly(broker: KorvetServer) -> None:
    topic = create_topic(broker.bootstrap, "once-half-taken")
    write(broker.bootstrap, task(topic), range(3))
    killed = Producer(
        {
            "bootstrap.servers": broker.bootstrap,
            "transactional.id": f"{task(topic).group}-taken",
            "transaction.timeout.ms": 5000,
            "message.timeout.ms": 5000,
        }
    )
    killed.init_transactions(30)
    killed.begin_transaction()
    member = Consumer({"group.id": task(topic).group}).consumer_group_metadata()
    killed.send_offsets_to_transaction([TopicPartition(topic, 0, 1, "{}")], member)
    assert write(broker.bootstrap, task(topic, run="second"), range(3)) == 3
    assert numbers(broker.bootstrap, topic) == [0, 1, 2]


def test_batch_of_another_run_goes_on_when_its_tasks_came_again(broker: KorvetServer) -> None:
    topic = create_topic(broker.bootstrap, "once-confirmed")
    write(broker.bootstrap, task(topic, partition=1), range(10, 20))
    with ThreadPoolExecutor() as threads:
        first = threads.submit(write, broker.bootstrap, task(topic, run="second"), range(10))
        write(broker.bootstrap, task(topic, partition=1, run="second"), range(10, 20))
        assert first.result(60) == 10
    # The third task comes last: all notes are taken, so it waits for none.
    write(broker.bootstrap, task(topic, partition=2, run="second"), range(20, 30), confirm_within_s=0)
    assert numbers(broker.bootstrap, topic) == list(range(30))


def test_sink_refuses_an_older_checkpoint(broker: KorvetServer) -> None:
    topic = create_topic(broker.bootstrap, "once-older")
    write(broker.bootstrap, task(topic, batch=7), range(3))
    for partition in (0, 1):
        with pytest.raises(PipelineError, match="batch 7 of the query is written already, so its checkpoint is an old"):
            write(broker.bootstrap, task(topic, batch=6, partition=partition, run="second"), range(3))
    assert numbers(broker.bootstrap, topic) == [0, 1, 2]


@pytest.mark.parametrize("metadata", ["", "7", "{}", '{"run": "first"'])
def test_sink_refuses_a_note_that_somebody_else_set(broker: KorvetServer, metadata: str) -> None:
    topic = create_topic(broker.bootstrap, f"once-set-{len(metadata)}")
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    positions = [TopicPartition(topic, 0, 1, metadata)]
    request = ConsumerGroupTopicPartitions(task(topic).group, positions)
    (future,) = admin.alter_consumer_group_offsets([request]).values()
    future.result(30)
    with pytest.raises(PipelineError, match="are not the sink's, so another client has set them"):
        write(broker.bootstrap, task(topic), range(3))
    assert numbers(broker.bootstrap, topic) == []


def test_tasks_keep_their_notes_over_several_topics(broker: KorvetServer) -> None:
    first, second = (create_topic(broker.bootstrap, f"once-topics-{name}") for name in "ab")
    settings = {"bootstrap.servers": broker.bootstrap}
    for batch, topic in enumerate((first, second)):
        for _ in range(2):
            write_once(settings, task("once-topics", batch=batch), batches(topic, [range(3)]), confirm_within_s=0)
    assert numbers(broker.bootstrap, first) == numbers(broker.bootstrap, second) == [0, 1, 2]


def test_repeated_task_of_several_topics_is_recognized(broker: KorvetServer) -> None:
    first, second = (create_topic(broker.bootstrap, f"once-mixed-{name}") for name in "ab")
    settings = {"bootstrap.servers": broker.bootstrap}

    def write_mixed(partition: int, run: str, *topics: str) -> None:
        mixed = [record for topic in topics for record in batches(topic, [range(3)])]
        who = task("once-mixed", partition=partition, run=run)
        write_once(settings, who, iter(mixed), confirm_within_s=0)

    write_mixed(0, "first", first, second)
    write_mixed(0, "second", first, second)
    # This task would wait for the first one, had that not come again.
    write_mixed(1, "second", second)
    assert numbers(broker.bootstrap, first) == [0, 1, 2]
    assert numbers(broker.bootstrap, second) == [0, 0, 1, 1, 2, 2]


def test_killed_front_end_changes_nothing(redis_server: Server) -> None:
    with running_broker(redis_url=redis_server.url) as server:
        topic = create_topic(server.bootstrap, f"once-killed-{redis_server.kind}")
        write(server.bootstrap, task(topic), range(100), lambda: server.restart(crash=True), range(100, 200))
        write(server.bootstrap, task(topic), range(100), range(100, 200))
        assert numbers(server.bootstrap, topic) == list(range(200))


def test_killed_redis_fails_the_task_and_doubles_nothing() -> None:
    with running_broker() as server:
        topic = create_topic(server.bootstrap, "once-restarted")
        # Redis may lose a part of the acknowledged records.
        with pytest.raises(PipelineError, match="write to once-restarted"):
            write(server.bootstrap, task(topic), range(100), lambda: server.restart(crash=True), range(100, 200))
        write(server.bootstrap, task(topic), range(100), range(100, 200))
        assert numbers(server.bootstrap, topic) == list(range(200))


def test_broker_that_goes_away_fails_the_task() -> None:
    with running_broker() as server:
        topic = create_topic(server.bootstrap, "once-away")
        with pytest.raises(BrokerUnreachable, match=r"write to once-away(-\d)?: no broker answers"):
            write(server.bootstrap, task(topic), range(5), server.kill, range(5, 10), message_timeout_ms="2000")
        server.start()
        assert numbers(server.bootstrap, topic) == []
        write(server.bootstrap, task(topic), range(10))
        assert numbers(server.bootstrap, topic) == list(range(10))


def test_broker_away_from_the_start_fails_the_task(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (delivery, once):
        monkeypatch.setattr(module, "TIMEOUT_S", 1.0)
    nowhere = f"127.0.0.1:{free_port()}"
    with pytest.raises(BrokerUnreachable, match=f"no broker answers at {nowhere}"):
        write(nowhere, task("nowhere"), range(3))
    writer = Delivery({"bootstrap.servers": nowhere})
    with pytest.raises(BrokerUnreachable, match=f"no broker answers at {nowhere}"):
        writer.reach()
    writer.close()


def test_missing_topic_fails_the_task_if_the_broker_creates_none() -> None:
    with running_broker(broker={"auto.create.topics.enable": "false"}) as server:
        with pytest.raises(UnknownTopic, match="write to missing: it does not exist at"):
            write(server.bootstrap, task("missing"), range(3), topic_metadata_propagation_max_ms="500")
        writer = Delivery({"bootstrap.servers": server.bootstrap, "topic.metadata.propagation.max.ms": "500"})
        with pytest.raises(UnknownTopic, match="write to missing: it does not exist at"):
            writer.send([("missing", "1", None, -1, 0, None)])
            writer.finish()
        writer.close()


def test_transaction_may_have_less_time_than_a_record(broker: KorvetServer) -> None:
    topic = create_topic(broker.bootstrap, "once-short")
    assert write(broker.bootstrap, task(topic), range(3), transaction_timeout_ms="60000") == 3
    assert numbers(broker.bootstrap, topic) == [0, 1, 2]


def test_settings_unknown_to_the_client_are_refused() -> None:
    with pytest.raises(PipelineError, match="client settings: No such configuration property"):
        Delivery({"bootstrap.servers": "127.0.0.1:1", "no.such.setting": "1"})
