"""Orders are added up in Redis exactly once, however often this is killed. BROKER and REDIS name other servers.

The Redis has korvet's library: korvet functions load --redis URL. docs/apply.md has the rules that this keeps.
"""

import json
import os

import redis
from confluent_kafka import (
    OFFSET_BEGINNING,
    Consumer,
    KafkaError,
    KafkaException,
    Message,
    Producer,
    TopicCollection,
    TopicPartition,
)
from confluent_kafka.admin import AdminClient, NewTopic

from korvet.apply import Claim, ClaimLost, Command, Place

BROKER = os.environ.get("BROKER", "127.0.0.1:9092")
TOPIC = GROUP = APPLICATION = "example-applied"
ORDERS = 10
TAGS = [f"{{customer-{number}}}" for number in range(3)]
store = redis.Redis.from_url(os.environ.get("REDIS", "redis://127.0.0.1:6379"))
admin = AdminClient({"bootstrap.servers": BROKER})


def produce() -> None:
    def stored(error: KafkaError | None, message: Message) -> None:
        if error is not None:
            raise KafkaException(error)

    producer = Producer({"bootstrap.servers": BROKER, "enable.idempotence": True})
    for number in range(ORDERS):
        value = json.dumps({"order": number, "amount": 10 * number})
        producer.produce(TOPIC, value, key=f"customer-{number % 3}", on_delivery=stored)
    producer.flush(30)


class Billing:
    """A consumer of a group, the claims of its partitions, and where those that were claimed have yet to begin."""

    def __init__(self) -> None:
        self.claims: dict[int, Claim] = {}
        self.begins: dict[int, TopicPartition] = {}
        self.consumer = Consumer(
            {
                "bootstrap.servers": BROKER,
                "group.id": GROUP,
                "group.protocol": "consumer",
                "auto.offset.reset": "earliest",
                "enable.auto.commit": False,
                "enable.partition.eof": True,
                "isolation.level": "read_committed",
            }
        )
        self.consumer.subscribe([TOPIC], on_assign=self.assigned, on_revoke=self.revoked, on_lost=self.lost)

    def claim(self, partition: int) -> None:
        """Claim a partition of the topic as it is now."""
        topic = admin.describe_topics(TopicCollection([TOPIC]))[TOPIC].result(30)
        claim = Claim(store, APPLICATION, str(topic.topic_id), partition, [f"{tag}:applied" for tag in TAGS])
        epoch, offset = claim.place
        self.claims[partition] = claim
        self.begins[partition] = TopicPartition(TOPIC, partition, offset + 1 if offset >= 0 else OFFSET_BEGINNING)
        if epoch >= 0:
            self.begins[partition] = TopicPartition(TOPIC, partition, offset + 1, leader_epoch=epoch)

    def assigned(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        for one in partitions:
            self.claim(one.partition)
        consumer.incremental_assign(partitions)

    def revoked(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        for one in partitions:
            self.settle(one.partition)
        self.lost(consumer, partitions)

    def lost(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        for one in partitions:
            self.claims.pop(one.partition, None)
            self.begins.pop(one.partition, None)
        consumer.incremental_unassign(partitions)

    def seek(self) -> None:
        """Begin where the claims say; librdkafka notices a lost end of the topic in a seek, not in an assignment."""
        for partition, begin in [*self.begins.items()]:
            try:
                self.consumer.seek(begin)
            except KafkaException as error:
                # The assignment is not in effect yet.
                if error.args[0].code() != KafkaError._STATE:
                    raise
            else:
                del self.begins[partition]

    def apply(self, messages: list[Message]) -> set[int]:
        """Apply records in the order in which they came. Returns the partitions whose end was reached."""
        ended = set()
        for message in messages:
            partition = message.partition()
            if (error := message.error()) is not None and error.code() != KafkaError._PARTITION_EOF:
                raise KafkaException(error)
            if partition not in self.claims or partition in self.begins:
                continue
            if error is not None:
                ended.add(partition)
                continue
            try:
                self.claims[partition].add(*record(message))
            except ClaimLost:
                self.claim(partition)
        for partition in self.claims.keys() - self.begins.keys():
            try:
                self.claims[partition].flush()
            except ClaimLost:
                self.claim(partition)
        return ended - self.begins.keys()

    def settle(self, partition: int) -> None:
        """Commit what Redis keeps; the group's lag shows it."""
        try:
            offset = self.claims[partition].settle()
        except ClaimLost:
            self.claim(partition)
            return
        if offset is not None:
            self.consumer.commit(offsets=[TopicPartition(TOPIC, partition, offset)], asynchronous=False)

    def run(self) -> None:
        """Read until the ends of all partitions."""
        ended: set[int] = set()
        while not self.claims or ended < self.claims.keys():
            ended |= self.apply(self.consumer.consume(100, 1))
            self.seek()
        for partition in [*self.claims]:
            self.settle(partition)
        self.consumer.close()


def record(message: Message) -> tuple[Place, dict[str, list[Command]]]:
    """A record's place, and its commands by the applied hash of their tag."""
    epoch, tag = message.leader_epoch(), f"{{{(message.key() or b'').decode()}}}"
    order = json.loads(message.value() or b"{}")
    commands: list[Command] = [("INCRBY", f"{tag}:amount", order["amount"]), ("RPUSH", f"{tag}:orders", order["order"])]
    return Place(-1 if epoch is None else epoch, message.offset() or 0), {f"{tag}:applied": commands}


def amount_in_topic() -> int:
    """The sum of all orders, read by a consumer without a group's place."""
    consumer = Consumer({"bootstrap.servers": BROKER, "group.id": f"{GROUP}-check", "enable.partition.eof": True})
    consumer.assign([TopicPartition(TOPIC, partition, OFFSET_BEGINNING) for partition in range(3)])
    amount, ended = 0, 0
    while ended < 3:
        message = consumer.poll(30)
        if message is None:
            raise TimeoutError("no record came for 30 s")
        if message.error() is None:
            amount += json.loads(message.value() or b"{}")["amount"]
        else:
            ended += 1
    consumer.close()
    return amount


def main() -> None:
    try:
        admin.create_topics([NewTopic(TOPIC, 3)])[TOPIC].result(30)
    except KafkaException as error:
        if error.args[0].code() != KafkaError.TOPIC_ALREADY_EXISTS:
            raise
    produce()
    Billing().run()
    in_redis, in_topic = sum(int(store.get(f"{tag}:amount") or 0) for tag in TAGS), amount_in_topic()
    print(f"Redis has {in_redis}, the topic {in_topic}")
    print("both have the same" if in_redis == in_topic else "they differ")


main()
