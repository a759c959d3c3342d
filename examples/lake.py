"""From an empty folder to a typed table, a table of each key's newest record, and a picture.

Notebooks and editors show each part behind ``# %%`` as a cell. It needs a broker (``./scripts/korvet serve``), and runs
in a clone as ``.venv/bin/python examples/lake.py``. It writes to ``./orders-lake``, or to the directory in the
variable LAKE; BROKER names another broker. A second run adds orders, and draws the picture anew.
"""

# %% A topic for orders. Its JSON Schema is checked by the broker, and gives the typed table its columns.
from __future__ import annotations

import json
import os
import random
from datetime import UTC, datetime, timedelta
from pathlib import Path

from confluent_kafka import KafkaError, KafkaException, Producer
from confluent_kafka.admin import AdminClient, NewTopic

broker = os.environ.get("BROKER", "127.0.0.1:9092")
folder = Path(os.environ.get("LAKE", "orders-lake")).absolute()
folder.mkdir(exist_ok=True)
schema = {
    "type": "object",
    "properties": {
        "city": {"type": "string"},
        "amount": {"type": "number"},
        "state": {"enum": ["open", "paid", "sent"]},
        "at": {"type": "string", "format": "date-time"},
    },
    "required": ["city", "amount", "state", "at"],
}
topic = NewTopic("orders-example", 3, 1, config={"korvet.value.schema": json.dumps(schema)})
admin = AdminClient({"bootstrap.servers": broker})
try:
    admin.create_topics([topic])["orders-example"].result(30)
except KafkaException as error:
    if error.args[0].code() != KafkaError.TOPIC_ALREADY_EXISTS:
        raise

# %% Orders, each a record for every state that it gets to. Some are cancelled: a tombstone ends their key.
dice = random.Random(7)
producer = Producer({"bootstrap.servers": broker, "linger.ms": 20})
begin = datetime.now(UTC) - timedelta(hours=6)
for number in range(500):
    order = {"city": dice.choice(["Bonn", "Lyon", "Oslo"]), "amount": round(dice.uniform(5, 200), 2)}
    at = begin + timedelta(minutes=dice.uniform(0, 300))
    for state in ("open", "paid", "sent")[: dice.randint(1, 3)]:
        value = json.dumps({**order, "state": state, "at": at.isoformat()})
        producer.produce("orders-example", value, f"order-{number}")
        at += timedelta(minutes=dice.uniform(1, 60))
    if number % 20 == 0:
        producer.produce("orders-example", None, f"order-{number}")
assert producer.flush(60) == 0

# %% The archive: all records in `raw`, their columns in `typed`, and the newest record of each order in `latest`.
from korvet.pipeline import ArchiveConfig, archive_topics, make_session

spark = make_session("orders")
config = ArchiveConfig(bootstrap_servers=broker, lake=str(folder), topics=("orders-example",), table="latest")
for name, done in archive_topics(spark, config).topics.items():
    if done.error is not None:
        raise done.error
    print(f"{name}: {done.rows} records archived")

# %% Questions to the tables. The typed columns of each order's newest record come by a join.
for table in ("typed", "latest"):
    spark.read.format("delta").load(f"{folder}/orders-example/{table}").createOrReplaceTempView(table)
by_hour = spark.sql(
    "SELECT date_trunc('hour', at) AS hour, city, sum(amount) AS amount FROM typed WHERE state = 'paid' "
    "GROUP BY ALL ORDER BY ALL"
).toPandas()
now = spark.sql(
    "SELECT state, count(*) AS orders FROM typed JOIN latest "
    "ON _partition = partition AND _offset = offset GROUP BY state ORDER BY state"
).toPandas()
print(now.to_string(index=False))

# %% The picture: matplotlib comes with korvet[spark], which draws its reports by it.
from matplotlib.figure import Figure

figure = Figure(figsize=(10, 4), layout="constrained")
left, right = figure.subplots(1, 2, width_ratios=(2, 1))
for city, rows in by_hour.groupby("city"):
    left.plot(rows["hour"], rows["amount"], label=city, marker="o")
left.set(title="Paid by the hour", ylabel="amount")
left.tick_params(axis="x", rotation=30)
left.legend(frameon=False)
right.bar(now["state"], now["orders"], color=["#0072B2", "#D55E00", "#009E73"][: len(now)])
right.set(title="Orders by their newest state")
figure.savefig(folder / "orders.svg")
print(f"{folder / 'orders.svg'}")
