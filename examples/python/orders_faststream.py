"""FastStream: a service takes orders and answers with bills, until it has seen ten. BROKER names another broker."""

import asyncio
import os

from faststream import FastStream
from faststream.confluent import KafkaBroker
from pydantic import BaseModel

ORDERS_TOPIC, BILLS_TOPIC = "example-faststream-orders", "example-faststream-bills"
GROUP = "example-faststream"
ORDERS = 10


class Order(BaseModel):
    order: int
    amount: float


class Bill(BaseModel):
    order: int
    total: float


broker = KafkaBroker(os.environ.get("BROKER", "127.0.0.1:9092"))
app = FastStream(broker)
bills: list[Bill] = []


@broker.subscriber(ORDERS_TOPIC, group_id=GROUP, auto_offset_reset="earliest")
@broker.publisher(BILLS_TOPIC)
async def bill(order: Order) -> Bill:
    return Bill(order=order.order, total=order.amount * 1.2)


@broker.subscriber(BILLS_TOPIC, group_id=GROUP, auto_offset_reset="earliest")
async def collect(billed: Bill) -> None:
    bills.append(billed)
    if len(bills) == ORDERS:
        app.exit()


@app.after_startup
async def send() -> None:
    for number in range(ORDERS):
        await broker.publish(Order(order=number, amount=10 * number), ORDERS_TOPIC)


asyncio.run(app.run())
print(f"billed {len(bills)} orders of {sum(one.total for one in bills):.0f} in all")
