"""aiokafka: orders are billed exactly once. A transaction holds the bills and the position in the orders.

BROKER names another broker.
"""

import asyncio
import json
import os

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from aiokafka.admin import AIOKafkaAdminClient, NewTopic

BROKER = os.environ.get("BROKER", "127.0.0.1:9092")
ORDERS_TOPIC, BILLS_TOPIC = "example-aiokafka-orders", "example-aiokafka-bills"
GROUP = "example-aiokafka"
ORDERS = 10


async def create() -> None:
    admin = AIOKafkaAdminClient(bootstrap_servers=BROKER)
    await admin.start()
    try:
        there = await admin.list_topics()
        topics = [NewTopic(name, 1, 1) for name in (ORDERS_TOPIC, BILLS_TOPIC) if name not in there]
        if topics:
            await admin.create_topics(topics)
    finally:
        await admin.close()


async def produce() -> None:
    async with AIOKafkaProducer(bootstrap_servers=BROKER, enable_idempotence=True) as producer:
        for number in range(ORDERS):
            await producer.send_and_wait(ORDERS_TOPIC, json.dumps({"order": number, "amount": 10 * number}).encode())


async def bill() -> None:
    consumer = AIOKafkaConsumer(
        ORDERS_TOPIC,
        bootstrap_servers=BROKER,
        group_id=GROUP,
        auto_offset_reset="earliest",
        enable_auto_commit=False,
        isolation_level="read_committed",
    )
    producer = AIOKafkaProducer(bootstrap_servers=BROKER, transactional_id="example-aiokafka-biller")
    billed = 0
    async with consumer, producer:
        while billed < ORDERS:
            orders = await consumer.getmany(timeout_ms=30_000)
            if not orders:
                raise TimeoutError("no order came for 30 s")
            async with producer.transaction():
                for records in orders.values():
                    for record in records:
                        await producer.send(BILLS_TOPIC, b"bill for " + record.value)
                    billed += len(records)
                positions = {partition: records[-1].offset + 1 for partition, records in orders.items()}
                await producer.send_offsets_to_transaction(positions, GROUP)
    print(f"billed {billed} orders")


async def main() -> None:
    await create()
    await produce()
    await bill()


asyncio.run(main())
