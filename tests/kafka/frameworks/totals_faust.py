"""Running totals by Faust: its table has a changelog topic. Arguments: bootstrap, topics of amounts and of totals."""

import sys
import tempfile

import faust

bootstrap, amounts, totals = sys.argv[1:]
app = faust.App(
    f"faust-{amounts}", broker=f"kafka://{bootstrap}", web_enabled=False, topic_partitions=1, store="memory://",
    datadir=tempfile.mkdtemp(), stream_wait_empty=False,
)  # fmt: skip
given = app.topic(amounts, key_type=str, value_type=int)
told = app.topic(totals, key_type=str, value_type=int)
sums = app.Table("sums", default=int, partitions=1)


async def add(stream: faust.Stream) -> None:
    """Add each amount to its key's total."""
    async for key, amount in stream.items():
        sums[key] += amount
        await told.send(key=key, value=sums[key])


app.agent(given)(add)

if __name__ == "__main__":
    faust.Worker(app, loglevel="warning").execute_from_commandline()
