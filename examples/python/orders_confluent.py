"""Confluent's client: ten orders are produced, and a group reads them. BROKER names another broker."""

import json
import os

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, Producer
from confluent_kafka.admin import AdminClient, NewTopic

BROKER = os.environ.get("BROKER", "127.0.0.1:9092")
TOPIC = GROUP = "example-confluent"
ORDERS = 10


def create() -> None:
    admin = AdminClient({"bootstrap.servers": BROKER})
    try:
        admin.create_topics([NewTopic(TOPIC, 3)])[TOPIC].result(30)
    except KafkaException as error:
        if error.args[0].code() != KafkaError.TOPIC_ALREADY_EXISTS:
            raise


def produce() -> None:
    def stored(error: KafkaError | None, message: Message) -> None:
        if error is not None:
            raise KafkaException(error)

    producer = Producer({"bootstrap.servers": BROKER, "enable.idempotence": True})
    for number in range(ORDERS):
        value = json.dumps({"order": number, "amount": 10 * number})
        producer.produce(TOPIC, value, key=f"customer-{number % 3}", on_delivery=stored)
    producer.flush(30)


def consume() -> None:
    consumer = Consumer(
        {
            "bootstrap.servers": BROKER,
            "group.id": GROUP,
            "group.protocol": "consumer",
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
        }
    )
    consumer.subscribe([TOPIC])
    amount = read = 0
    while read < ORDERS:
        message = consumer.poll(30)
        if message is None:
            raise TimeoutError("no record came for 30 s")
        if (error := message.error()) is not None:
            raise KafkaException(error)
        amount += json.loads(message.value() or b"{}")["amount"]
        read += 1
    consumer.commit(asynchronous=False)
    consumer.close()
    print(f"read {read} orders of {amount} in all")


create()
produce()
consume()
