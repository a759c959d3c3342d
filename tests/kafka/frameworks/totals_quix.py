"""Running totals by Quix Streams, exactly once. Arguments: bootstrap, topics of amounts and of totals."""

import sys
import tempfile

from quixstreams import Application, State

bootstrap, amounts, totals = sys.argv[1:]


def add(amount: int, state: State) -> int:
    """Add an amount to its key's total, which it returns."""
    total: int = state.get("total", 0) + amount
    state.set("total", total)
    return total


if __name__ == "__main__":
    app = Application(
        broker_address=bootstrap, consumer_group=f"quix-{amounts}", auto_offset_reset="earliest",
        processing_guarantee="exactly-once", state_dir=tempfile.mkdtemp(), commit_interval=0.2, loglevel="WARNING",
    )  # fmt: skip
    given = app.topic(amounts, key_deserializer="str", value_deserializer="json")
    told = app.topic(totals, key_serializer="str", value_serializer="json")
    app.dataframe(given).apply(add, stateful=True).to_topic(told)
    app.run()
